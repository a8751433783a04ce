"""How an event of the page is run: what each kind of listener is given."""

from __future__ import annotations

from typing import Any

from cactus.limits import Limits

PRIVATE: dict[str, Any] = {"api_visibility": "private"}
QUIET: dict[str, Any] = PRIVATE | {"show_progress": "hidden", "concurrency_limit": None}
AS_IT_IS: dict[str, Any] = {"preprocess": False, "postprocess": False}
"""Values go through unchanged. Gradio would call a thread for each of them, at every update."""
AT_ONCE: dict[str, Any] = QUIET | {"queue": False}  # works while the queue is full


def on_models(limits: Limits) -> dict[str, Any]:
    """For every event that runs models. The lowest limit of a group counts, so all of them get it from here."""
    return {"concurrency_id": "models", "concurrency_limit": limits.max_runs}
