"""Versions written into every trace."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

__version__ = "0.1.0"


@cache
def versions() -> dict[str, str]:
    """Versions of what computes the numbers."""
    return {
        "cactus": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
