"""How an event of the page is run: what each kind of listener is given."""

from __future__ import annotations

from typing import Any

# The lowest limit of a concurrency group counts, so every event that uses the model says it.
MODEL: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
PRIVATE: dict[str, Any] = {"api_visibility": "private"}
QUIET: dict[str, Any] = PRIVATE | {"show_progress": "hidden", "concurrency_limit": None}
AT_ONCE: dict[str, Any] = QUIET | {"queue": False}  # works while the queue is full
