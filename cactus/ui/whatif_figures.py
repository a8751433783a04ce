"""The figures of the what-if tab: expected accepted length, acceptance by position, divergence along the text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import plotly.graph_objects as go

from cactus import sequence, whatif
from cactus.acceptance import RULES, Rule, make_rule
from cactus.acceptance.lift import DELTA
from cactus.trace import Trace
from cactus.ui.figures import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, bare, drawing, line

GRID = (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
COLORS = (GREEN, BLUE, VIOLET, ORANGE, RED, GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CHAIN = (
    "By the chain rule the divergence of the whole text is the expected sum of its steps' divergences. One run shows "
    "one such sum; its mean over many runs is how far texts made this way are from the verifier's own."
)
MARKS = (("recorded run", GREY, "square"), ("this choice", GREEN, "diamond"), ("for real", RED, "star"))
Points = Mapping[int, Mapping[str, Any]]


@cache
def _bare() -> tuple[str, str, str]:
    """The three figures without points, as JSON."""
    curves = [
        line(name, COLORS[index % 6], 2, DASHES[index % 6], f"{name}, δ = %{{x:g}}: %{{y:.2f}} expected")
        for index, name in enumerate(whatif.SCALAR_RULES)
    ]
    length = bare(
        [*curves, *(_mark(*look) for look in MARKS)],
        "Expected accepted length as δ moves", "budget δ, nats", "accepted length (AL)",
    )  # fmt: skip
    length.update_xaxes(range=[-0.06, GRID[-1]], autorangeoptions=None).update_yaxes(rangemode="tozero")
    places = bare(
        [
            go.Bar(x=[], y=[], name="recorded", marker={"color": GREY, "opacity": 0.6},
                   hovertemplate="draft %{x}: %{y:.0%} recorded<extra></extra>"),
            go.Bar(x=[], y=[], name="expected", marker={"color": GREEN, "opacity": 0.85},
                   hovertemplate="draft %{x}: %{y:.0%} expected<extra></extra>"),
            _mark(*MARKS[2]),
        ],
        "Acceptance by draft position, of those judged", "draft position", "accepted (share)",
    )  # fmt: skip
    places.update_layout(barmode="group")
    places.update_xaxes(dtick=1, autorangeoptions=None).update_yaxes(range=[0, 1.05], tickformat=".0%", dtick=0.25)
    spent = bare(
        [
            line("Σ KL(output‖q)", BLUE, 2.5, "solid", "token %{x}: %{y:.3g} nats in the output so far"),
            line("Σ KL(h‖q)", GREEN, 1.5, "dash", "token %{x}: %{y:.3g} nats aimed so far"),
            line("budget B", VIOLET, 1.5, "dot", "budget of the text: %{y:g} nats"),
        ],
        "Divergence along the text", "token", "spent so far, nats",
    )  # fmt: skip
    spent.update_yaxes(rangemode="tozero")
    return length.to_json(), places.to_json(), spent.to_json()


def _mark(name: str, color: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        x=[], y=[], name=name, mode="markers", cliponaxis=False,
        marker={"color": color, "symbol": symbol, "size": 11, "line": {"width": 1, "color": "#fff"}},
        hovertemplate=name + ": %{y:.2f}<extra></extra>",
    )  # fmt: skip


def empty(index: int) -> str:
    """A figure before there is a run."""
    return drawing(_bare()[index], {})


def curves(trace: Trace) -> Points:
    """The expected accepted length of each rule over δ; where a rule has none, its default, at any δ."""
    points = {}
    for index, name in enumerate(whatif.SCALAR_RULES):
        if DELTA in RULES[name].parameters:
            points[index] = {"x": list(GRID), "y": whatif.sweep(trace, name, DELTA.name, GRID, {})}
        else:
            points[index] = {"x": [0.0, GRID[-1]], "y": whatif.accepted_lengths(trace, [make_rule(name)]) * 2}
    return points


def length(trace: Trace, curves: Points, rule: Rule, outlook: whatif.Outlook, overlay: Trace | None) -> str:
    """All rules over δ, with the recorded run, the choice and the real run as points."""
    at = len(whatif.SCALAR_RULES)
    points = dict(curves)
    points[at] = _at(trace.params.get(DELTA.name), trace.metrics().accepted_length)
    points[at + 1] = _at(rule.params.get(DELTA.name), outlook.accepted_length)
    if overlay is not None:
        points[at + 2] = _at(rule.params.get(DELTA.name), overlay.metrics().accepted_length)
    return drawing(_bare()[0], points)


def _at(delta: Any, value: float | None) -> dict[str, list[Any]]:
    """A point over its δ; at the left edge for a rule that has none."""
    return {"x": [delta if isinstance(delta, (int, float)) else 0.0], "y": [value]}


def positions(trace: Trace, outlook: whatif.Outlook, overlay: Trace | None) -> str:
    """By draft position: what was recorded, what is expected, and what a real run gave."""
    points: dict[int, Mapping[str, Any]] = {
        0: _rates(trace),
        1: {"x": [place.position for place in outlook.places], "y": [p.acceptance_rate for p in outlook.places]},
    }
    if overlay is not None:
        points[2] = _rates(overlay)
    return drawing(_bare()[1], points)


def _rates(trace: Trace) -> dict[str, list[Any]]:
    counts = trace.metrics().positions
    return {"x": [count.position for count in counts], "y": [count.acceptance_rate for count in counts]}


def spent(trace: Trace) -> str:
    """What the text spent, token by token, against the budget where the method has one for the whole text."""
    sums = sequence.spending(trace)
    places = [point.position + 1 for point in sums]
    points: dict[int, Mapping[str, Any]] = {
        0: {"x": places, "y": [_finite(point.output) for point in sums]},
        1: {"x": places, "y": [_finite(point.aimed) for point in sums]},
    }
    budget = trace.params.get("budget")
    if isinstance(budget, (int, float)) and places:
        points[2] = {"x": [1, places[-1]], "y": [budget, budget]}
    return drawing(_bare()[2], points)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
