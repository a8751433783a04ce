"""A session whose runs are watched: what the rounds of the latest took, on the wall and of the processor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cactus.request import RunRequest
from cactus.session import LiveRun, Session


@dataclass
class Passage:
    """From asking for the first round to having the last.

    beside_seconds: processor time of the process outside the thread that runs the models, while rounds are made, and
    of every thread between them.
    """

    seconds: float = 0.0
    beside_seconds: float = 0.0
    tokens: list[int] = field(default_factory=list)


class WatchedRun:
    """Used as `session.LiveRun` is."""

    def __init__(self, live: LiveRun, passage: Passage) -> None:
        self._live = live
        self._passage = passage

    def __enter__(self) -> WatchedRun:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live, name)

    def __iter__(self) -> Iterator[Any]:
        rounds, passage = iter(self._live), self._passage
        began, used, loop = time.perf_counter(), time.process_time(), 0.0
        while True:
            before = time.thread_time()
            round_ = next(rounds, None)
            if round_ is None:
                return
            loop += time.thread_time() - before
            passage.seconds = time.perf_counter() - began
            passage.beside_seconds = time.process_time() - used - loop
            passage.tokens += [token.id for token in round_.emitted]
            yield round_


class Watched:
    """Implements `ui.desk.Runs` by a session. `passage`: of the run that was started last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.passage = Passage()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def start(self, request: RunRequest, **options: Any) -> WatchedRun:
        """As `Session.start`."""
        self.passage = Passage()
        return WatchedRun(self._session.start(request, **options), self.passage)
