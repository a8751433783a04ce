"""Showing a recorded trace again, at the speed it had or another, without a model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import gradio as gr

from cactus import recorded
from cactus.errors import CactusError
from cactus.faults import in_words
from cactus.limits import MAX_SHOWN_TOKENS, MAX_UPLOAD_BYTES
from cactus.trace import Trace
from cactus.ui.cadence import Cadence
from cactus.ui.desk import Desk, Show
from cactus.ui.notes import say
from cactus.ui.view import Shown, View

log = logging.getLogger(__name__)

SPEEDS: dict[str, float] = {"true speed": 1.0, "½×": 0.5, "4×": 4.0, "round by round": 0.0}
NO_RECORD = ""


class ReplayHandlers:
    """The events that show a trace again."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def open(self, request: gr.Request, path: str | None, speed: str) -> AsyncIterator[Shown]:
        """Read a trace file and show it."""
        async for shown in self._open(request, lambda: read_trace(path), speed):
            yield shown

    async def recorded(self, request: gr.Request, file: str, speed: str) -> AsyncIterator[Shown]:
        """Show one of the runs that were recorded for it."""
        if file == NO_RECORD:
            yield self.desk.visit(request.session_hash).show.view.shown()
            return
        async for shown in self._open(request, lambda: recorded.read(file), speed):
            yield shown

    async def _open(self, request: gr.Request, read: Callable[[], Trace], speed: str) -> AsyncIterator[Shown]:
        try:
            trace = read()
        except ValueError as error:
            show = self.desk.visit(request.session_hash).begin()
            show.over.set()
            yield show.view.failed(in_words(error))
            return
        async for shown in self._play(request, trace, speed):
            yield shown

    async def again(self, request: gr.Request, speed: str) -> AsyncIterator[tuple[Any, ...]]:
        """Show the trace of this tab again, from the start."""
        show = self.desk.visit(request.session_hash).show
        if show.trace is None:
            yield *show.view.shown(), say("Nothing to replay yet: run something or load a trace.")
            return
        async for shown in self._play(request, show.trace, speed):
            yield *shown, gr.skip()

    def step(self, request: gr.Request) -> tuple[Any, ...]:
        """Show the next round of a replay that goes round by round."""
        show = self.desk.visit(request.session_hash).show
        if show.trace is None or show.stepped >= len(show.trace.rounds):
            return *show.view.shown(), say("No further round: press Replay to start again.")
        show.view.add(show.trace.rounds[show.stepped])
        show.stepped += 1
        if show.stepped == len(show.trace.rounds):
            show.view.finish(show.trace)
        return *show.view.shown(), gr.skip()

    async def _play(self, request: gr.Request, trace: Trace, speed: str) -> AsyncIterator[Shown]:
        show = self.desk.visit(request.session_hash).begin()
        show.trace = trace
        show.view = View(trace)
        factor = SPEEDS.get(speed, 1.0)
        try:
            yield show.view.shown()
            async for shown in paced(show, show.view, trace, factor):
                yield shown
        finally:
            if factor and show.view.tally.rounds < len(trace.rounds):
                show.view.failed("Replay stopped.")
            show.stepped = show.view.tally.rounds
            show.over.set()


async def paced(show: Show, view: View, trace: Trace, factor: float) -> AsyncIterator[Shown]:
    """The rounds when they are due; several at once where they come faster than the page is updated."""
    if not factor:
        return
    due, cadence = time.monotonic(), Cadence()
    for round_ in trace.rounds:
        due += round_.seconds / factor
        while (wait := due - time.monotonic()) > 0 and not show.stop.is_set():
            await asyncio.sleep(min(wait, 0.1))
        if show.stop.is_set():
            return
        view.add(round_)
        if cadence.due:
            with cadence.update() as with_plots:
                yield view.shown(with_plots)
    view.finish(trace)
    yield view.shown()


def recordings() -> list[tuple[str, str]]:
    """The recorded runs as a list to choose from: title and file. Without a usable index there are none."""
    try:
        runs = recorded.index()
    except CactusError as error:
        log.warning("no recorded runs: %s", error)
        return []
    return [(run.title, run.file) for run in runs]


def read_trace(path: str | None) -> Trace:
    """A trace from a file a visitor chose. `ValueError` says what is wrong with it."""
    if path is None:
        raise CactusError("no file was chosen")
    file = Path(path)
    size = file.stat().st_size
    if size > MAX_UPLOAD_BYTES:
        most = MAX_UPLOAD_BYTES / 1e6
        raise CactusError(f"the file is {size / 1e6:.0f} MB; the page reads traces up to {most:.0f} MB")
    trace = Trace.from_json(file.read_bytes())
    tokens = sum(len(round_.tokens) for round_ in trace.rounds)
    if tokens > MAX_SHOWN_TOKENS:
        raise CactusError(f"the trace has {tokens:,} tokens; the page shows up to {MAX_SHOWN_TOKENS:,}")
    return trace
