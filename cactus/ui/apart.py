"""A session whose runs go on in another process, which has the GPU while a run lasts.

What crosses over is small and can be pickled: a request one way, a trace without rounds, the rounds, the whole trace
the other; an error as what it says. The process is made for each run, so that each loads its pair. Tried with a
stand-in for the hosting library, not on its machines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from cactus.errors import CactusError, UnavailableError
from cactus.faults import in_words
from cactus.limits import Limits
from cactus.pairs import find_pair
from cactus.pairs.state import PairState
from cactus.request import RunRequest
from cactus.session import Session
from cactus.trace import Round, StopReason, Trace
from cactus.ui import space
from cactus.weights.source import Progress, silent


class Refusal(NamedTuple):
    """An error of the other process."""

    text: str
    unavailable: bool


Record = Trace | Round | Refusal
Stream = Callable[[RunRequest], Generator[Record]]


class ApartRun:
    """Rounds as they arrive. Used as `session.LiveRun` is."""

    def __init__(self, header: Trace, records: Generator[Record], stop: threading.Event) -> None:
        self._header = header
        self._rounds: list[Round] = []
        self._whole: Trace | None = None
        self._left = False
        self._records = records
        self._stop = stop

    def __enter__(self) -> ApartRun:
        return self

    def __exit__(self, *error: object) -> None:
        self._left = True
        self._records.close()

    def __iter__(self) -> Iterator[Round]:
        for record in self._records:
            if isinstance(record, Trace):
                self._whole = record
                return
            if isinstance(record, Refusal):
                raise _error(record)
            self._rounds.append(record)
            yield record
            if self._stop.is_set():
                return

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        if self._whole is not None:
            return self._whole
        return self._header.model_copy(update={"rounds": tuple(self._rounds), "stop_reason": self.stop_reason})

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run ended, None while it goes on."""
        if self._whole is not None:
            return self._whole.stop_reason
        return "cancelled" if self._left else None


class ApartSession:
    """Implements `desk.Runs`. make_session: makes the session of the other process; on_gpu: sends a generator there."""

    def __init__(
        self,
        make_session: Callable[[], Session],
        on_gpu: Callable[[Stream], Stream] = space.gpu,
    ) -> None:
        self._here = make_session()  # knows the pairs, runs nothing
        self._make_session = make_session
        self._stream = on_gpu(self._records)

    @property
    def limits(self) -> Limits:
        """Of this server."""
        return self._here.limits

    def states(self) -> list[PairState]:
        """All pairs as they stand; none stays loaded."""
        return self._here.states()

    def load(self, name: str, progress: Progress | None = None) -> object:
        """Download what is missing: time with a GPU is too dear for that."""
        return find_pair(name).fetch(progress or silent)

    def seat(self) -> AbstractContextManager[Any]:
        """Every run has a place of its own."""
        return nullcontext(self)

    def forget(self, conversation: str) -> None:
        """Nothing is kept between runs."""

    def start(
        self, request: RunRequest, *, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> ApartRun:
        """As `Session.start`."""
        report = progress or silent
        request.check(self.limits)
        self.load(request.pair, report)
        report(None, "waiting for a GPU")
        records = self._stream(request)
        first = next(records)
        if isinstance(first, Refusal):
            raise _error(first)
        assert isinstance(first, Trace)
        return ApartRun(first, records, stop or threading.Event())

    def _records(self, request: RunRequest) -> Generator[Record]:
        """In the other process. Its session is new: locks of this one may be held where the process is copied."""
        try:
            with self._make_session().start(request) as live:
                yield live.trace
                yield from live
            yield live.trace
        except Exception as error:
            yield Refusal(in_words(error), isinstance(error, UnavailableError))


def _error(refusal: Refusal) -> CactusError:
    return (UnavailableError if refusal.unavailable else CactusError)(refusal.text)
