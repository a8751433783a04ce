"""Where a verifier's weights go and how they are held: one device, several, or fewer bits a number.

Spreading over devices is accelerate's, rounding is bitsandbytes' or torchao's; here is only what to ask them for.
All of it has been tried on CPUs alone: splits between memory and disk, and both libraries' kernels for the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel

from cactus.errors import CactusError, UnavailableError
from cactus.machine import HEADROOM, free_memory

DEVICE_MAPS = ("auto", "balanced", "sequential")
QUANTIZATIONS = {"4bit": 4, "8bit": 8}
ROUNDERS = {"4bit": ("bitsandbytes",), "8bit": ("bitsandbytes", "torchao")}  # torchao's 4 bits need more than itself
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
UNROUNDED = 0.15  # share of a rounded model that keeps its dtype: embeddings, norms, scales

DeviceMap = str | Mapping[str, Any]


@dataclass(frozen=True)
class Placement:
    """Wishes for a verifier. `CactusError` names a bad value and what is allowed.

    device: "auto" (CUDA, then MPS, then CPU) or as torch spells it; dtype: "auto", "bfloat16", "float16", "float32".
    device_map: None for that one device, "auto" to spread over all GPUs and then the CPU's memory, or accelerate's map
    of modules. quantize: None, "4bit" or "8bit".
    """

    device: str = "auto"
    dtype: str = "auto"
    device_map: DeviceMap | None = None
    quantize: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.device_map, str) and self.device_map not in DEVICE_MAPS:
            raise CactusError(f"device_map is {self.device_map!r}; {', '.join(DEVICE_MAPS)} are allowed")
        if self.quantize is not None and self.quantize not in QUANTIZATIONS:
            raise CactusError(f"quantize is {self.quantize!r}; {', '.join(QUANTIZATIONS)} are allowed")
        if self.quantize is not None and not rounder(self.quantize):
            raise CactusError(
                f"quantize is {self.quantize!r}, which needs {' or '.join(ROUNDERS[self.quantize])}: not installed; "
                "`pip install bitsandbytes`, or load the model unrounded"
            )

    @property
    def chosen(self) -> tuple[torch.device, torch.dtype]:
        """The one device (of the inputs, where it is spread) and the dtype on this machine."""
        device = choose_device(self.device)
        return device, choose_dtype(self.dtype, device)

    @property
    def is_plain(self) -> bool:
        """Whether the weights go unrounded to one device."""
        return self.device_map is None and self.quantize is None

    def options(self) -> dict[str, Any]:
        """For `from_pretrained`. A model loaded with a map must not be moved."""
        device, dtype = self.chosen
        options: dict[str, Any] = {"dtype": dtype}
        if not self.is_plain:
            options["device_map"] = {"": device} if self.device_map is None else self.device_map
        if self.quantize is not None:
            options["quantization_config"] = rounding(self.quantize, dtype)
        return options

    @property
    def label(self) -> str:
        """For the record of a run: what is unusual about it."""
        bits = f"rounded to {QUANTIZATIONS[self.quantize]} bits with {rounder(self.quantize)}" if self.quantize else ""
        spread = "placed by a device map" if self.device_map is not None else ""
        return ", ".join(filter(None, (bits, spread)))


def choose_device(device: str = "auto") -> torch.device:
    """ "auto" takes CUDA, then MPS, then the CPU; any other name as torch spells it."""
    if device == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found if found is not None and found.type in ("cuda", "mps") else torch.device("cpu")
    if not isinstance(device, str | torch.device):
        raise CactusError(f"device is {device!r:.60}; auto, cpu, cuda or mps is allowed")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise CactusError(
            f"device {str(device)!r:.60} cannot be used here; auto, cpu, cuda or mps ({error!s:.200})"
        ) from None
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """ "auto" takes bfloat16 where the device computes in it natively, else float32."""
    if dtype == "auto":
        return torch.bfloat16 if _has_bfloat16(device) else torch.float32
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CactusError(f"dtype is {dtype!r:.60}; auto, {', '.join(DTYPES)} are allowed")
    return DTYPES[dtype]


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # Without these instructions bfloat16 runs on CPUs too, but slower than float32.
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def input_device(model: PreTrainedModel) -> torch.device:
    """Where token ids go: the embedding's device, or where it computes if its weights rest elsewhere."""
    embedding = model.get_input_embeddings()
    hook = getattr(embedding, "_hf_hook", None)
    executes = getattr(hook, "execution_device", None)
    return torch.device(embedding.weight.device if executes is None else executes)  # type: ignore[arg-type]


def is_spread(model: nn.Module) -> bool:
    """Whether its weights are on more than one device, or rest where they do not compute."""
    return len(set(map(str, getattr(model, "hf_device_map", {}).values()))) > 1


def rounder(quantize: str) -> str:
    """The library that rounds weights here, empty if there is none."""
    return next((name for name in ROUNDERS[quantize] if find_spec(name) is not None), "")


def rounding(quantize: str, dtype: torch.dtype) -> Any:
    """What to ask `from_pretrained` for, of the library that is installed."""
    if rounder(quantize) == "torchao":
        return _eight_bits_by_torchao()
    if quantize == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def _eight_bits_by_torchao() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def check_fits(config: PreTrainedConfig, name: str, placement: Placement) -> None:
    """`UnavailableError` with both sizes if the model's weights exceed the memory that is free."""
    device, dtype = placement.chosen
    needed = HEADROOM * model_bytes(config, dtype, placement.quantize)
    free = free_bytes(device, everywhere=placement.device_map is not None)
    if needed > free:
        where = "all devices" if placement.device_map is not None else str(device)
        raise UnavailableError(
            f"{name} needs about {needed / 1e9:.1f} GB of memory; {free / 1e9:.1f} GB are free on {where}"
            f"{_advice(placement, device)}"
        )


def model_bytes(config: PreTrainedConfig, dtype: torch.dtype, quantize: str | None = None) -> float:
    """Of the weights in memory, from the configuration alone: the model is made without them."""
    with torch.device("meta"):  # for this thread only, unlike accelerate's own
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    whole = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    return whole * rounded_share(quantize, dtype)


def rounded_share(quantize: str | None, dtype: torch.dtype) -> float:
    """Of a model's bytes in this dtype, what is left of them when it is rounded."""
    return UNROUNDED + (1 - UNROUNDED) * QUANTIZATIONS[quantize] / (8 * dtype.itemsize) if quantize else 1.0


def free_bytes(device: torch.device, everywhere: bool = False) -> int:
    """Memory that is free on a device, or on all GPUs and beside them."""
    memory = free_memory()
    if device.type != "cuda":
        return memory  # a Mac's GPU has no memory of its own
    if not everywhere:
        return int(torch.cuda.mem_get_info(device)[0])
    return memory + sum(int(torch.cuda.mem_get_info(number)[0]) for number in range(torch.cuda.device_count()))


def _advice(placement: Placement, device: torch.device) -> str:
    """What would make it fit."""
    ways = []
    if placement.device_map is None and device.type == "cuda":
        ways.append('device_map="auto" (--device-map auto) spreads it over GPUs and memory')
    if placement.quantize is None:
        ways.append('quantize="4bit" (--quantize 4bit) rounds it')
    return f"; {', '.join(ways)}" if ways else ""
