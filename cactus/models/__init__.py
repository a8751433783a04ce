"""Adapters of the transformers library. The only place that knows it (with `weights`, which converts files)."""

from cactus.models.adapter import HFModel, check_rewindable, context_length
from cactus.models.codec import HFCodec, check_same_tokens, eos_ids
from cactus.models.loading import choose_device, choose_dtype, load_model, load_tokenizer
from cactus.models.quantized import cheapest
from cactus.models.static import cached_models

__all__ = [
    "HFCodec",
    "HFModel",
    "cached_models",
    "cheapest",
    "check_rewindable",
    "check_same_tokens",
    "choose_device",
    "choose_dtype",
    "context_length",
    "eos_ids",
    "load_model",
    "load_tokenizer",
]
