"""The theory lab: two editable distributions → tables and figures of every rule on them.

`cactus.theory` works everything out; here it is only put into words, cells and figures. Knows no model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from cactus import theory
from cactus.acceptance import RULES, Guarantee, Parameter
from cactus.acceptance.lift import DELTA
from cactus.divergence import DIVERGENCES, taylor_boosted_prob
from cactus.theory import BoostCurve, Position, RuleStep, Step
from cactus.ui.figures import BLUE, GREEN, GREY, ORANGE, VIOLET, bare, line
from cactus.ui.parts import markup, widget
from cactus.ui.plots import Points
from cactus.ui.render import number
from cactus.ui.table import Cell, bar, cell, table

QUANTITIES = {
    "accept_probs": ("accept a(x)", "Chance that a token is accepted once it was drafted."),
    "adjusted_probs": ("aim h(x)", "What the rule aims at once the marked token was drafted."),
    "recovery_probs": ("recovery g(x)", "What is drawn from once the marked token was drafted and rejected."),
    "output_probs": ("output", "What one step emits, all told: the distribution of the next token of the text."),
}
READS = {"scalar": "q(n) alone", "vocabulary": "all of q"}
CURVE = (
    Parameter("delta", "Budget δ", 0.2, "Of the curves below.", 0.0, 5.0, 0.05),
    Parameter("divergence", "Divergence D", "kl", "What δ measures.", choices=tuple(DIVERGENCES)),
)
ROUNDING = 1e-9
PLANE = (760, 190)  # pixels of the plane of all rules on a wide screen
SHIFTS = {
    f"{height} {side}": (right, above)
    for height, above in (("top", 1), ("bottom", -1), ("middle", 0))
    for side, right in (("center", 0), ("right", 1), ("left", -1))
    if (above, right) != (0, 0)
}


def build_lab() -> gr.HTML:
    """The whole tab: one element that keeps its own settings and asks for what follows from them."""
    return widget("lab", "lab", opening(), markup("lab.html"), server=(derive,))


def opening(position: Position | None = None) -> str:
    """What the lab starts with: the rules and what can be set, the presets, and the position of a run that was sent."""
    first = theory.PRESETS[0]
    record = {
        "presets": [asdict(preset) for preset in theory.PRESETS],
        "rules": [
            {"name": rule.name, "label": rule.label, "title": f"{rule.summary}\n{rule.formula}",
             "parameters": [asdict(_opened(parameter)) for parameter in rule.parameters]}
            for rule in RULES.values() if rule.parameters
        ],
        "curve": [asdict(parameter) for parameter in CURVE],
        "figures": [json.loads(figure) for figure in figures()],
        "quantities": [{"name": name, "label": label, "title": title} for name, (label, title) in QUANTITIES.items()],
        "limits": [theory.FEWEST, theory.MOST],
        "rows": _rows(position) if position else _rows(first),
        "drafted": (position or first).drafted,
        "note": _estimates(position) if position else first.shows,
        "preset": "" if position else first.name,
    }  # fmt: skip
    return json.dumps(record, ensure_ascii=False).replace("<", "\\u003c")


def _opened(parameter: Parameter) -> Parameter:
    """What the lab opens with: over a few tokens the usual δ would accept everything."""
    return replace(parameter, default=CURVE[0].default) if parameter is DELTA else parameter


def derive(state: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to the page: tables and figures, or what is wrong with what was entered."""
    try:
        return _derived(state)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"error": str(error) if isinstance(error, ValueError) else f"not a state of the lab: {error!r:.80}"}


def _derived(state: Mapping[str, Any]) -> dict[str, Any]:
    names, draft, verifier = zip(*state["rows"], strict=True)
    rules = list(theory.make_rules(state["params"]).values())
    step = theory.work_out(draft, verifier, state["drafted"], rules)
    curve = theory.boost_curve(*(parameter.check(state["curve"][parameter.name]) for parameter in CURVE))
    labels = [_shown(name) for name in names]
    lift = lift_points(curve, step.verifier_probs[state["drafted"]])
    trade, apart = trade_points(step)
    return {
        "facts": _facts(step, draft, verifier),
        "matrix": matrix(step, labels, state["quantity"], state["drafted"]),
        "verdicts": verdicts(step, labels[state["drafted"]], state["drafted"]),
        "points": [
            {str(index): trace for index, trace in drawn.items()} for drawn in (trade, lift, cost_points(curve))
        ],
        "apart": apart,
    }


