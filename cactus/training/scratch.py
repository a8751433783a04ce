"""Small models from nothing: their shapes, their folders.

Knows nothing of how they are trained.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cactus.files import filling
from cactus.sums import CONFIG, WEIGHTS, write_sums


@dataclass(frozen=True)
class Shape:
    """Of a Llama with tied embeddings."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int


def new_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, context_length: int, seed: int = 0) -> LlamaForCausalLM:
    """Random float32 weights, the same for the same seed; the global random state is left alone."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def save_model(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """In bfloat16, with the tokenizer, as `from_pretrained` reads it."""
    with torch.random.fork_rng(devices=[]):  # the random weights are replaced; leave no trace of them
        rounded = LlamaForCausalLM(model.config).bfloat16()
    rounded.load_state_dict(model.state_dict())
    with filling(folder, CONFIG, WEIGHTS) as place:
        rounded.save_pretrained(place)
        tokenizer.save_pretrained(place)
        write_sums(place)


def read_model(folder: Path) -> LlamaForCausalLM:
    """The saved weights, rounded as they are, in float32 and ready to run."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    return model.eval().requires_grad_(False)
