"""The other environment, the one with vLLM. Where there is none its tests skip; in CI they fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "CACTUS_VLLM_PYTHON"


def vllm_python() -> str:
    """The Python that has vLLM, or the reason for going without."""
    python = os.environ.get(VARIABLE, "")
    if python and Path(python).is_file():
        return python
    wanted = f"{VARIABLE} is {python!r}; it names the Python of an environment made from requirements-vllm.txt"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(wanted)
    pytest.skip(wanted)


def vllm_environ(**more: str) -> dict[str, str]:
    """One core, little memory, no network."""
    small = {
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    ours = ("CACTUS_", "GRADIO_", "PYTEST_")
    own = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return own | small | more
