"""Adapters of the transformers library. The only place that knows it (with `weights`, which converts files)."""

from cactus.models.adapter import HFModel, check_rewindable, context_length
from cactus.models.codec import HFCodec, check_same_tokens, eos_ids
from cactus.models.loading import check_packing, load_model, load_placed, load_tokenizer
from cactus.models.narrow import for_vocabulary
from cactus.models.placement import Placement, check_fits, choose_device, choose_dtype, input_device, is_spread
from cactus.models.quantized import cheapest
from cactus.models.screening import read_config
from cactus.models.static import DRAFT_WIDTHS, CacheSource, cached_models
from cactus.models.static_head import cached_heads

__all__ = [
    "DRAFT_WIDTHS",
    "CacheSource",
    "HFCodec",
    "HFModel",
    "Placement",
    "cached_heads",
    "cached_models",
    "cheapest",
    "check_fits",
    "check_packing",
    "check_rewindable",
    "check_same_tokens",
    "choose_device",
    "choose_dtype",
    "context_length",
    "eos_ids",
    "for_vocabulary",
    "input_device",
    "is_spread",
    "load_model",
    "load_placed",
    "load_tokenizer",
    "read_config",
]
