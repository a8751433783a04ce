"""Tiny random models and a real byte-level tokenizer, built in the tests: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
)

from cactus.models import shared
from cactus.pairs import Pair, pair_from_models

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CORPUS = ["the cat sat on the mat and the dog sat on the cat", "once upon a time there was a small cactus"] * 4
SPECIAL = ["<|pad|>", "<|start|>", "<|end|>"]


def trained(special: Sequence[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return bpe


@cache
def tokenizer(template: str | None = TEMPLATE, vocab_size: int = 300) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 300 tokens."""
    bpe = trained(SPECIAL, vocab_size)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", pad_token="<|pad|>")
    fast.chat_template = template
    return fast


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,  # wide, so that the random distributions have peaks
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


WINDOW = 8


def _windows(sizes: dict[str, Any]) -> dict[str, Any]:
    """Gemma's: every other layer sees the last few tokens only. Tied embeddings would repeat one token for ever."""
    layers = ["sliding_attention", "full_attention"] * (sizes["num_hidden_layers"] // 2)
    own = {"sliding_window": WINDOW, "layer_types": layers, "query_pre_attn_scalar": 8, "tie_word_embeddings": False}
    return {**sizes, **own}


def _gemma2(**sizes: Any) -> PreTrainedModel:
    """Soft caps low enough to bite."""
    return Gemma2ForCausalLM(Gemma2Config(**_windows(sizes), attn_logit_softcapping=2.0, final_logit_softcapping=4.0))


def _gemma3_with_images(**sizes: Any) -> PreTrainedModel:
    """A checkpoint that reads images too, of which only the text part is used."""
    vision = SiglipVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=14
    )
    text = Gemma3TextConfig(**_windows(sizes))
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=4)
    config.eos_token_id, config.tie_word_embeddings = text.eos_token_id, text.tie_word_embeddings
    config.initializer_range = text.initializer_range
    return Gemma3ForConditionalGeneration(config)


FAMILIES = {
    "llama": lambda **sizes: LlamaForCausalLM(LlamaConfig(**sizes)),
    "qwen3": lambda **sizes: Qwen3ForCausalLM(Qwen3Config(**sizes)),
    "gemma3": lambda **sizes: Gemma3ForCausalLM(Gemma3TextConfig(**_windows(sizes))),
}
ARCHITECTURES = FAMILIES | {
    "smollm2": lambda **sizes: LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)),
    "qwen2": lambda **sizes: Qwen2ForCausalLM(Qwen2Config(**{k: v for k, v in sizes.items() if k != "head_dim"})),
    "gemma2": _gemma2,
    "gemma3 with images": _gemma3_with_images,
}


@cache
def model(family: str = "llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random float32 model of 300 tokens; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = ARCHITECTURES[family](**{**SIZES, "vocab_size": 300, **changes})
    return made.eval().requires_grad_(False)


@cache
def near(family: str = "llama", seed: int = 0, noise: float = 0.02, **changes: Any) -> PreTrainedModel:
    """`model` with its weights disturbed: a draft model that is often, not always, right."""
    made = ARCHITECTURES[family](**{**SIZES, "vocab_size": 300, **changes})
    made.load_state_dict(model(family, seed, **changes).state_dict())
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(noise * parameter.std().nan_to_num() * torch.randn(parameter.shape, generator=generator))
    return made.eval().requires_grad_(False)


def pair(family: str = "llama", draft: str = "near", **changes: Any) -> Pair:
    """draft: "near", "same" (the verifier itself), "other" (unrelated weights) or "lookup"."""
    verifier = model(family, 0, **changes)
    drafts = {
        "near": lambda: near(family, **changes),
        "same": lambda: verifier,
        "other": lambda: model(family, 7, **changes),
        "lookup": lambda: None,
    }
    return pair_from_models(verifier, tokenizer(), drafts[draft](), name=f"tiny-{family}-{draft}")


def shared_draft(verifier: PreTrainedModel, token_ids: torch.Tensor) -> PreTrainedModel:
    """One layer on the verifier's embeddings, with logits for these tokens only."""
    return shared.build(verifier, token_ids, 1, (-1,)).requires_grad_(False)
