"""Pairs by their shapes: real weights where there are any, else random ones, which take the same time.

Speed depends on the sizes of a model alone, so a machine can be measured without a download.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from cactus.drafters import ModelDrafter
from cactus.errors import CactusError, UnavailableError
from cactus.models import HFModel, check_rewindable, load_model
from cactus.pairs import PAIRS

SEED = 0
DRAFT_LAYERS = 2  # of a draft model in the verifier's own shape, where nothing else is said

Sizes = Mapping[str, Any]


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, tied: bool) -> Sizes:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 8192,
    }


def _qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool) -> Sizes:
    sizes = _llama(hidden, inner, layers, heads, 8, 151936, tied)
    return {**sizes, "model_type": "qwen3", "head_dim": 128}


@dataclass(frozen=True)
class Shape:
    """Sizes of a verifier as its authors published them, and the shape that drafts for it (empty: a part of it)."""

    sizes: Sizes
    draft: str = ""


SHAPES = {
    "smollm2-135m-instruct": Shape(_llama(576, 1536, 30, 9, 3, 49152, True)),
    "smollm2-1.7b": Shape(_llama(2048, 8192, 24, 32, 32, 49152, True), "smollm2-135m-instruct"),
    "llama-3.2-1b": Shape(_llama(2048, 8192, 16, 32, 8, 128256, True)),
    "llama-3.1-8b": Shape(_llama(4096, 14336, 32, 32, 8, 128256, False), "llama-3.2-1b"),
    "qwen3-0.6b": Shape(_qwen3(1024, 3072, 28, 16, True)),
    "qwen3-8b": Shape(_qwen3(4096, 12288, 36, 32, False), "qwen3-0.6b"),
    "qwen3-14b": Shape(_qwen3(5120, 17408, 40, 40, False), "qwen3-0.6b"),
}


@dataclass(frozen=True)
class Models:
    """A verifier and a draft model to be timed. weights: where the numbers come from, in words."""

    name: str
    verifier: PreTrainedModel
    draft: PreTrainedModel
    weights: str


def models_of(
    source: str, draft: str | None, changes: Mapping[str, int], device: torch.device, dtype: torch.dtype
) -> Models:
    """source: a pair of the registry, a name in `SHAPES`, or a folder or hub id with a config.json; `draft` likewise.

    changes: sizes of the verifier's config to be replaced; then, and where there are none, weights are random.
    `CactusError` names what is unknown or cannot be rewound.
    """
    if source in PAIRS and draft is None and not changes and PAIRS[source].verifier.is_kept:
        found = _of_registry(source, device, dtype)
        if found is not None:
            return found
    given, source = source, _resolved(source)
    config = changed(config_of(source), changes)
    weights = None if changes else _folder_with_weights(source)
    verifier = load_model(weights, device, dtype) if weights else random_model(config, device, dtype)
    name, model = _draft_of(source, draft, config, device, dtype)
    known = f"weights of {given}" if weights else "random weights"
    return Models(f"{given} with {name}", verifier, model, known)


def _of_registry(name: str, device: torch.device, dtype: torch.dtype) -> Models | None:
    """None if the pair has no draft model."""
    pair = PAIRS[name].load(str(device), str(dtype).removeprefix("torch."))
    drafter = pair.new_drafter()
    if not isinstance(drafter, ModelDrafter) or not isinstance(drafter.model, HFModel):
        return None
    return Models(name, pair.model, drafter.model.model, f"{pair.weights}; drafter: {pair.draft_weights or 'as given'}")


def _draft_of(
    source: str, draft: str | None, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype
) -> tuple[str, PreTrainedModel]:
    name = draft or (SHAPES[source].draft if source in SHAPES else "")
    if not name:
        layers = {"num_hidden_layers": min(DRAFT_LAYERS, config.num_hidden_layers)}
        return f"its own first {DRAFT_LAYERS} layers", random_model(changed(config, layers), device, dtype, SEED + 1)
    weights = _folder_with_weights(_resolved(name))
    if weights:
        return name, load_model(weights, device, dtype)
    return name, random_model(config_of(name), device, dtype, SEED + 1)


def _resolved(source: str) -> str:
    """A pair of the registry as the folder of its verifier, or as the shape that goes by the same name."""
    if source not in PAIRS:
        return source
    weights = PAIRS[source].verifier
    if weights.is_kept:
        return str(weights.fetch())
    if weights.name in SHAPES:
        return weights.name
    raise UnavailableError(f"{source}: its weights are not here; fetch them, or take one of {_listed()}")


def config_of(source: str) -> PreTrainedConfig:
    """The text model's config of a pair of the registry, a listed shape, a folder or a hub id."""
    source = _resolved(source)
    if source in SHAPES:
        return AutoConfig.for_model(**SHAPES[source].sizes)
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False).get_text_config(decoder=True)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise CactusError(f"{source!r} is no pair, no shape ({_listed()}) and no config: {reason}") from None


def changed(config: PreTrainedConfig, changes: Mapping[str, int]) -> PreTrainedConfig:
    """A copy with other sizes; `CactusError` names one that the config does not have."""
    config = copy.deepcopy(config)
    for name, value in changes.items():
        if not isinstance(getattr(config, name, None), int):
            raise CactusError(f"a {config.model_type} config has no size {name!r}")
        setattr(config, name, value)
    types = getattr(config, "layer_types", None)
    if types is not None:
        config.layer_types = (types * config.num_hidden_layers)[: config.num_hidden_layers]
    return config


def random_model(
    config: PreTrainedConfig, device: torch.device, dtype: torch.dtype, seed: int = SEED
) -> PreTrainedModel:
    """Made on the device itself, where drawing billions of numbers takes no time."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), device:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    check_rewindable(model)
    model.to(device)  # type: ignore[arg-type]
    return model.eval().requires_grad_(False)


def parse_changes(text: str) -> dict[str, int]:
    """ "hidden_size=4096,num_hidden_layers=8" as a dictionary; `CactusError` names what is not of that kind."""
    changes = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        if not value.isdecimal() or int(value) < 1:
            raise CactusError(f"--config has {item!r}; name=size,… with whole numbers of at least 1 is needed")
        changes[name.strip()] = int(value)
    return changes


def _folder_with_weights(source: str) -> Path | None:
    folder = Path(source)
    return folder if folder.is_dir() and any(folder.glob("*.safetensors")) else None


def _listed() -> str:
    return ", ".join(SHAPES)