def _rows(source: Position | theory.Preset) -> list[list[Any]]:
    return [list(row) for row in zip(source.tokens, source.draft_probs, source.verifier_probs, strict=True)]


def _estimates(position: Position) -> str:
    guessed = sum(position.draft_estimated) + sum(position.verifier_estimated)
    exact = f"From a run: the drafted token {json.dumps(position.tokens[position.drafted], ensure_ascii=False)}"
    if not guessed:
        return exact + ", all probabilities as recorded."
    return (
        exact + f" and the recorded top 5 of both models; {guessed} probabilities were not recorded and are estimated."
    )


def _shown(name: object) -> str:
    text = str(name)[:40]
    return text if text.strip() == text and text else json.dumps(text, ensure_ascii=False)


def _facts(step: Step, draft: Sequence[float], verifier: Sequence[float]) -> list[list[str]]:
    facts = [
        ["lossless acceptance, 1 − TV", number(1 - step.tv)],
        ["KL(p‖q)", number(step.kl)],
        ["H(p)", number(step.draft_entropy)],
        ["H(q)", number(step.verifier_entropy)],
    ]
    for name, given in (("p", draft), ("q", verifier)):
        if not math.isclose(sum(given), 1, abs_tol=5e-4):
            facts.append([f"Σ{name} = {number(sum(given))}, worked with", f"{name}/Σ{name}"])
    return facts  # type: ignore[return-value]


def matrix(step: Step, labels: Sequence[str], quantity: str, drafted: int) -> dict[str, Any]:
    """Rules × tokens for one quantity, and what it comes to over all tokens; p and q above."""
    marked = [f"▸ {label}" if index == drafted else label for index, label in enumerate(labels)]
    head = ["rule", *marked, cell("accepted", title="Σ p·a: the share of drafts accepted"), "KL(output‖q)", "TV"]
    given = [
        [cell(name, kind="given", title=title), *map(bar, probs), "", "", ""]
        for name, title, probs in (
            ("draft p", "What the draft model proposes from", step.draft_probs),
            ("verifier q", "What the verifier would draw from", step.verifier_probs),
        )
    ]
    return table(head, [*given, *(_matrix_row(worked, quantity) for worked in step.rules)])


def _matrix_row(worked: RuleStep, quantity: str) -> list[Cell]:
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity must be one of {', '.join(QUANTITIES)}, got {quantity!r:.40}")
    return [
        _named(worked),
        *map(bar, getattr(worked, quantity)),
        bar(worked.expected_acceptance),
        number(worked.output_kl) or "",
        number(worked.output_tv) or "",
    ]


def verdicts(step: Step, label: str, drafted: int) -> dict[str, Any]:
    """What each rule makes of the marked token, what is guaranteed, and what it came to."""
    head = ["rule", cell("reads", title="What a verdict depends on, besides p(n)"), "γ* = h(n)", f"accepts {label}"]
    return table(
        [*head, "KL(h‖q)", "KL(output‖q)", "KL(q‖output)"], [_verdict(worked, drafted) for worked in step.rules]
    )


def _verdict(worked: RuleStep, drafted: int) -> list[Cell]:
    bounds = {guarantee.of: (guarantee, spent) for guarantee, spent in worked.guarantees}
    spent = {
        "KL(h‖q)": worked.adjusted_kl,
        "KL(output‖q)": worked.output_kl,
        "KL(q‖output)": worked.output_reverse_kl,
    }
    return [
        _named(worked),
        READS[worked.rule.reads],
        number(worked.boosted_prob) or "",
        number(worked.accept_probs[drafted]) or "",
        *(_bounded(value, *bounds.get(name, (None, 0.0))) for name, value in spent.items()),
    ]


def _bounded(value: float, guarantee: Guarantee | None, spent: float) -> Cell:
    if guarantee is None:
        return number(value) or ""
    holds = spent <= guarantee.bound + ROUNDING
    return cell(f"{number(value)} ≤ {number(guarantee.bound)}", kind="bound" if holds else "bad", title=guarantee.why)


def _named(worked: RuleStep) -> Cell:
    rule = worked.rule
    return cell(rule.label + (" · lossless" if rule.lossless else ""), title=f"{rule.summary}\n{rule.formula}")


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
