"""Tiny random models and a real byte-level tokenizer, built in the tests: nothing is downloaded."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from cactus.pairs import Pair, pair_from_models

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CORPUS = ["the cat sat on the mat and the dog sat on the cat", "once upon a time there was a small cactus"] * 4
SPECIAL = ["<|pad|>", "<|start|>", "<|end|>"]


@cache
def tokenizer(template: str | None = TEMPLATE, vocab_size: int = 300) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 300 tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
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


def _gemma3(**sizes: Any) -> PreTrainedModel:
    layers = ["sliding_attention", "full_attention"] * (sizes["num_hidden_layers"] // 2)
    config = Gemma3TextConfig(**sizes, sliding_window=8, layer_types=layers, query_pre_attn_scalar=8)
    return Gemma3ForCausalLM(config)


FAMILIES = {
    "llama": lambda **sizes: LlamaForCausalLM(LlamaConfig(**sizes)),
    "qwen3": lambda **sizes: Qwen3ForCausalLM(Qwen3Config(**sizes)),
    "gemma3": _gemma3,
}


@cache
def model(family: str = "llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random float32 model of 300 tokens; the same seed gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = FAMILIES[family](**{**SIZES, "vocab_size": 300, **changes})
    return made.eval().requires_grad_(False)


@cache
def near(family: str = "llama", seed: int = 0, noise: float = 0.02, **changes: Any) -> PreTrainedModel:
    """`model` with its weights disturbed: a draft model that is often, not always, right."""
    made = FAMILIES[family](**{**SIZES, "vocab_size": 300, **changes})
    made.load_state_dict(model(family, seed).state_dict())
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
