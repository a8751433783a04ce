"""Run, Stop, Clear. The generator frees the model however it ends: by itself, by Stop, by a closed tab, by an error."""

from __future__ import annotations

import html
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import gradio as gr

from cactus.faults import in_words
from cactus.request import RunRequest
from cactus.session import STAND_IN_PAIR, LiveRun, Progress
from cactus.trace import Round, Trace
from cactus.ui import chat, pair_list, settings, stand_in
from cactus.ui.cadence import Cadence
from cactus.ui.desk import Desk, Loader, Runs, Show, Starts, Visit
from cactus.ui.notes import say
from cactus.ui.readers import read
from cactus.ui.view import Shown, View, blank
from cactus.ui.waiting import Told, told

STOP_PATIENCE = 5.0


class LiveHandlers:
    """The events that use the model. Each reads the place of its own tab."""

    def __init__(self, session: Runs, loader: Loader, desk: Desk) -> None:
        self.session = session
        self.loader = loader
        self.desk = desk

    def pairs(self, brief: bool = False) -> dict[str, str]:
        """All pairs by name, and why one cannot be used here; empty where it can."""
        return pair_list.reasons(self.session.states(), brief)

    def check(self, *row: Any) -> list[dict[str, Any]]:
        """What is wrong with the controls, said beside each."""
        wrong = settings.problems(settings.as_values(row), self.pairs(brief=True))
        return [gr.validate(key not in wrong, html.escape(wrong.get(key, ""))) for key in settings.control_keys()]

    def run(self, request: gr.Request, *row: Any) -> Iterator[Shown]:
        """Run what the controls say, as the first turn of a conversation, and show it as it comes."""
        visit = self._afresh(request)
        show = visit.begin()
        try:
            wanted = settings.to_request(settings.as_values(row), self.pairs())
            yield from self._run(show, replace(wanted, conversation="" if wanted.raw else visit.conversation))
        except ValueError as error:
            show.over.set()
            yield show.view.failed(str(error))

    def reply(self, request: gr.Request, *row: Any) -> Iterator[tuple[Any, ...]]:
        """The next turn of the conversation that is shown. What was asked now stands above the answer: the prompt is
        emptied for the turn after it.
        """
        visit = self.desk.visit(request.session_hash)
        before = visit.show
        before.stop.set()
        before.over.wait(STOP_PATIENCE)
        try:
            turns = chat.history(before.trace, before.wanted)
            wanted = chat.reply(settings.to_request(settings.as_values(row), self.pairs()), turns)
        except ValueError as error:
            yield *before.view.shown(), gr.skip(), say(str(error))
            return
        prompt: Any = ""
        for shown in self._run(visit.begin(), replace(wanted, conversation=visit.conversation)):
            yield *shown, prompt, gr.skip()
            prompt = gr.skip()

    def _run(self, show: Show, wanted: RunRequest) -> Iterator[Shown]:
        show.wanted = wanted
        try:
            show.view.asked(wanted.prompt, wanted.raw)
            yield from self._shown(show, wanted)
        except Exception as error:
            yield show.view.failed(in_words(error))
        finally:
            show.stop.set()
            show.over.set()

    def _afresh(self, request: gr.Request) -> Visit:
        """The tab, its conversation forgotten."""
        visit = self.desk.visit(request.session_hash)
        self.session.forget(visit.conversation)
        visit.new_conversation()
        return visit

    def stop(self, request: gr.Request) -> Shown:
        """End the run or replay of this tab; shows what there is by then."""
        show = self.desk.visit(request.session_hash).show
        show.stop.set()
        show.over.wait(STOP_PATIENCE)
        return show.view.shown()

    def clear(self, request: gr.Request) -> Shown:
        """End the run or replay of this tab and show nothing."""
        self._afresh(request).end()
        return blank()

    def leave(self, request: gr.Request) -> None:
        """The tab was closed or reloaded: free the model."""
        self._afresh(request)
        self.desk.leave(request.session_hash)

    def _shown(self, show: Show, wanted: RunRequest) -> Iterator[Shown]:
        """What to show while the run is prepared, as rounds come, and at the end."""
        view, cadence = show.view, Cadence()
        try:
            with closing(self.records(show, wanted)) as records:
                for record in records:
                    if not isinstance(record, Round):
                        self._say(view, record, wanted)
                        yield view.shown()
                        continue
                    view.add(record)
                    if cadence.due:
                        with cadence.update() as with_plots:
                            yield view.shown(with_plots)
        finally:
            if show.trace:
                view.finish(show.trace)
        yield view.shown()

    def _say(self, view: View, record: Trace | Told, wanted: RunRequest) -> None:
        """What is being waited for, or how the run begins: with another pair, where the wished one cannot be had."""
        if not isinstance(record, Trace):
            view.wait(*record)
            return
        view.begin(record)
        if record.pair == STAND_IN_PAIR != wanted.pair:
            view.remark(stand_in.sentence(wanted.pair, self.session.states()))

    def records(self, show: Show, wanted: RunRequest, starts: Starts | None = None) -> Generator[Told | Trace | Round]:
        """What is being waited for, the trace before the first round, the rounds.

        `show.trace` is complete when this is closed. starts: a place that is kept for several runs, if there is one.
        """
        starts = starts or self.session
        with read(show.stop) as reader:
            if self.loader.name == wanted.pair:
                yield from told(lambda report: self.loader.wait(show.stop, report), show.stop)

            def start(report: Progress) -> LiveRun:
                reader()
                return stand_in.start(starts, wanted, show.stop, report)

            live = yield from told(start, show.stop)
            try:
                with live:
                    yield live.trace
                    yield from live
            finally:
                show.trace = live.trace
