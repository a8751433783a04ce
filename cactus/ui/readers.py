"""Who reads what a run shows: a run begins when its reader is there, and ends soon after the reader has gone.

Gradio tells the two connections of an event apart: one asks for it, another, opened a moment later, brings what comes.
It ends an event when the second breaks, but not one whose second connection never came. `Readers` sees those
connections themselves, however they end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from gradio.context import LocalContext
from starlette.middleware import Middleware

from cactus.errors import CactusError
from cactus.ui.waiting import LOOK_SECONDS

COMES_SECONDS = 3.0
"""So long a run waits for its reader, without any model."""
AWAY_SECONDS = 0.3
"""So long a reader may be away, as when a page opens its connection anew."""
IN_SCOPE = "cactus.readers"


@dataclass(eq=False)
class _Run:
    names: frozenset[str]
    stop: threading.Event
    begun: bool = False


class Readers:
    """ASGI middleware that knows which sessions and events are read at the moment."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._open: Counter[str] = Counter()
        self._runs: list[_Run] = []
        self._changed = threading.Condition()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and _is_queued(scope["path"]):
            scope[IN_SCOPE] = self
        name = _read(scope)
        if name is None:
            await self._app(scope, receive, send)
            return
        self._comes(name)
        try:
            await self._app(scope, receive, send)
        finally:
            self._goes(name)
            asyncio.get_running_loop().call_later(AWAY_SECONDS, self._end_unread)

    @contextmanager
    def watching(self, names: frozenset[str], stop: threading.Event) -> Iterator[Callable[[], None]]:
        """As `read`, for a run whose reader goes by any of these names."""
        run = _Run(names, stop)
        with self._changed:
            self._runs.append(run)
        try:
            yield lambda: self._await(run)
        finally:
            with self._changed:
                self._runs.remove(run)

    def _await(self, run: _Run) -> None:
        end = time.monotonic() + COMES_SECONDS
        with self._changed:
            while not self._is_read(run) and not run.stop.is_set():
                if time.monotonic() > end:
                    run.stop.set()
                    raise CactusError(f"nobody came within {COMES_SECONDS:g} s to read what this run gives")
                self._changed.wait(LOOK_SECONDS)  # `stop` wakes nobody
            run.begun = True

    def _is_read(self, run: _Run) -> bool:
        return any(name in self._open for name in run.names)

    def _comes(self, name: str) -> None:
        with self._changed:
            self._open[name] += 1
            self._changed.notify_all()

    def _goes(self, name: str) -> None:
        with self._changed:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]

    def _end_unread(self) -> None:
        with self._changed:
            for run in self._runs:
                if run.begun and not self._is_read(run):
                    run.stop.set()


MIDDLEWARE = [Middleware(Readers)]
"""For whoever serves the page: one for each served page."""


@contextmanager
def read(stop: threading.Event) -> Iterator[Callable[[], None]]:
    """For the run of the event that is being handled, as long as it goes on: sets `stop` once its reader has gone.

    Yields what waits for the reader: to be called before anything is taken; `CactusError` if none comes. An event that
    no `Readers` has seen is taken to have a reader.
    """
    request = LocalContext.request.get(None)
    scope = getattr(getattr(request, "request", None), "scope", {})
    names = frozenset(filter(None, [getattr(request, "session_hash", None), LocalContext.event_id.get(None)]))
    if IN_SCOPE not in scope or not names:
        yield lambda: None
        return
    with scope[IN_SCOPE].watching(names, stop) as reader:
        yield reader


def _is_queued(path: str) -> bool:
    return path.endswith("/queue/join") or "/call/" in path


def _read(scope: dict[str, Any]) -> str | None:
    """The session or the event whose messages this connection brings, None where it is no such connection."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    path: str = scope["path"]
    if path.endswith("/queue/data"):
        return next(iter(parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [])), None)
    return path.rstrip("/").rpartition("/")[2] if "/call/" in path else None
