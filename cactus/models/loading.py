"""Loading causal language models and tokenizers from folders, GGUF files or hub ids, with named failures.

Weights are read from safetensors and GGUF alone; code that comes with a model is never run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cactus.errors import CactusError, UnavailableError
from cactus.models.placement import Placement, check_fits, input_device
from cactus.models.screening import check_behaviour, first_line, read_config
from cactus.models.text_part import text_part
from cactus.places import place_name


def load_model(source: str | Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A causal language model ready to run on one device; else as `load_placed`."""
    return load_placed(source, Placement(str(device), str(dtype).removeprefix("torch.")))


def load_placed(
    source: str | Path,
    placement: Placement,
    *,
    gguf: str = "",
    config: PreTrainedConfig | None = None,
    name: str = "",
) -> PreTrainedModel:
    """A causal language model where and as it is wished, from a folder or hub id, or from the file `gguf` in a folder.

    config: as `read_config` gives it, if it has been read already; name: what messages call it. `UnavailableError`
    where the weights cannot be had, are not whole or do not fit; `CactusError` where the model cannot be used.
    """
    name = name or gguf or place_name(source)
    check_packing(gguf, placement.quantize)
    config, renaming = text_part(config or read_config(source, gguf, name))
    check_fits(config, name, placement)
    model = _read(source, name, config, placement.options() | _format(gguf) | renaming)
    if placement.is_plain:
        model.to(placement.chosen[0])  # type: ignore[arg-type]
    model.eval().requires_grad_(False)
    check_behaviour(model, input_device(model), name)
    return model


def load_tokenizer(source: str | Path, *, gguf: str = "", name: str = "") -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id, or of the file `gguf` in a folder; `UnavailableError` without one."""
    options = {"gguf_file": gguf} if gguf else {}
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
    except Exception as error:  # as many types as there are tokenizer libraries
        raise UnavailableError(f"the tokenizer of {name or gguf or place_name(source)}{_why(source, error)}") from error


def check_packing(gguf: str, quantize: str | None) -> None:
    """`CactusError` if weights that are unpacked from a GGUF file are to be rounded again."""
    if gguf and quantize is not None:
        raise CactusError(
            f"quantize is {quantize!r}, but {gguf} is a GGUF file, rounded already and unpacked to be fast; "
            "leave it out, or round the model the file was made from"
        )


def _format(gguf: str) -> dict[str, Any]:
    if not gguf:
        return {"use_safetensors": True}
    # Packed, which is the library's choice, it would be unpacked again in every pass.
    return {"gguf_file": gguf, "quantization_config": GgufConfig(dequantize=True)}


def _read(source: str | Path, name: str, config: PreTrainedConfig, options: dict[str, Any]) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, config=config, trust_remote_code=False, output_loading_info=True, **options
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # safetensors, gguf, torch, the disk: each has its own
        raise UnavailableError(f"{name}{_why(source, error)}") from error
    model, found = loaded
    if missing := sorted(found["missing_keys"]):  # the library would draw them at random
        raise UnavailableError(
            f"{name} cannot be loaded: {len(missing)} of its weights are not in its files, {missing[0]} first; "
            "download it again"
        )
    return model


def _why(source: str | Path, error: Exception) -> str:
    advice = "" if Path(source).exists() else " (check the spelling, the network, and whether it is gated)"
    return f" cannot be loaded: {first_line(error)}{advice}"
