"""What a model is, from its configuration alone: which kinds cannot be used here, and why.

Asked before any weights are read or downloaded. What a configuration cannot tell is tried once they are
(`check_behaviour`).
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel, __version__
from transformers.cache_utils import DummyLayer, DynamicCache, DynamicLayer, LinearAttentionCacheLayerMixin

from cactus.errors import CactusError, UnavailableError
from cactus.places import place_name, without_folders

TEXT_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "Decoder")
EMBEDDING_FILES = ("modules.json", "config_sentence_transformers.json")
PROBE = (3, 5, 4, 6)  # ids that every vocabulary has
TOLERANCE = 0.5  # of the logits' spread: half precision is far within it, another context far outside


def read_config(source: str | Path, gguf: str = "", name: str = "") -> PreTrainedConfig:
    """The configuration of a folder, hub id or GGUF file in a folder, if it is of a model that can be used.

    name: what messages call it. `UnavailableError` if there is none; `CactusError` naming the model and what is in
    the way.
    """
    name = name or gguf or place_name(source)
    try:
        if not gguf:
            _check_known(name, *PreTrainedConfig.get_config_dict(source))
        options = {"gguf_file": gguf} if gguf else {}
        config = _auto_config(source, options)
    except CactusError:
        raise
    except Exception as error:  # the library's own dozen types, as many as there are ways to write a file wrongly
        raise UnavailableError(f"the configuration of {name} cannot be read: {first_line(error)}") from error
    check_config(config, name)
    _check_purpose(source, name)
    return config


def check_config(config: PreTrainedConfig, name: str) -> None:
    """`CactusError` if the model is no decoder of text, or has a state that cannot be rewound."""
    _check_generates(config, name)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CactusError(
            f"{name} ({config.model_type}) cannot be used: transformers {__version__} has no model that writes text "
            "with it alone; take a text-only model of the family"
        )
    check_state(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config, name)  # type: ignore[arg-type]
    if not isinstance(getattr(config.get_text_config(decoder=True), "max_position_embeddings", None), int):
        raise CactusError(f"{name} ({config.model_type}) cannot be used: its configuration states no context length")


def check_state(kind: type[PreTrainedModel], config: PreTrainedConfig, name: str = "") -> None:
    """`CactusError` naming the model and the layers whose state cannot be rewound after a rejected draft."""
    what = f"{kind.__name__}, {config.model_type}"
    refusal = f"{name} ({what}) cannot be used:" if name else f"{kind.__name__} ({config.model_type}) cannot be used:"
    advice = "take a model with attention in every layer"
    if getattr(kind, "_is_stateful", False):
        raise CactusError(f"{refusal} its recurrent state cannot be rewound after a rejected draft; {advice}")
    takes = inspect.signature(kind.forward).parameters
    if not {"cache", "logits_to_keep"} <= takes.keys():
        raise CactusError(f"{refusal} it has no cache that could be rewound after a rejected draft; {advice}")
    for layer in DynamicCache(config=config).layers:
        if isinstance(layer, LinearAttentionCacheLayerMixin) or not isinstance(layer, DynamicLayer | DummyLayer):
            raise CactusError(
                f"{refusal} its {type(layer).__name__} state cannot be rewound after a rejected draft; {advice}"
            )


@torch.inference_mode()
def check_behaviour(model: PreTrainedModel, device: torch.device, name: str) -> None:
    """`CactusError` unless tokens that are rewound and fed again, one by one, give what they gave together."""
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()

    def logits(*ids: int) -> torch.Tensor:
        given = torch.tensor([ids], device=device)
        return model(input_ids=given, cache=cache, use_cache=True, logits_to_keep=0).logits[0].float()

    together = logits(*PROBE)  # [4, vocab]
    cache.crop(-2)
    again = torch.cat([logits(PROBE[2]), logits(PROBE[3])])
    spread = float(together.std())
    if not bool((again - together[2:]).abs().max() <= TOLERANCE * spread):
        raise CactusError(
            f"{name} ({type(model).__name__}) cannot be used: tokens that are taken back and read again give other "
            "numbers than at first"
        )


def first_line(error: Exception) -> str:
    """What an error says, without the rest of its advice and without folders."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return without_folders(" ".join(lines[: 2 if lines[0].endswith(":") else 1]))


def _auto_config(source: str | Path, options: dict[str, Any]) -> PreTrainedConfig:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source, trust_remote_code=False, **options)


def _check_known(name: str, stated: dict[str, Any], _: object) -> None:
    """Whether this version of the library knows the model type without code from elsewhere."""
    kind = stated.get("model_type")
    if kind in CONFIG_MAPPING:
        return
    if not kind and not stated.get("auto_map"):
        raise UnavailableError(f"{name} has no config.json that names a model_type: it is not a model's folder")
    if stated.get("auto_map"):
        raise CactusError(
            f"{name} ({kind}) cannot be used: it brings Python code of its own, which is never run here; take a copy "
            "in transformers' own format, or a GGUF file of it"
        )
    raise CactusError(
        f"{name} cannot be used: transformers {__version__} does not know the model type {kind!r}; update it, or take "
        "another model"
    )


def _check_generates(config: PreTrainedConfig, name: str) -> None:
    stated = list(config.architectures or [])
    if config.is_encoder_decoder:
        raise CactusError(
            f"{name} ({config.model_type}) cannot be used: it is an encoder-decoder; only models that continue a text "
            "(decoders) can be verified token by token"
        )
    if stated and not any(architecture.endswith(TEXT_HEADS) for architecture in stated):
        raise CactusError(
            f"{name} cannot be used: its weights are of a {stated[0]}, which does not write text (it embeds, "
            "classifies or fills gaps); take a model for causal language modelling"
        )


def _check_purpose(source: str | Path, name: str) -> None:
    """Embedding models may have the configuration of a decoder; the files beside it tell."""
    if any((Path(source) / file).is_file() for file in EMBEDDING_FILES):
        raise CactusError(f"{name} cannot be used: it is an embedding model (sentence-transformers) and writes no text")
