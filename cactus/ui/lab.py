"""The theory lab: two editable distributions → tables and figures of every rule on them.

`cactus.theory` works everything out; here it is only put into words, cells and figures. Knows no model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import gradio as gr

from cactus import theory
from cactus.acceptance import RULES, Guarantee, Parameter
from cactus.acceptance.lift import DELTA
from cactus.divergence import DIVERGENCES
from cactus.errors import CactusError
from cactus.theory import Position, RuleStep, Step
from cactus.trace import Token, Trace
from cactus.ui.desk import Desk
from cactus.ui.lab_figures import cost_points, figures, lift_points, trade_points
from cactus.ui.notes import say
from cactus.ui.parts import markup, widget
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


class LabHandlers:
    """Sends a token of this tab's run to the lab."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def pick(self, request: gr.Request, event: gr.EventData) -> tuple[Any, Any, Any]:
        """What the lab opens with, the tab to show, and what to say where there is nothing to send."""
        trace = self.desk.visit(request.session_hash).show.trace
        try:
            return opening(theory.position(_picked(trace, event._data))), gr.Tabs(selected="lab"), gr.skip()
        except ValueError as error:
            return gr.skip(), gr.skip(), say(str(error))


def _picked(trace: Trace | None, data: Any) -> Token:
    """The token at data["index"], counted over all records of the run. `CactusError` where there is none."""
    if trace is None:
        raise CactusError("The lab takes tokens of a run that has ended.")
    tokens = [token for round_ in trace.rounds for token in round_.tokens]
    index = data.get("index") if isinstance(data, dict) else None
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise CactusError(f"token {index!r:.20} is not in the run, which has {len(tokens)}")
    return tokens[index]


def build_lab() -> gr.HTML:
    """The whole tab: one element that keeps its own settings and asks for what follows from them."""
    return widget("lab", "lab", opening(), markup("lab.html"), server=(derive,))


def opening(position: Position | None = None, preset: theory.Preset = theory.PRESETS[0]) -> str:
    """What the lab starts with: the rules and what can be set, the presets, a preset or a position that was sent."""
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
        "rows": _rows(position or preset),
        "drafted": (position or preset).drafted,
        "note": _estimates(position) if position else preset.shows,
        "preset": "" if position else preset.name,
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
        return exact + ", all probabilities as recorded; all other tokens count as one."
    return (
        exact + f" and the recorded top 5 of both models; {guessed} probabilities were not recorded and are "
        "estimated; all other tokens count as one."
    )


def _digits(value: float) -> str:
    """A number for the eye, without the noise of the last bits."""
    return number(round(value, 12) + 0.0) or ""


def _shown(name: object) -> str:
    text = str(name)[:40]
    return text if text.strip() == text and text else json.dumps(text, ensure_ascii=False)


def _facts(step: Step, draft: Sequence[float], verifier: Sequence[float]) -> list[list[str]]:
    facts = [
        ["lossless acceptance, 1 − TV", _digits(1 - step.tv)],
        ["KL(p‖q)", _digits(step.kl)],
        ["H(p)", _digits(step.draft_entropy)],
        ["H(q)", _digits(step.verifier_entropy)],
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
        _digits(worked.output_kl),
        _digits(worked.output_tv),
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
        _digits(worked.boosted_prob),
        _digits(worked.accept_probs[drafted]),
        *(_bounded(value, *bounds.get(name, (None, 0.0))) for name, value in spent.items()),
    ]


def _bounded(value: float, guarantee: Guarantee | None, spent: float) -> Cell:
    if guarantee is None:
        return _digits(value)
    holds = spent <= guarantee.bound + ROUNDING
    return cell(f"{_digits(value)} ≤ {_digits(guarantee.bound)}", kind="bound" if holds else "bad", title=guarantee.why)


def _named(worked: RuleStep) -> Cell:
    rule = worked.rule
    return cell(rule.label + (" · lossless" if rule.lossless else ""), title=f"{rule.summary}\n{rule.formula}")
