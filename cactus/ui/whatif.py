"""The tab behind a run: what it had been under other settings, and what its text spent as a whole.

Numbers come from `cactus.whatif` and `cactus.sequence`; the run is the one that this visitor's Playground shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from cactus import whatif
from cactus.acceptance import RULES, Parameter, Rule, make_rule
from cactus.errors import CactusError
from cactus.faults import in_words
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.trace import Round, Trace
from cactus.ui import whatif_figures
from cactus.ui.controls import control
from cactus.ui.desk import Desk, Show
from cactus.ui.events import AT_ONCE, PRIVATE, on_models
from cactus.ui.live import LiveHandlers
from cactus.ui.notes import note
from cactus.ui.parts import widget
from cactus.ui.render import comparison, facts, number, summary

FIRST = "cactus"
NO_RUN = "Run something in the Playground, or load or replay a run there: then it can be asked what if."
PLOTS = ("whatif-length", "whatif-positions", "whatif-spent")


@dataclass
class WhatIfParts:
    """The components of the tab. params: one control for each declared parameter, in the order of `_own`."""

    rule: Any = None
    params: list[Any] = field(default_factory=list)
    groups: list[Any] = field(default_factory=list)
    rerun: Any = None
    stop: Any = None
    shown: list[Any] = field(default_factory=list)  # about the run, about the choice, the figures

    def row(self) -> list[Any]:
        return [self.rule, *self.params]


def _own() -> list[tuple[str, Parameter]]:
    """Every parameter that can be asked about, with its rule."""
    return [(name, parameter) for name in whatif.SCALAR_RULES for parameter in RULES[name].parameters]


def build_whatif() -> WhatIfParts:
    """Choice on the left, what follows on the right."""
    parts = WhatIfParts()
    with gr.Row(elem_id="whatif", equal_height=False):
        with gr.Column(elem_id="whatif-side", elem_classes="side", min_width=320, scale=0):
            with gr.Group(elem_classes="card"):
                about = widget("note", "whatif-run", note(NO_RUN))
                _choice(parts)
            with gr.Row(elem_classes="actions"):
                parts.rerun = gr.Button("Run it for real", elem_id="whatif-rerun", variant="primary", min_width=120)
                parts.stop = gr.Button("Stop", elem_id="whatif-stop", min_width=60)
            told = widget("note", "whatif-told")
        with gr.Column(elem_classes="main", min_width=320, scale=1):
            with gr.Row(elem_classes="figures"):
                figures = [widget("plot", PLOTS[0]), widget("plot", PLOTS[1])]
            figures.append(widget("plot", PLOTS[2]))
            widget("note", "whatif-chain", note(whatif_figures.CHAIN))
    parts.shown = [about, told, *figures]
    return parts


def _choice(parts: WhatIfParts) -> None:
    parts.rule = gr.Dropdown(
        [(RULES[name].label, name) for name in whatif.SCALAR_RULES], value=FIRST, label="Rule", filterable=False,
        info="Rules that read no more than p and q of the drafted token.", elem_id="whatif-rule",
    )  # fmt: skip
    for name in whatif.SCALAR_RULES:
        if RULES[name].parameters:
            with gr.Row(visible=name == FIRST) as group:
                for parameter in RULES[name].parameters:
                    parts.params.append(control(parameter, f"whatif-{name}-{parameter.name}".replace("_", "-")))
            parts.groups.append(group)


def wire_whatif(parts: WhatIfParts, tab: gr.Tab, live: LiveHandlers, desk: Desk) -> None:
    """Which event does what."""
    handlers = WhatIfHandlers(live, desk)
    tab.select(handlers.look, parts.row(), parts.shown, **AT_ONCE)
    latest = AT_ONCE | {"trigger_mode": "always_last"}
    parts.rule.change(_visible, parts.rule, parts.groups, **AT_ONCE)
    for given in parts.row():
        given.change(handlers.choose, parts.row(), parts.shown[1:-1], **latest)
    waiting = {"show_progress": "minimal", "show_progress_on": parts.shown[1]}
    models = on_models(live.session.limits)
    going = parts.rerun.click(handlers.rerun, parts.row(), parts.shown[1:-1], **waiting, **models, **PRIVATE)
    parts.stop.click(handlers.choose, parts.row(), parts.shown[1:-1], cancels=[going], **AT_ONCE)


def _visible(name: str) -> list[Any]:
    return [gr.update(visible=own == name) for own in whatif.SCALAR_RULES if RULES[own].parameters]


class WhatIfHandlers:
    """The events of the tab. Each reads the run of its own visitor."""

    def __init__(self, live: LiveHandlers, desk: Desk) -> None:
        self.live = live
        self.desk = desk

    def look(self, request: gr.Request, *row: Any) -> tuple[str, ...]:
        """The tab was opened: show the run as it is now."""
        trace = self.desk.visit(request.session_hash).show.trace
        if trace is None:
            return note(NO_RUN), note(), *(whatif_figures.empty(index) for index in range(len(PLOTS)))
        return (
            note("The run in the Playground:", facts(trace)),
            *self.choose(request, *row),
            whatif_figures.spent(trace),
        )

    def choose(self, request: gr.Request, *row: Any) -> tuple[str, ...]:
        """What the chosen rule had made of the run."""
        show = self.desk.visit(request.session_hash).show
        try:
            return self._shown(show, chosen_rule(row))
        except ValueError as error:
            return note(in_words(error), bad=True), whatif_figures.empty(0), whatif_figures.empty(1)

    def rerun(self, request: gr.Request, *row: Any) -> Iterator[tuple[str, ...]]:
        """Run the same settings under the chosen rule, and lay what comes over the expectation."""
        show = self.desk.visit(request.session_hash).show
        try:
            wanted = request_again(show, chosen_rule(row))
            yield from self._running(request, show, wanted, row)
        except Exception as error:
            yield note(in_words(error), bad=True), gr.skip(), gr.skip()

    def _running(
        self, request: gr.Request, show: Show, wanted: RunRequest, row: Sequence[Any]
    ) -> Iterator[tuple[Any, ...]]:
        again = self.desk.visit(request.session_hash).beside()
        show.rerun = None
        try:
            with closing(self.live.records(again, wanted)) as records:
                for record in records:
                    told = record[1] if isinstance(record, tuple) else "running"
                    if isinstance(record, Round) and record.index % 4:
                        continue
                    share = record.tokens[-1].position / wanted.max_new_tokens if isinstance(record, Round) else None
                    yield note(f"For real: {told}", share=share, busy=True), gr.skip(), gr.skip()
        finally:
            again.stop.set()
            again.over.set()
        show.rerun = again.trace
        yield self._shown(show, chosen_rule(row))

    def _shown(self, show: Show, rule: Rule) -> tuple[str, ...]:
        trace = _drafting(show.trace)
        curves = show.kept.get("curves") or show.kept.setdefault("curves", whatif_figures.curves(trace))
        outlook = whatif.outlook(trace, rule)
        again = show.rerun
        overlay = again if again and (again.method, again.params) == (rule.name, rule.params) else None
        return (
            note(*told(trace, outlook, overlay)),
            whatif_figures.length(trace, curves, rule, outlook, overlay),
            whatif_figures.positions(trace, outlook, overlay),
        )


def _drafting(trace: Trace | None) -> Trace:
    if trace is None:
        raise CactusError(NO_RUN)
    return trace


def chosen_rule(row: Sequence[Any]) -> Rule:
    """The rule that the controls describe. `ValueError` says what is not allowed."""
    name, *values = row
    if name not in whatif.SCALAR_RULES:
        raise CactusError(f"rule must be one of {', '.join(whatif.SCALAR_RULES)}, got {name!r:.40}")
    own = zip(_own(), values, strict=True)
    return make_rule(name, **{parameter.name: value for (owner, parameter), value in own if owner == name})


def request_again(show: Show, rule: Rule) -> RunRequest:
    """The run of this visitor asked for again, under another rule; a loaded trace does not hold a system prompt."""
    trace = _drafting(show.trace)
    fields: dict[str, Any] = {
        "pair": trace.pair, "num_draft_tokens": trace.num_draft_tokens, "max_new_tokens": trace.max_new_tokens,
        "seed": trace.seed, "sampling": SamplingParams(**trace.sampling), "prompt": trace.prompt, "raw": trace.raw,  # type: ignore[arg-type]
    }  # fmt: skip
    if show.wanted is not None:
        fields |= {"system": show.wanted.system, "stop": show.wanted.stop}
    return RunRequest(method=rule.name, params=rule.params, **fields)


def told(trace: Trace, outlook: whatif.Outlook, overlay: Trace | None) -> list[str]:
    """What is expected, how far it can be trusted, and what a real run made of it."""
    recorded = trace.metrics().accepted_length or 0.0
    lines = [f"Expected accepted length {outlook.accepted_length:.2f}; recorded {recorded:.2f}."]
    change = outlook.change
    if change is None:
        lines.append("No recorded verdict comes out otherwise, so this holds for the whole run.")
    else:
        u = comparison(change.token.uniform or 0.0, change.accept_prob)
        lines.append(
            f"Holds up to the first changed verdict: round {change.round_index + 1}, draft {change.place + 1}, where "
            f"{u} turns {change.token.status} into {'rejected' if change.token.status == 'accepted' else 'accepted'}. "
            "Behind it the drafts would have been others; so could a recovered token before it."
        )
    if overlay is not None:
        metrics = overlay.metrics()
        lines.append(f"For real: accepted length {number(metrics.accepted_length)}. {summary(overlay, metrics)}")
    return lines
