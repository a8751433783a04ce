"""The Learn tab: five short lessons, each on a recorded run that plays without a model, with one thing to try live."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr

from cactus import notable, recorded, theory
from cactus.errors import CactusError
from cactus.faults import in_words
from cactus.recorded import RecordedRun
from cactus.trace import Trace
from cactus.ui import lab, settings, theme
from cactus.ui.compare import CompareParts
from cactus.ui.desk import Desk, Show
from cactus.ui.events import AT_ONCE, QUIET
from cactus.ui.notes import note
from cactus.ui.parts import Parts, markup, widget
from cactus.ui.render import explanation, number
from cactus.ui.replay import paced
from cactus.ui.view import View, blank

NO_RECORD = "There is no recorded run for this lesson: `python -m cactus record` makes them. The text holds without."
log = logging.getLogger(__name__)
FOUND = {
    "likeliest_rejected": "Tokens refused: {among}. The verifier's likeliest was {text} with q = {q}.",
    "only_boosted": "{among} tokens were kept that lossless sampling had refused with the same u, such as {text}.",
    "unlikeliest_accepted": "Kept, though the verifier gave it no more than q = {q}: {text}.",
}


@dataclass(frozen=True)
class Lesson:
    """run: the key of the recorded run. plot: which of the four plots stands by it. notable: a kind of `notable`.

    settings, preset, lanes: what "Try it live" sets before it opens `tab`.
    """

    name: str
    title: str
    run: str
    plot: int
    text: tuple[str, ...]
    watch: str
    notable: str
    question: str
    answer: str
    try_: str
    tab: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    lanes: tuple[str, ...] = ()


@cache
def lessons() -> tuple[Lesson, ...]:
    """All lessons in order."""
    entries = json.loads((theme.ASSETS / "lessons.json").read_text(encoding="utf-8"))
    return tuple(
        Lesson(**{("try_" if key == "try" else key): value for key, value in entry.items()}) for entry in entries
    )


@dataclass
class LearnParts:
    """blocks: the texts, one visible. shown: note, text, tiles, plot. live: one button a lesson."""

    choice: Any = None
    again: Any = None
    blocks: list[Any] = field(default_factory=list)
    live: list[Any] = field(default_factory=list)
    shown: list[Any] = field(default_factory=list)


def build_learn() -> LearnParts:
    """The lessons' texts on the left, the run of the chosen one on the right."""
    parts, titles = LearnParts(), [f"{index + 1} · {lesson.title}" for index, lesson in enumerate(lessons())]
    names = [lesson.name for lesson in lessons()]
    parts.choice = gr.Radio(
        list(zip(titles, names, strict=True)), value=names[0], show_label=False, container=False, elem_id="lessons",
        label="Lesson",
    )  # fmt: skip
    with gr.Row(elem_id="learn", equal_height=False):
        with gr.Column(elem_classes="side", min_width=320, scale=0):
            for lesson in lessons():
                with gr.Column(visible=lesson.name == names[0], elem_classes="lesson") as block:
                    parts.live.append(_lesson(lesson))
                parts.blocks.append(block)
        with gr.Column(elem_classes="main", min_width=320, scale=1):
            text, tiles, *plots = blank()
            shown_text = widget("tokens", "learn-text", text, markup("stream.html"))
            with gr.Row(elem_classes="learn-foot"):
                told = widget("note", "learn-note")
                parts.again = gr.Button("Play again", size="sm", elem_id="learn-again", scale=0, min_width=100)
            parts.shown = [
                told,
                shown_text,
                widget("tiles", "learn-tiles", tiles),
                widget("plot", "learn-plot", plots[0]),
            ]
    return parts


def _lesson(lesson: Lesson) -> gr.Button:
    gr.Markdown("\n\n".join([f"## {lesson.title}", *lesson.text, f"*{lesson.watch}*"]), elem_classes="lesson-text")
    with gr.Accordion("Question: " + lesson.question, open=False, elem_classes="lesson-question"):
        gr.Markdown(lesson.answer)
    gr.Markdown(f"**Try it:** {lesson.try_}", elem_classes="lesson-try")
    return gr.Button("Try it live", variant="primary", elem_id=f"try-{lesson.name}")


