"""The Compare tab: the same prompt and seed under several methods, run one after another, shown on one clock.

Everything shown comes from the lanes' traces by `cactus.compare`; the other settings are the Playground's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from cactus import compare
from cactus.acceptance import RULES
from cactus.compare import LaneResult
from cactus.errors import CactusError
from cactus.faults import in_words
from cactus.request import RunRequest
from cactus.trace import Round, Trace
from cactus.ui import settings
from cactus.ui.cadence import Cadence
from cactus.ui.desk import Desk, Show, Starts
from cactus.ui.events import AS_IT_IS, AT_ONCE, PRIVATE, QUIET, on_models
from cactus.ui.figures import BLUE, GREEN, GREY, ORANGE, bare, drawing, line
from cactus.ui.lanes import LaneView
from cactus.ui.live import LiveHandlers
from cactus.ui.notes import errand, note
from cactus.ui.parts import Parts, markup, widget
from cactus.ui.table import cell, table, to_json

LANES = 1 + compare.MOST
UPDATE_SECONDS = 0.12
SHOWN_CHARACTERS = 60
LOOKS = ((GREY, "circle"), (GREEN, "diamond"), (BLUE, "square"), (ORANGE, "triangle-up"))
START = "Choose up to three lanes; the verifier alone always runs first, as the measured baseline."
IN_TURN = "The lanes run one after another: one device."
TOGETHER = "Side by side, in true time: the lanes ran one after another and are played here from their traces."
STOPPED = "Stopped. What ran so far can be played and saved."


@dataclass
class CompareParts:
    """The components of the tab. shown: status, figures of the lanes, texts of the lanes, table, figure, partings."""

    prompt: Any = None
    lanes: list[Any] = field(default_factory=list)
    buttons: dict[str, Any] = field(default_factory=dict)
    shown: list[Any] = field(default_factory=list)


def build_compare() -> CompareParts:
    """What is asked for on the left, the lanes and what came of them on the right."""
    parts = CompareParts()
    with gr.Row(elem_id="compare", equal_height=False):
        with gr.Column(elem_classes="side", min_width=320, scale=0):
            _asked(parts)
            status = widget("note", "compare-status", note(START))
        with gr.Column(elem_classes="main", min_width=320, scale=1):
            with gr.Row(elem_classes="figures", elem_id="lanes"):
                places = [_lane(number) for number in range(LANES)]
            results = widget("table", "compare-table")
            figure = widget("plot", "compare-plot", drawing(trade([]).to_json(), {}))
            partings = widget("table", "compare-partings")
    notes, texts = zip(*places, strict=True)
    parts.shown = [status, *notes, *texts, results, figure, partings]
    return parts


def _asked(parts: CompareParts) -> None:
    with gr.Group(elem_classes="card"):
        parts.prompt = gr.Textbox(
            label="Prompt", lines=3, max_lines=5, elem_id="compare-prompt", placeholder="Empty: as in the Playground",
            info="Pair, sampling, length and seed are the Playground's.",
        )  # fmt: skip
    with gr.Row(elem_classes="actions"):
        for name, label, look in (("run", "Compare", "primary"), ("stop", "Stop", "secondary")):
            parts.buttons[name] = gr.Button(label, variant=look, elem_id=f"compare-{name}", min_width=80)  # type: ignore[arg-type]
    with gr.Group(elem_classes="card"):
        for number in range(compare.MOST):
            parts.lanes.append(
                gr.Dropdown(
                    suggestions(), value=compare.USUAL[number], label=f"Lane {number + 2}", allow_custom_value=True,
                    info="method:name=value:…, m=… for the draft length" if not number else "Empty: no such lane.",
                    elem_id=f"compare-lane-{number + 2}",
                )
            )  # fmt: skip
    with gr.Row(elem_classes="actions"):
        for name, label in (("again", "Play again"), ("save", "Save everything")):
            parts.buttons[name] = gr.Button(label, size="sm", elem_id=f"compare-{name}", min_width=100)


def suggestions() -> list[str]:
    """Lanes to choose from: every rule as it is, and the default method at three budgets; "" leaves a lane out."""
    budgets = [f"{RunRequest.method}:delta={delta:g}" for delta in (0.2, 1.0, 5.0)]
    return ["", *budgets, *(name for name in RULES if name != RunRequest.method)]


def _lane(number: int) -> tuple[Any, Any]:
    with gr.Column(elem_classes="lane", min_width=280):
        figures = widget(
            "note", f"lane-{number + 1}-note", note("Verifier only" if not number else f"Lane {number + 1}")
        )
        text = widget("tokens", f"lane-{number + 1}", "", markup("stream.html"))
    return figures, text


def wire_compare(parts: CompareParts, page: Parts, live: LiveHandlers, desk: Desk) -> None:
    """Which event does what."""
    handlers, buttons = CompareHandlers(live, desk), parts.buttons
    asked = [parts.prompt, *parts.lanes, *page.row()]
    waiting = AS_IT_IS | {"show_progress": "minimal", "show_progress_on": parts.shown[0]}
    running = buttons["run"].click(
        handlers.run, asked, parts.shown, **waiting, **on_models(live.session.limits), **PRIVATE
    )
    played = running.success(handlers.play, None, parts.shown, **QUIET)
    again = buttons["again"].click(handlers.play, None, parts.shown, **QUIET)
    buttons["stop"].click(handlers.stop, None, parts.shown[0], cancels=[running, played, again], **AT_ONCE)
    buttons["save"].click(handlers.save, None, [page.other["errand"], parts.shown[0]], **AT_ONCE)


class CompareHandlers:
    """The events of the tab. Each reads the lanes of its own visitor."""

    def __init__(self, live: LiveHandlers, desk: Desk) -> None:
        self.live = live
        self.desk = desk

    def run(self, request: gr.Request, prompt: str, *rest: Any) -> Iterator[list[Any]]:
        """Run the lanes one after another and show each as it comes."""
        visit = self.desk.visit(request.session_hash)
        visit.compared = []
        try:
            asked = self._asked(prompt, rest)
            yield _first(IN_TURN)
            with self.live.session.seat() as seat:
                for lane, wanted in enumerate(asked):
                    yield from self._lane(seat, visit.beside(), lane, wanted, visit.compared)
        except Exception as error:
            yield update(status=note(in_words(error), bad=True))

    async def play(self, request: gr.Request) -> AsyncIterator[list[Any]]:
        """All lanes on one clock, from their traces; then the table, the figure and where the texts part."""
        traces = list(self.desk.visit(request.session_hash).compared)
        if not traces:
            yield update()
            return
        views = [_begun(trace) for trace in traces]
        yield _first(TOGETHER, views)
        began, sent, changed = time.monotonic(), 0.0, set()
        for due in compare.timeline(traces):
            while (wait := began + due.seconds - time.monotonic()) > 0:
                if changed and time.monotonic() - sent >= UPDATE_SECONDS:
                    yield update(views={lane: views[lane] for lane in changed})
                    sent, changed = time.monotonic(), set()
                await asyncio.sleep(min(wait, UPDATE_SECONDS))
            views[due.lane].add(due.round)
            changed.add(due.lane)
        yield outcome(traces, views)

    def stop(self, request: gr.Request) -> str:
        """End the lane that runs, or the playing; what there is stays."""
        self.desk.visit(request.session_hash).halt_beside()
        return note(STOPPED)

    def save(self, request: gr.Request) -> tuple[Any, Any]:
        """Tell the page to save all lanes as one file."""
        traces = self.desk.visit(request.session_hash).compared
        if not traces:
            return gr.skip(), note("Nothing to save yet: compare something first.")
        return errand(
            kind="save", name="comparison.json", text=compare.Comparison(lanes=tuple(traces)).to_json()
        ), gr.skip()

    def _asked(self, prompt: str, rest: Sequence[Any]) -> list[RunRequest]:
        lanes, row = rest[: compare.MOST], rest[compare.MOST :]
        values = settings.as_values(row)
        if isinstance(prompt, str) and prompt.strip():
            values["prompt"] = prompt
        return compare.lane_requests(settings.to_request(values, self.live.pairs()), [lane for lane in lanes if lane])

    def _lane(
        self, seat: Starts, show: Show, lane: int, wanted: RunRequest, compared: list[Trace]
    ) -> Iterator[list[Any]]:
        view, cadence = LaneView(), Cadence(UPDATE_SECONDS)
        try:
            with closing(self.live.records(show, wanted, seat)) as records:
                for record in records:
                    if isinstance(record, Round):
                        view.add(record)
                    elif isinstance(record, Trace):
                        view.begin(record)
                    else:
                        view.wait(*record)
                    if cadence.due:
                        with cadence.update():
                            yield update(views={lane: view})
        finally:
            show.stop.set()
            show.over.set()
            if show.trace is not None and show.trace.rounds:
                compared.append(show.trace)
        if show.trace is None or show.trace.stop_reason == "cancelled":
            raise CactusError(STOPPED)
        view.finish(show.trace)
        yield update(views={lane: view})


def update(status: str | None = None, views: dict[int, LaneView] | None = None, ends: Sequence[str] = ()) -> list[Any]:
    """The values to send: of the status, of these lanes, and of table, figure and partings; all else stays."""
    views = views or {}
    figures = [views[lane].figures if lane in views else gr.skip() for lane in range(LANES)]
    texts = [views[lane].text if lane in views else gr.skip() for lane in range(LANES)]
    return [status or gr.skip(), *figures, *texts, *(ends or [gr.skip()] * 3)]


def _first(status: str, views: Sequence[LaneView] = ()) -> list[Any]:
    """Everything afresh: lanes that do not run are empty."""
    lanes = {lane: views[lane] if lane < len(views) else LaneView() for lane in range(LANES)}
    for lane in range(len(views) if views else LANES, LANES):
        lanes[lane].figures = note("")
    return update(
        note(status), lanes, ends=[to_json(table([], [])), drawing(trade([]).to_json(), {}), to_json(table([], []))]
    )


def _begun(trace: Trace) -> LaneView:
    view = LaneView()
    view.begin(trace)
    return view


def outcome(traces: Sequence[Trace], views: Sequence[LaneView]) -> list[Any]:
    """The end: every lane finished, the table, the figure, where the texts part."""
    partings = {parting.lane: parting for parting in compare.partings(traces)}
    for lane, (trace, view) in enumerate(zip(traces, views, strict=True)):
        view.finish(trace, partings.get(lane))
    results = compare.results(traces)
    ends = [
        to_json(result_table(results, traces)),
        drawing(trade(results).to_json(), {}),
        to_json(parting_table(traces)),
    ]
    return update(views=dict(enumerate(views)), ends=ends)


def result_table(results: Sequence[LaneResult], traces: Sequence[Trace]) -> dict[str, Any]:
    """The table, the same as the command line's."""
    how = "Speedup: seconds per token of the first lane, measured in its own run, ÷ this lane's, without the prompt."
    return table(compare.HEADINGS, [compare.cells(result) for result in results], f"Seed {traces[0].seed}. {how}")


