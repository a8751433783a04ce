"""Whether the model hub can be reached: asked in the background, remembered for a minute."""

from __future__ import annotations

import threading
import time
from typing import Literal

Hub = Literal["reachable", "unreachable", "switched off", "unknown"]

ANSWER_SECONDS = 2.5
FRESH_SECONDS = 60.0


class HubProbe:
    """Asks the hub for a sign of life. Never waits longer than it is told to; until there is an answer: "unknown"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._answer: Hub = "unknown"
        self._asked = float("-inf")

    def state(self, wait: float = 0.0) -> Hub:
        """The last answer. One that is older than a minute is asked for again, in the background.

        wait: seconds to wait for a first answer; a hub that has not answered by then counts as unreachable.
        """
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            return "switched off"
        thread = self._start()
        if wait:
            thread.join(wait)
            if self._answer == "unknown":
                return "unreachable"
        return self._answer

    def _start(self) -> threading.Thread:
        with self._lock:
            idle = self._thread is None or not self._thread.is_alive()
            if self._thread is None or (idle and time.monotonic() - self._asked > FRESH_SECONDS):
                self._asked = time.monotonic()
                self._thread = threading.Thread(target=self._ask, name="hub-probe", daemon=True)
                self._thread.start()
            return self._thread

    def _ask(self) -> None:
        self._answer = "reachable" if answers(ANSWER_SECONDS) else "unreachable"


def answers(seconds: float) -> bool:
    """Whether the hub, or what HF_ENDPOINT names in its place, answers at all."""
    from huggingface_hub import constants, get_session

    try:
        return bool(get_session().head(constants.ENDPOINT, timeout=seconds).status_code < 500)
    except Exception:  # a dozen types, and each of them says no
        return False