def wire_learn(
    parts: LearnParts, tab: gr.Tab, tabs: gr.Tabs, page: Parts, laboratory: gr.HTML, lanes: CompareParts, desk: Desk
) -> None:
    """Which event does what."""
    handlers = LearnHandlers(desk)
    chosen = parts.choice.change(handlers.play, parts.choice, parts.shown, **QUIET)
    parts.choice.change(_visible, parts.choice, parts.blocks, **AT_ONCE)
    opened = tab.select(handlers.open, parts.choice, parts.shown, **QUIET)
    parts.again.click(handlers.play, parts.choice, parts.shown, cancels=[chosen, opened], **QUIET)
    targets = [*page.row(), laboratory, *lanes.lanes, tabs]
    for lesson, button in zip(lessons(), parts.live, strict=True):
        button.click(lambda lesson=lesson: live(lesson), None, targets, **AT_ONCE)


def _visible(name: str) -> list[Any]:
    return [gr.update(visible=lesson.name == name) for lesson in lessons()]


def live(lesson: Lesson, folder: Path | None = None) -> list[Any]:
    """What "Try it live" sets: controls of the Playground, the lab, the lanes, and the tab to show."""
    values = {settings.PROMPT_AS.name: settings.PROMPT_AS.default, **lesson.settings}
    method = settings.methods()[values.get("method", settings.defaults()["method"])]
    keys = {parameter.name: method.key(parameter) for parameter in method.parameters}
    wanted = {keys.get(name, name): value for name, value in values.items()}
    if run := _record(lesson, folder):
        wanted["prompt"] = run.prompt
    controls = [gr.update(value=wanted[key]) if key in wanted else gr.skip() for key in settings.control_keys()]
    preset = next((preset for preset in theory.PRESETS if preset.name == lesson.preset), None)
    lanes = [gr.update(value=lane) for lane in lesson.lanes] or [gr.skip()] * 3
    return [*controls, lab.opening(preset=preset) if preset else gr.skip(), *lanes, gr.Tabs(selected=lesson.tab)]


def _record(lesson: Lesson, folder: Path | None) -> RecordedRun | None:
    """The recorded run of a lesson; none where nothing was recorded, or nothing that can be read."""
    try:
        return next((run for run in recorded.index(folder) if run.key == lesson.run), None)
    except CactusError as error:
        log.warning("no recorded runs: %s", error)
        return None


class LearnHandlers:
    """Plays the recorded run of a lesson. `folder`: where the records are, if not in the usual place."""

    def __init__(self, desk: Desk, folder: Path | None = None) -> None:
        self.desk = desk
        self.folder = folder

    async def open(self, request: gr.Request, name: str) -> AsyncIterator[tuple[Any, ...]]:
        """The tab was opened: the first time, its lesson begins to play."""
        if self.desk.visit(request.session_hash).lesson is None:
            async for shown in self.play(request, name):
                yield shown

    async def play(self, request: gr.Request, name: str) -> AsyncIterator[tuple[Any, ...]]:
        """The run of this lesson at the speed it had."""
        show = self._begin(request)
        lesson = next((lesson for lesson in lessons() if lesson.name == name), lessons()[0])
        try:
            trace = self._trace(lesson)
            view = show.view = View(trace)
            yield note("Plays from a record, at the speed it had."), *_of(lesson, view.shown())
            async for shown in paced(show, view, trace, 1.0):
                yield gr.skip(), *_of(lesson, shown)
            if not show.stop.is_set():
                yield note(*told(lesson, trace)), gr.skip(), gr.skip(), gr.skip()
        except ValueError as error:
            yield note(in_words(error), bad=True), *_of(lesson, blank())
        finally:
            show.over.set()

    def _begin(self, request: gr.Request) -> Show:
        """The lesson that played before is over."""
        visit = self.desk.visit(request.session_hash)
        if visit.lesson is not None:
            visit.lesson.stop.set()
        visit.lesson = visit.beside()
        return visit.lesson

    def _trace(self, lesson: Lesson) -> Trace:
        run = _record(lesson, self.folder)
        if run is None:
            raise CactusError(NO_RECORD)
        return recorded.read(run.file, self.folder)


def _of(lesson: Lesson, shown: tuple[str, ...]) -> tuple[str, ...]:
    """Text, tiles and the lesson's own plot."""
    return shown[0], shown[1], shown[2 + lesson.plot]


def told(lesson: Lesson, trace: Trace) -> list[str]:
    """What this run shows of the lesson: the token that shows it best, and its verdict."""
    found = notable.KINDS[lesson.notable](trace) if lesson.notable else None
    if found is None:
        return [f"Prompt: {trace.prompt}"]
    word, q = json.dumps(found.token.text, ensure_ascii=False), number(found.token.verifier_prob)
    return [
        FOUND[lesson.notable].format(among=found.among, text=word, q=q),
        explanation(found.token, found.round, found.place),
    ]
