"""What a measurement ran on: processor, cores, memory, accelerator, operating system."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil
import torch

CPUINFO = Path("/proc/cpuinfo")


def describe(device: torch.device) -> dict[str, str | int | float]:
    """Facts of this machine, small enough to stand beside every figure."""
    facts: dict[str, str | int | float] = {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        facts["accelerator"] = torch.cuda.get_device_name(device)
    elif device.type != "cpu":
        facts["accelerator"] = device.type
    return facts


def load() -> str:
    """How busy the machine is by itself: processes waiting to run, over the last minute; unknown on some systems."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def in_words(facts: dict[str, str | int | float]) -> str:
    """One line."""
    words = (
        f"{facts['processor']} ({facts['instructions']}), {facts['cores']} cores, {facts['threads']} threads, "
        f"{facts['memory_gb']} GB, {facts['system']}"
    )
    return f"{facts['accelerator']}; {words}" if "accelerator" in facts else words


def processor() -> str:
    """The model's name; Linux tells it in a file of its own."""
    try:
        for line in CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
