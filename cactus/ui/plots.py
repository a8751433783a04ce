"""Rounds → the four live plots.

A plot is a figure without points (`figure`) and the points that a round adds to its traces (`points`): the page
appends them, so the work and the traffic of a run grow with its length and no faster. The `x` and `y` come from
`metrics` or from the records as they are. Knows nothing of the browser.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import plotly.graph_objects as go

from cactus.metrics import PositionCount, SeriesPoint, Tally, series_point
from cactus.trace import Round, Trace
from cactus.ui.figures import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, bare, dots, line, remark

HATCH = {"size": 4, "solidity": 0.3, "fillmode": "overlay"}
Points = dict[int, dict[str, list[Any]]]
"""Trace index → attribute → values to append."""


@dataclass(frozen=True)
class Plot(ABC):
    """A live plot of a run with these settings: its bare figure, and what one round adds to it.

    m: the longest draft; measured: whether there is a baseline; delta: the budget, where the method has one.
    """

    replaces: ClassVar[bool] = False  # whether `points` are the whole plot (true) or an addition to it
    shows_baseline: ClassVar[bool] = False

    m: int
    measured: bool
    delta: float | None

    @classmethod
    def of(cls, header: Trace) -> Plot:
        """The plot of a run with these settings."""
        delta = header.params.get("delta")
        known = float(delta) if isinstance(delta, (int, float)) else None
        return cls(header.draft_limit, header.baseline is not None, known)

    def say_if_alone(self, figure: go.Figure) -> None:
        """Where nothing is drafted, an empty plot says why."""
        if not self.m:
            remark(figure, "the verifier alone drafts nothing")

    @abstractmethod
    def figure(self) -> go.Figure:
        """The figure without points."""

    @abstractmethod
    def points(self, round_: Round, point: SeriesPoint, positions: Sequence[PositionCount]) -> Points:
        """What this round adds, or all there is to see after it."""


class AcceptedLength(Plot):
    """Bars per round, coloured and hatched by how the round ended, with the running mean."""

    endings: ClassVar = {
        "recovered": (0, "rejection", ORANGE, "/"),
        "bonus": (1, "all accepted", BLUE, ""),
        "accepted": (2, "cut short", GREY, "x"),
        "sampled": (2, "cut short", GREY, "x"),
    }

    def figure(self) -> go.Figure:
        looks = dict(sorted((index, look) for index, *look in self.endings.values()))
        bars = [
            go.Bar(
                x=[], y=[], name=name, width=0.85,
                marker={"color": color, "pattern": {"shape": hatch} | HATCH},
                hovertemplate="round %{x}: %{y} accepted<extra></extra>",
            )
            for name, color, hatch in looks.values()
        ]  # fmt: skip
        mean = go.Scatter(
            x=[], y=[], name="mean", mode="lines", line={"color": VIOLET, "width": 2},
            hovertemplate="mean of rounds 1–%{x}: %{y:.2f}<extra></extra>",
        )  # fmt: skip
        figure = bare([*bars, mean], "Accepted length per round", "round", "tokens accepted (AL)")
        figure.update_layout(barmode="overlay")
        self.say_if_alone(figure)
        return figure.update_yaxes(range=[0, max(self.m, 1) + 0.3], tick0=0, dtick=max(1, math.ceil(self.m / 5)))

    def points(self, round_: Round, point: SeriesPoint, positions: Sequence[PositionCount]) -> Points:
        if not self.m:
            return {}
        index, number = self.endings.get(point.ended, self.endings["accepted"])[0], point.round_index + 1
        return {
            index: {"x": [number], "y": [point.accepted_length]},
            3: {"x": [number], "y": [point.mean_accepted_length]},
        }


class Speedup(Plot):
    """Measured speedup over generated tokens, the ideal one, and 1×."""

    shows_baseline = True

    def figure(self) -> go.Figure:
        figure = bare(
            [
                line("measured", GREEN, 2.5, "solid", "%{x} tokens: %{y:.2f}× measured"),
                line("ideal", GREY, 1.5, "dash", "%{x} tokens: %{y:.2f}× ideal"),
                line("1× (verifier alone)", RED, 1, "dot", "1×: the verifier alone"),
            ],
            "Speedup over the verifier alone", "generated tokens", "speedup (×)",
        )  # fmt: skip
        if not self.measured:
            remark(figure, "the verifier alone was not measured")
        return figure.update_yaxes(rangemode="tozero")

    def points(self, round_: Round, point: SeriesPoint, positions: Sequence[PositionCount]) -> Points:
        ys = (point.speedup, point.ideal_speedup, 1.0)
        return {index: {"x": [point.generated_tokens], "y": [value]} for index, value in enumerate(ys)}


class ByPosition(Plot):
    """Acceptance by place in the draft: of those judged there, and of all drafted."""

    replaces = True

    def figure(self) -> go.Figure:
        judged = go.Bar(
            x=[], y=[], name="of those judged here", marker={"color": GREEN, "opacity": 0.75},
            hovertemplate="draft %{x}: %{y:.0%} of those judged<extra></extra>",
        )  # fmt: skip
        survive = go.Scatter(
            x=[], y=[], name="of all drafted", mode="lines+markers",
            line={"color": VIOLET, "width": 2}, marker={"size": 6},
            hovertemplate="draft %{x}: %{y:.0%} of all drafted<extra></extra>",
        )  # fmt: skip
        figure = bare([judged, survive], "Acceptance by draft position", "draft position", "accepted (share)")
        self.say_if_alone(figure)
        figure.update_xaxes(range=[0.4, max(self.m, 1) + 0.6], dtick=1 if self.m <= 8 else 2, tick0=1)
        return figure.update_yaxes(range=[0, 1.05], tickformat=".0%", dtick=0.25)

    def points(self, round_: Round, point: SeriesPoint, positions: Sequence[PositionCount]) -> Points:
        places = [count.position for count in positions]
        return {
            0: {"x": places, "y": [count.acceptance_rate for count in positions]},
            1: {"x": places, "y": [count.survival_rate for count in positions]},
        }


class Divergence(Plot):
    """What every judged token spent, against δ where the method declares one."""

    def figure(self) -> go.Figure:
        traces = [
            dots("h, accepted", GREEN, "circle"),
            dots("h, rejected", RED, "x"),
            line("output", BLUE, 1, "solid", "token %{x}: %{y:.3g} nats in the output"),
        ]
        if self.delta is not None:
            traces.append(line(f"δ = {self.delta:g}", VIOLET, 1.5, "dash", f"budget δ = {self.delta:g} nats a step"))
        figure = bare(traces, "Divergence per token: KL(h‖q), KL(output‖q)", "token", "divergence (nats)")
        self.say_if_alone(figure)
        return figure.update_yaxes(rangemode="tozero")

    def points(self, round_: Round, point: SeriesPoint, positions: Sequence[PositionCount]) -> Points:
        judged = [token for token in round_.tokens if token.judged]
        added: Points = {}
        for index, status in enumerate(("accepted", "rejected")):
            chosen = [token for token in judged if token.status == status and token.kl is not None]
            added[index] = {"x": [t.position + 1 for t in chosen], "y": [_finite(t.kl) for t in chosen]}
        places = [token.position + 1 for token in judged]
        added[2] = {"x": places, "y": [_finite(token.output_kl) for token in judged]}
        if self.delta is not None:
            added[3] = {"x": places, "y": [self.delta] * len(places)}
        return added


KINDS: tuple[type[Plot], ...] = (AcceptedLength, Speedup, ByPosition, Divergence)


@lru_cache(maxsize=256)
def figure_line(plot: Plot) -> str:
    """The line that starts a plot afresh. Kept, since the drawing library takes long to make a figure."""
    return f'{{"figure":{plot.figure().to_json()}}}\n'


def points_line(plot: Plot, added: Points) -> str:
    """The line that adds points to a plot, or replaces them."""
    kind = "replace" if plot.replaces else "extend"
    return json.dumps({kind: added}, separators=(",", ":"), allow_nan=False) + "\n"


def merge(plot: Plot, batches: Iterable[Points]) -> Points:
    """Several rounds' points as one addition."""
    merged: Points = {}
    for batch in batches:
        if plot.replaces:
            merged = batch
            continue
        for index, attributes in batch.items():
            target = merged.setdefault(index, {name: [] for name in attributes})
            for name, values in attributes.items():
                target[name] += values
    return merged


def figures(trace: Trace) -> list[go.Figure]:
    """The four plots of a whole trace, as the page shows them at its end."""
    plots = [kind.of(trace) for kind in KINDS]
    tally = Tally(trace.baseline.seconds_per_token if trace.baseline else None)
    batches: list[list[Points]] = [[] for _ in plots]
    for round_ in trace.rounds:
        tally.add(round_)
        point = series_point(tally, round_)
        for plot, batch in zip(plots, batches, strict=True):
            batch.append(plot.points(round_, point, tally.positions))
    return [_with(plot.figure(), merge(plot, batch)) for plot, batch in zip(plots, batches, strict=True)]


def _with(figure: go.Figure, points: Points) -> go.Figure:
    for index, attributes in points.items():
        figure.data[index].update(attributes)
    return figure


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
