"""One place per visitor, and the pair being loaded in the background.

A visitor is one open tab. What belongs to it (the stop signal, what is shown, the trace behind it) lives here and
goes when the tab is closed. Knows no component.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from cactus.errors import UnavailableError
from cactus.limits import Limits
from cactus.pairs.state import PairState
from cactus.request import RunRequest
from cactus.session import STAND_IN_PAIR, LiveRun, Progress, Seat
from cactus.trace import Trace
from cactus.ui.view import View

log = logging.getLogger(__name__)

GONE_SECONDS = 2.0
"""What a tab asked for right before it was closed may come right behind it."""


class Starts(Protocol):
    """Starts runs: a session, or a place kept for several of them."""

    def start(
        self, request: RunRequest, *, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> LiveRun: ...


class Runs(Starts, Protocol):
    """What the page needs of a session."""

    @property
    def limits(self) -> Limits: ...

    def states(self) -> list[PairState]: ...
    def load(self, name: str, progress: Progress | None = None) -> object: ...
    def seat(self) -> Seat: ...
    def forget(self, conversation: str) -> None: ...


@dataclass
class Show:
    """One run or replay in one tab: how to stop it, what is shown, and the trace behind it."""

    stop: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    view: View = field(default_factory=View)
    trace: Trace | None = None
    wanted: RunRequest | None = None  # what was asked for, where it is a run
    rerun: Trace | None = None  # the same asked again under another rule
    kept: dict[str, Any] = field(default_factory=dict)  # what was worked out of the trace once
    stepped: int = 0  # rounds shown of a replay that goes round by round


class Visit:
    """One tab. It shows one thing at a time; what was shown before keeps writing to its own, forgotten `Show`."""

    def __init__(self) -> None:
        self.show = Show()
        self.show.over.set()
        self._beside: list[Show] = []
        self.lesson: Show | None = None
        self.compared: list[Trace] = []  # the lanes of the last comparison
        self.left_at: float | None = None
        self.new_conversation()

    def new_conversation(self) -> None:
        """What the session keeps for its turns goes by a name that nobody can guess."""
        self.conversation = secrets.token_hex(16)

    def begin(self) -> Show:
        """Stop what was going on in this tab and start afresh."""
        self.show.stop.set()
        self.show = self._new()
        return self.show

    def beside(self) -> Show:
        """One more run, next to what is shown; it is stopped when the tab is closed."""
        self._beside = [show for show in self._beside if not show.over.is_set()]
        self._beside.append(self._new())
        return self._beside[-1]

    def halt_beside(self) -> None:
        """Stop what goes on next to what is shown."""
        for show in self._beside:
            show.stop.set()

    def halt(self) -> None:
        """Stop everything that goes on in this tab."""
        self.show.stop.set()
        self.halt_beside()

    def end(self) -> None:
        """Stop what is going on in this tab and forget it."""
        self.begin().over.set()

    def leave(self) -> None:
        """The tab is gone: what goes on in it is stopped, and so is what still begins."""
        self.left_at = time.monotonic()
        self.halt()

    @property
    def is_over(self) -> bool:
        """Left for so long that nothing of it can still come."""
        return self.left_at is not None and time.monotonic() - self.left_at > GONE_SECONDS

    def _new(self) -> Show:
        show = Show()
        if self.left_at is not None:
            show.stop.set()
        return show


class Desk:
    """The visits by session hash."""

    def __init__(self) -> None:
        self._visits: dict[str, Visit] = {}
        self._lock = threading.Lock()

    def visit(self, session_hash: str | None) -> Visit:
        """The visit of a tab, a new one at its first event."""
        with self._lock:
            self._tidy()
            return self._visits.setdefault(session_hash or "", Visit())

    def leave(self, session_hash: str | None) -> None:
        """The tab is gone: end its run, and soon forget it. A tab that was only out of reach begins anew."""
        self.visit(session_hash).leave()

    def _tidy(self) -> None:
        self._visits = {name: visit for name, visit in self._visits.items() if not visit.is_over}

    def __len__(self) -> int:
        """Tabs that are open."""
        return sum(visit.left_at is None for visit in self._visits.values())


class Loader:
    """Loads one pair in the background, so that the page is there first. `share` and `message` say how far it is."""

    def __init__(self, session: Runs) -> None:
        self._session = session
        self._thread: threading.Thread | None = None
        self.name = ""
        self.share: float | None = None
        self.message = ""

    @property
    def busy(self) -> bool:
        """Whether a pair is being loaded."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, name: str) -> None:
        """Begin to load this pair unless something is being loaded."""
        if self.busy:
            return
        self.name, self.share, self.message = name, None, "loading"
        self._thread = threading.Thread(target=self._load, name="load-pair", daemon=True)
        self._thread.start()

    def wait(self, stop: threading.Event, report: Progress) -> None:
        """Wait until nothing is being loaded, or for the stop signal."""
        while self.busy and not stop.is_set():
            report(self.share, f"loading {self.name}: {self.message}")
            time.sleep(0.2)

    def _load(self) -> None:
        try:
            self._session.load(self.name, self._report)
        except ValueError as error:  # the page says it too
            log.warning("%s could not be loaded: %s", self.name, error)
            if isinstance(error, UnavailableError) and self.name != STAND_IN_PAIR:
                self.name, self.share, self.message = STAND_IN_PAIR, None, f"{self.name} cannot be had"
                self._load()

    def _report(self, share: float | None, message: str) -> None:
        self.share, self.message = share, message
