"""What matters of this machine before a pair is loaded: free memory of every kind, disk, the hub.

Torch is asked where it has been imported; elsewhere its import alone would take longer than all the rest, so the
driver's own tool and the processor's flags say the same.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from cactus.weights.hub_cache import cache_folder
from cactus.weights.reach import Hub

HEADROOM = 1.2  # beside a model's weights, a run needs room for caches, logits and the library itself
SMI_SECONDS = 1.0
SMI_FIELDS = "name,memory.free,memory.total,compute_cap"
NATIVE_BFLOAT16 = (8, 0)  # compute capability from which NVIDIA's devices have it
CGROUP = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
CPU_BFLOAT16 = frozenset({"avx512_bf16", "amx_tile"})


@dataclass(frozen=True)
class Accelerator:
    """A GPU, sizes in bytes."""

    name: str
    free: int
    total: int
    bfloat16: bool = True


@dataclass(frozen=True)
class Machine:
    """Facts, in bytes. kept: names of the weights that are on the disk. number_bytes: of a weight by default."""

    memory: int
    accelerators: tuple[Accelerator, ...] = ()
    disk: int = sys.maxsize
    number_bytes: int = 2
    hub: Hub = "unknown"
    has_token: bool = False
    kept: frozenset[str] = frozenset()

    @property
    def accelerator_memory(self) -> int:
        """Free on all accelerators together."""
        return sum(device.free for device in self.accelerators)

    def with_room(self, size: int, accelerator: int | None = None) -> Machine:
        """The same with `size` more bytes free on an accelerator, by its number, or in main memory."""
        if accelerator is None:
            return replace(self, memory=self.memory + size)
        devices = list(self.accelerators)
        if accelerator < len(devices):
            devices[accelerator] = replace(devices[accelerator], free=devices[accelerator].free + size)
        return replace(self, accelerators=tuple(devices))


def look(kept: frozenset[str] = frozenset(), hub: Hub = "unknown", device: str = "auto") -> Machine:
    """This machine as it stands; within a second. device: "auto", or the one that is to be used, as torch spells it."""
    from huggingface_hub import get_token

    devices = _chosen(accelerators(), device)
    bfloat16 = all(device.bfloat16 for device in devices) if devices else cpu_has_bfloat16()
    return Machine(
        memory=free_memory(),
        accelerators=devices,
        disk=free_disk(cache_folder()),
        number_bytes=2 if bfloat16 else 4,
        hub=hub,
        has_token=bool(get_token()),
        kept=kept,
    )


def free_memory() -> int:
    """Bytes of main memory that can still be taken: what is available, within the limit of a container."""
    return min(psutil.virtual_memory().available, _free_in_cgroup(CGROUP))


def free_disk(folder: Path) -> int:
    """Bytes free where the folder is or would be made."""
    return shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free


def accelerators() -> tuple[Accelerator, ...]:
    """The NVIDIA devices. On a Mac the GPU shares main memory and is not listed."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):  # it may just be being imported
        return _by_driver()
    try:
        return _by_torch(torch)
    except RuntimeError:  # a GPU that other processes are given
        return ()


@functools.cache
def cpu_has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16; without them float32 is faster."""
    try:
        text = CPU_INFO.read_text()
    except OSError:
        return False
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return bool(CPU_BFLOAT16 & set(line.split()))


def _chosen(devices: tuple[Accelerator, ...], device: str) -> tuple[Accelerator, ...]:
    """For example those of "auto", "cpu", "cuda" or "cuda:1"."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return ()
    return devices[int(number) : int(number) + 1] if number.isdecimal() else devices


def _by_torch(torch: Any) -> tuple[Accelerator, ...]:
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        bfloat16 = torch.cuda.get_device_capability(index) >= NATIVE_BFLOAT16
        name = torch.cuda.get_device_name(index)
        idle = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
        found.append(Accelerator(name, free + idle, total, bfloat16))
    return tuple(found)


def _by_driver() -> tuple[Accelerator, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    command = [tool, f"--query-gpu={SMI_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
        return tuple(map(_read_line, lines.strip().splitlines()))
    except (OSError, subprocess.SubprocessError, ValueError):  # no driver behind the tool
        return ()


def _read_line(line: str) -> Accelerator:
    """For example "NVIDIA L4, 22563, 23034, 8.9", sizes in MiB."""
    name, free, total, capability = (field.strip() for field in line.rsplit(",", 3))
    version = tuple(int(number) for number in capability.split("."))
    return Accelerator(name, int(free) << 20, int(total) << 20, version >= NATIVE_BFLOAT16)


def _free_in_cgroup(folder: Path) -> int:
    """What a container may still take (its file cache makes room); without a limit, any amount."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        inactive = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError, KeyError):  # "max", another version, another system
        return sys.maxsize
    return max(0, limit - used + int(inactive))