def parting_table(traces: Sequence[Trace]) -> dict[str, Any]:
    """Where each text leaves the one it follows longest, with what either goes on with."""
    rows = []
    for parting in compare.partings(traces):
        own, other = traces[parting.lane], traces[parting.other]
        where = "the same text" if parting.same else f"after {parting.tokens} tokens"
        goes_on = [cell(_onwards(trace, parting.tokens), kind="excerpt") for trace in (own, other)]
        rows.append([compare.label(own), cell(compare.label(other), kind="name"), where, *goes_on])
    head = ["lane", "follows", "parts", "and writes", "where the other has"]
    return table(head, rows, "Marked ⋔ in the lane's text.") if rows else table([], [])


def _onwards(trace: Trace, tokens: int) -> str:
    text = "".join(token.text for token in trace.tokens[tokens:]).replace("\n", " ↵ ")
    if not text:
        return "(it ends)"
    return text[:SHOWN_CHARACTERS] + ("…" if len(text) > SHOWN_CHARACTERS else "")


def trade(results: Sequence[LaneResult]) -> go.Figure:
    """Speedup against divergence, one point a lane."""
    points = []
    for result, (color, symbol) in zip(results, LOOKS, strict=False):
        spent = result.metrics.mean_output_kl or 0.0
        points.append(
            go.Scatter(
                x=[spent], y=[result.speedup], name=result.label, mode="markers", cliponaxis=False,
                marker={"color": color, "symbol": symbol, "size": 12},
                hovertemplate=result.label + ": %{y:.2f}×, %{x:.3f} nats a verdict<extra></extra>",
            )
        )  # fmt: skip
    even = line("1× (verifier alone)", GREY, 1, "dot", "1×")
    reach = max([0.1, *(result.metrics.mean_output_kl or 0.0 for result in results)]) * 1.1
    even.update(x=[0, reach], y=[1, 1], showlegend=False)
    figure = bare([even, *points], "Speedup against divergence", "KL(output‖q), nats a verdict", "speedup (×)")
    figure.update_xaxes(range=[-0.03 * reach, reach], autorangeoptions=None)
    return figure.update_yaxes(rangemode="tozero")
