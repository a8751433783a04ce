"""Lines: what a few threads may have at a time is had in the order of asking.

Runs stand in two of them. The first lets a few runs in at a time. In the second, the runs that are in take turns on the
models, one round, one chunk of a prompt or one timed step each; so their texts grow together, and nobody waits longer
than for one turn of each of the others. Knows nothing of runs, models or pages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from cactus.errors import CactusError
from cactus.settings import check_whole

Result = TypeVar("Result")

LOOK_SECONDS = 0.1
"""At most so much later someone in line notices that it need not wait any more."""


class Line:
    """The first `places` who ask and have not left are in; the others wait, first come, first served."""

    def __init__(self, places: int = 1) -> None:
        check_whole("places", places, 1, None)
        self.places = places
        self._start_anew()

    def __len__(self) -> int:
        """How many are in or wait."""
        return len(self._tickets)

    @contextmanager
    def turn(self, stopped: threading.Event | None = None, tell: Callable[[int], None] | None = None) -> Iterator[bool]:
        """Wait, be in, leave. Yields False, without being in, once `stopped` is set.

        tell: hears the place in line, 1 for whoever is let in next, whenever it changes.
        """
        if os.getpid() != self._process:
            self._start_anew()
        ticket = object()
        with self._changed:
            self._tickets.append(ticket)
        try:
            yield self._wait(ticket, stopped or threading.Event(), tell or (lambda place: None))
        finally:
            with self._changed:
                self._tickets.remove(ticket)
                self._changed.notify_all()

    def _wait(self, ticket: object, stopped: threading.Event, tell: Callable[[int], None]) -> bool:
        told = 0
        while (place := self._place(ticket)) > 0 and not stopped.is_set():
            if place != told:
                tell(told := place)
            with self._changed:
                self._changed.wait_for(lambda: self._place(ticket) != told, LOOK_SECONDS)
        return place <= 0

    def _place(self, ticket: object) -> int:
        """In line; 0 or less for those who are in."""
        with self._changed:
            return self._tickets.index(ticket) + 1 - self.places

    def _start_anew(self) -> None:
        """Also in a forked process: those in line are threads of its parent, who never leave here."""
        self._process = os.getpid()
        self._changed = threading.Condition()  # reentrant
        self._tickets: list[object] = []


def apart(work: Callable[[], Result], stopped: threading.Event, discard: Callable[[Result], object]) -> Result:
    """The result of `work`, done in a thread of its own; `CactusError` once `stopped` is set.

    Then the work goes on unattended, and what it results in is discarded.
    """
    future: Future[Result] = Future()
    threading.Thread(target=_fulfil, args=(future, work), name="apart", daemon=True).start()
    while not wait([future], LOOK_SECONDS).done:
        if stopped.is_set():
            future.add_done_callback(lambda done: done.exception() or discard(done.result()))
            raise CactusError("stopped while waiting")
    return future.result()


def _fulfil(future: Future[Result], work: Callable[[], Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # handed to the thread that waits
        future.set_exception(error)


def ordinal(place: int) -> str:
    """1st, 2nd, 3rd, 4th, …, 11th, …, 21st."""
    teen = 10 < place % 100 < 20
    return f"{place}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(place % 10, 'th')}"
