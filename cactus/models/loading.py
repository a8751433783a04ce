"""Loading causal language models and tokenizers from folders or hub ids: device, dtype, memory, named failures."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from cactus.errors import CactusError, UnavailableError
from cactus.models.adapter import check_rewindable

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# Beside the weights, a run needs room for caches, logits and the library itself.
HEADROOM = 1.2


def choose_device(device: str = "auto") -> torch.device:
    """ "auto" takes CUDA, then MPS, then the CPU; any other name as torch spells it."""
    if device == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found if found is not None and found.type in ("cuda", "mps") else torch.device("cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise CactusError(f"device {device!r} cannot be used here; auto, cpu, cuda or mps ({error})") from None
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """ "auto" takes bfloat16 where the device computes in it natively, else float32."""
    if dtype == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    if dtype not in DTYPES:
        raise CactusError(f"dtype is {dtype!r}; auto, {', '.join(DTYPES)} are allowed")
    return DTYPES[dtype]


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # Without these instructions bfloat16 runs on CPUs too, but slower than float32.
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def load_model(source: str | Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """A causal language model ready to run, from a folder or hub id. Remote code stays off; safetensors only.

    `UnavailableError` where it cannot be had or does not fit; `CactusError` where its state cannot be rewound.
    """
    check_fits(source, device)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UnavailableError(_why(source, error)) from error
    check_rewindable(model)
    model.to(device)  # type: ignore[arg-type]
    return model.eval().requires_grad_(False)


def load_tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub id; `UnavailableError` where it cannot be had."""
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise UnavailableError(_why(source, error)) from error


def check_fits(source: str | Path, device: torch.device) -> None:
    """`UnavailableError` with both sizes if the weights of a local folder exceed the memory that is free."""
    folder = Path(source)
    if not folder.is_dir():
        return
    needed = HEADROOM * sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise UnavailableError(
            f"{folder.name} needs about {needed / 1e9:.1f} GB of memory; {free / 1e9:.1f} GB are free on {device}"
        )


def _why(source: str | Path, error: Exception) -> str:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{source} cannot be loaded: {first_line} (check the spelling, the network, and whether it is gated)"
