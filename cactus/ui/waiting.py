"""Waiting that can be watched: work that reports its progress runs in a thread, and what it says is yielded here."""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

from cactus.session import Progress

Told = tuple[float | None, str]
"""The share done, or None where unknown, and what is going on."""
STARTING: Told = (None, "starting")
Result = TypeVar("Result")
LOOK_SECONDS = 0.1


def told(
    work: Callable[[Progress], Result], stop: threading.Event, every: float = math.inf
) -> Generator[Told, None, Result]:
    """Yield that it starts, then do `work(report)` in a thread and yield each change of what it reports; returns its
    result.

    If this is closed before the end, `stop` is set, and a result that has to be left is left. every: after so many
    seconds the latest report is yielded again, for whoever can be closed at a yield only.
    """
    latest: list[Told] = []
    future: Future[Result] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="prepare-run") as pool:
        context = contextvars.copy_context()  # says whose request it is
        try:
            yield STARTING  # An event that is cancelled before its first yield is never closed by Gradio.
            future = pool.submit(context.run, work, lambda share, message: latest.append((share, message)))
            yield from _changes(future, latest, every)
        except GeneratorExit:
            stop.set()
            if future is not None:
                _leave(future)
            raise
        return future.result()


def _leave(future: Future[Result]) -> None:
    """Whatever it brings, nobody is there for it."""
    if future.exception() is None and isinstance(result := future.result(), AbstractContextManager):
        with result:
            pass


def _changes(future: Future[Result], latest: list[Told], every: float) -> Generator[Told]:
    last = STARTING
    yielded = time.monotonic()
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    while not done.wait(LOOK_SECONDS):
        now = latest[-1] if latest else last
        if now != last or time.monotonic() - yielded >= every:
            last, yielded = now, time.monotonic()
            latest[:] = [now]
            yield now
