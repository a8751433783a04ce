"""Pairs made by a program: of models that are already loaded, or loaded by names, hub ids, folders or GGUF files."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus.errors import CactusError
from cactus.models import HFCodec, check_same_tokens
from cactus.models.placement import DeviceMap
from cactus.pairs.drafting import Lookup, ordinary
from cactus.pairs.given import given_pair
from cactus.pairs.pair import Pair
from cactus.pairs.registry import PAIRS, find_pair
from cactus.weights.source import Progress, silent


def pair_from_models(
    verifier: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: PreTrainedModel | None = None,
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    name: str = "custom",
    static: bool = False,
) -> Pair:
    """A pair of models that are already loaded; without a draft model it drafts by prompt lookup.

    static: whether to run both on static caches, on CUDA devices with graphs (`models.static`).
    """
    codec = HFCodec(tokenizer, verifier)
    if draft is None:
        return Pair(name, verifier, codec, Lookup().build(verifier, codec).new, static=static)
    if draft_tokenizer is not None:
        check_same_tokens(draft_tokenizer, tokenizer)
    drafting = ordinary(draft, codec, static, rounded=False)
    return Pair(name, verifier, codec, drafting.new, static=static, draft_caches=drafting.caches)


def load_pair(
    name: str | None = None,
    *,
    draft: str | Path | None = None,
    verifier: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    device_map: DeviceMap | None = None,
    quantize: str | None = None,
    progress: Progress = silent,
    static: bool = False,
) -> Pair:
    """Load a pair of the registry by name, or a draft model and a verifier of your own; without a draft: prompt lookup.

    draft, verifier: hub ids, folders (safetensors, config.json, tokenizer), .gguf files, or "org/model:file.gguf".
    device: "auto" (CUDA, then MPS, then CPU) or a torch device; dtype: "auto", "bfloat16", "float16", "float32".
    device_map: "auto" spreads a verifier of your own over all GPUs and then the CPU's memory (or accelerate's map of
    modules); quantize: "4bit" (bitsandbytes) or "8bit" (or torchao) rounds it. Both have been tried on CPUs only.
    static: run the verifier and its draft model or head on static caches, on CUDA devices with graphs.
    Off unless asked for: it is tested on CPUs and has not been run on a GPU yet (`python -m cactus bench --steps`).
    `ValueError` names what is wrong: unknown pair, tokenizers that differ, state that cannot be rewound, weights
    that cannot be had or do not fit.
    """
    if name is not None:
        if draft is not None or verifier is not None:
            raise CactusError("give either a pair's name or draft= and verifier=, not both")
        if device_map is not None or quantize is not None:
            raise CactusError("device_map= and quantize= need verifier=: the registry's pairs are loaded as they are")
        return find_pair(name).load(device, dtype, progress, static)
    if verifier is None:
        raise CactusError(f"give a pair's name ({', '.join(PAIRS)}), or verifier= and, if any, draft=")
    return given_pair(draft, verifier, device_map, quantize).load(device, dtype, progress, static)
