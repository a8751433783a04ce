"""The figures of the theory lab, without points, and the points that an answer brings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import plotly.graph_objects as go

from cactus.divergence import taylor_boosted_prob
from cactus.theory import BoostCurve, RuleStep, Step
from cactus.ui.figures import BLUE, GREEN, GREY, ORANGE, VIOLET, bare, line
from cactus.ui.plots import Points

PLANE = (760, 190)  # pixels of the plane of all rules on a wide screen
SHIFTS = {
    f"{height} {side}": (right, above)
    for height, above in (("top", 1), ("bottom", -1), ("middle", 0))
    for side, right in (("center", 0), ("right", 1), ("left", -1))
    if (above, right) != (0, 0)
}


@cache
def figures() -> tuple[str, ...]:
    """The three figures without points, as JSON: γ* over q(n), what it spends, and all rules in one plane."""
    lift = [
        line("lossless", GREY, 1, "dot", "q = %{x:.3f}: stays"),
        line("exact", BLUE, 2, "dash", "q = %{x:.3f}: exact γ* = %{y:.3f}"),
        go.Scatter(x=[], y=[], name="overspends δ", mode="lines", line={"width": 0}, fill="tonexty",
                   fillcolor="rgba(217,115,13,.4)", hoverinfo="skip"),
        line("Taylor", GREEN, 2, "solid", "q = %{x:.3f}: Taylor γ* = %{y:.3f}"),
        _markers(VIOLET, "diamond", "marked token: q = %{x:.3f}, Taylor γ* = %{y:.3f}", mode="markers"),
    ]  # fmt: skip
    lift[0].showlegend = False
    cost = [
        line("exact", BLUE, 2, "dash", "q = %{x:.3f}: exact spends %{y:.3g}"),
        line("Taylor", GREEN, 2, "solid", "q = %{x:.3f}: Taylor spends %{y:.3g}"),
        line("δ", VIOLET, 1.5, "dot", "δ = %{y:g}"),
        line("ln(1 + 2δ)", ORANGE, 1.5, "dashdot", "never above ln(1 + 2δ) = %{y:.3f}"),
    ]
    rules = _markers(GREEN, "circle", "%{customdata}<br>accepts %{y:.3f}, KL(output‖q) = %{x:.3g}", mode="markers+text")
    q, spent = "verifier probability q(n)", "spent of δ"
    made = (
        bare(lift, "γ* over q(n)", q, "boosted probability γ*"),
        bare(cost, "What it spends: D(h‖q)", q, spent),
        bare([rules], "Accepted against divergence", "KL(output‖q), nats", "drafts accepted"),
    )
    for figure in made[:2]:
        figure.update_xaxes(range=[0, 1], autorangeoptions=None)
    made[0].update_yaxes(range=[0, 1.03])
    made[1].update_yaxes(rangemode="tozero")
    made[2].update_xaxes(autorangeoptions={"include": [-0.04, 0.1], "clipmin": None}, rangemode="normal")
    made[2].update_yaxes(range=[0, 1.15], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1])
    return tuple(figure.to_json() for figure in (made[2], made[0], made[1]))


def _markers(color: str, symbol: str, hover: str, mode: str) -> go.Scatter:
    return go.Scatter(
        x=[], y=[], mode=mode, marker={"color": color, "size": 8, "symbol": symbol}, textfont={"size": 9.5},
        hovertemplate=hover + "<extra></extra>", showlegend=False, cliponaxis=False,
    )  # fmt: skip


def lift_points(curve: BoostCurve, verifier_prob: float) -> Points:
    """The first figure's points."""
    q, higher = curve.verifier_prob, [max(pair) for pair in zip(curve.taylor, curve.exact, strict=True)]
    lines = dict(enumerate({"x": q, "y": ys} for ys in (q, curve.exact, higher, curve.taylor)))
    marked = float(taylor_boosted_prob(verifier_prob, curve.delta))
    return lines | {4: {"x": [verifier_prob], "y": [marked]}}


def cost_points(curve: BoostCurve) -> Points:
    """The second figure's points; ln(1 + 2δ) bounds the KL divergence alone."""
    q, ends = curve.verifier_prob, [0, 1]
    bound = [math.log1p(2 * curve.delta)] * 2 if curve.divergence == "kl" else []
    spent = [[y if math.isfinite(y) else None for y in ys] for ys in (curve.exact_cost, curve.taylor_cost)]
    return {
        **{index: {"x": q, "y": ys} for index, ys in enumerate(spent)},
        2: {"x": ends, "y": [curve.delta] * 2},
        3: {"x": ends[: len(bound)], "y": bound},
    }


def trade_points(step: Step) -> tuple[Points, str]:
    """The third figure's points, rules in one place together, and who is left out for being infinitely far."""
    groups: dict[tuple[float, float], list[RuleStep]] = {}
    for worked in step.rules:
        place = round(worked.output_kl, 3) + 0.0, round(worked.expected_acceptance, 3)
        groups.setdefault(place, []).append(worked)
    shown = sorted(place for place in groups if math.isfinite(place[0]))
    names = [[worked.rule.name for worked in groups[place]] for place in shown]
    points = {
        "x": [groups[place][0].output_kl for place in shown],
        "y": [groups[place][0].expected_acceptance for place in shown],
        "text": [own[0] + (f" +{len(own) - 1}" if own[1:] else "") for own in names],
        "customdata": [", ".join(own) for own in names],
    }
    points["textposition"] = places(points["x"], points["y"], points["text"])
    apart = [worked.rule.name for place, steps in groups.items() if math.isinf(place[0]) for worked in steps]
    return {0: points}, f"Infinitely far from q, so not in the figure: {', '.join(apart)}." if apart else ""


def places(xs: Sequence[float], ys: Sequence[float], names: Sequence[str]) -> list[str]:
    """Where each point's name stands so that it covers no other, on a plane of PLANE pixels: greedy, in order."""
    across, up = PLANE[0] / (max(xs, default=0.0) + 0.14), PLANE[1] / 1.15
    taken = [(x * across - 5, y * up - 5, x * across + 5, y * up + 5) for x, y in zip(xs, ys, strict=True)]
    chosen = []
    for x, y, name in zip(xs, ys, names, strict=True):
        boxes = {place: _box(x * across, y * up, 5.6 * len(name), *shift) for place, shift in SHIFTS.items()}
        place = min(boxes, key=lambda place: sum(_overlap(boxes[place], other) for other in taken))
        taken.append(boxes[place])
        chosen.append(place)
    return chosen


def _box(x: float, y: float, width: float, right: float, above: float) -> tuple[float, float, float, float]:
    """Left, bottom, right, top of a name; `right` and `above` in -1, 0, 1 say on which side of the point it stands."""
    left, bottom = x + right * 8 - width * (1 - right) / 2, y + above * 7 - 11 * (1 - above) / 2
    return left, bottom, left + width, bottom + 11


def _overlap(box: tuple[float, ...], other: tuple[float, ...]) -> float:
    wide, high = min(box[2], other[2]) - max(box[0], other[0]), min(box[3], other[3]) - max(box[1], other[1])
    return max(0.0, wide) * max(0.0, high)
