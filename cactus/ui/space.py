"""Running on a hosted Space. On ZeroGPU the model runs in a child process that is forked for each run.

Import before torch. Anywhere else all of this does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

try:
    import spaces  # type: ignore[import-not-found]
except ImportError:
    spaces = None

IS_SPACE = "SPACE_ID" in os.environ
IS_ZERO_GPU = spaces is not None and os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "true")
GPU_SECONDS = 120


def gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ask for a GPU while the function runs, where that is how one is had."""
    return spaces.GPU(duration=GPU_SECONDS)(function) if IS_ZERO_GPU else function


def apart(make_session: Callable[[], Any]) -> Any:
    """A session; where the GPU is in another process, one that runs there."""
    if not IS_ZERO_GPU:
        return make_session()
    from cactus.ui.apart import ApartSession

    return ApartSession(make_session)
