"""Pairs of the user's own: models that are already loaded, or given by hub ids or folders."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus.drafters import ModelDrafter
from cactus.errors import CactusError
from cactus.models import (
    HFCodec,
    cached_models,
    check_same_tokens,
    choose_device,
    choose_dtype,
    load_model,
    load_tokenizer,
)
from cactus.pairs.drafting import Lookup
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
    new = cached_models(draft, static)
    return Pair(name, verifier, codec, lambda: ModelDrafter(new(), codec.vocab_size), static=static)


def load_pair(
    name: str | None = None,
    *,
    draft: str | Path | None = None,
    verifier: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress = silent,
    static: bool = False,
) -> Pair:
    """Load a pair of the registry by name, or a draft model and a verifier by hub ids or folders.

    device: "auto" (CUDA, then MPS, then CPU) or a torch device; dtype: "auto", "bfloat16", "float16", "float32".
    static: run the verifier (and a draft model given by folder or id) on static caches, on CUDA devices with graphs.
    Off unless asked for: it is tested on CPUs and has not been run on a GPU yet (`python -m cactus bench --steps`).
    `ValueError` names what is wrong: unknown pair, tokenizers that differ, state that cannot be rewound, weights
    that cannot be had or do not fit.
    """
    if name is not None:
        if draft is not None or verifier is not None:
            raise CactusError("give either a pair's name or draft= and verifier=, not both")
        return find_pair(name).load(device, dtype, progress, static)
    if verifier is None:
        raise CactusError(f"give a pair's name ({', '.join(PAIRS)}), or verifier= and, if any, draft=")
    return _load_custom(draft, verifier, device, dtype, static)


def _load_custom(draft: str | Path | None, verifier: str | Path, device: str, dtype: str, static: bool) -> Pair:
    where = choose_device(device)
    kind = choose_dtype(dtype, where)
    tokenizer, name = load_tokenizer(verifier), str(verifier)
    if draft is None:
        return pair_from_models(load_model(verifier, where, kind), tokenizer, name=name, static=static)
    draft_tokenizer = load_tokenizer(draft)
    check_same_tokens(draft_tokenizer, tokenizer)  # before any weights are read
    models = load_model(verifier, where, kind), load_model(draft, where, kind)
    return pair_from_models(models[0], tokenizer, models[1], name=f"{draft} + {verifier}", static=static)
