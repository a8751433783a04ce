"""One step worked out for two given distributions: what every rule accepts, aims at, recovers and emits.

Everything comes from the rules themselves and from `divergence`, in float64, so that these numbers are the library's
own. Knows no model and no page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus.acceptance import RULES, Guarantee, Rule, make_rule
from cactus.divergence import (
    binary_divergence,
    boosted_prob,
    entropy,
    kl,
    output_probs,
    taylor_boosted_prob,
    total_variation,
)
from cactus.errors import CactusError
from cactus.trace import Token, TopToken

FEWEST, MOST = 2, 12
CURVE_POINTS = 121


@dataclass(frozen=True)
class RuleStep:
    """One rule on one step, [vocab] lists in the order of the tokens; h, γ* and KL(h‖q) are those of the drafted token.

    expected_acceptance: Σ p·a. guarantees: each with the divergence it bounds, as it came out.
    """

    rule: Rule
    accept_probs: list[float]
    adjusted_probs: list[float]
    recovery_probs: list[float]
    output_probs: list[float]
    boosted_prob: float
    adjusted_kl: float
    output_kl: float
    output_reverse_kl: float
    output_tv: float
    expected_acceptance: float
    guarantees: tuple[tuple[Guarantee, float], ...]


@dataclass(frozen=True)
class Step:
    """A draft and a verifier distribution, and every rule on them. kl: KL(p‖q), tv: TV(p, q), entropies in nats."""

    draft_probs: list[float]
    verifier_probs: list[float]
    kl: float
    tv: float
    draft_entropy: float
    verifier_entropy: float
    rules: tuple[RuleStep, ...]


@dataclass(frozen=True)
class BoostCurve:
    """γ*(q_n) for one δ: the Taylor step, the exact one, and what each spends; lists over verifier_prob."""

    delta: float
    divergence: str
    verifier_prob: list[float]
    taylor: list[float]
    exact: list[float]
    taylor_cost: list[float]
    exact_cost: list[float]


@dataclass(frozen=True)
class Preset:
    """Two distributions that show one thing. `drafted` is the token to look at."""

    name: str
    label: str
    shows: str
    tokens: tuple[str, ...]
    draft_probs: tuple[float, ...]
    verifier_probs: tuple[float, ...]
    drafted: int = 0


@dataclass(frozen=True)
class Position:
    """A position of a run as far as its record goes: the tokens among the recorded top 5 of either model, the drafted
    one, and all others together. `estimated` marks the probabilities that were not recorded.
    """

    tokens: tuple[str, ...]
    draft_probs: tuple[float, ...]
    verifier_probs: tuple[float, ...]
    draft_estimated: tuple[bool, ...]
    verifier_estimated: tuple[bool, ...]
    drafted: int


PRESETS = (
    Preset(
        "synonyms", "Undecided between synonyms",
        "The verifier would take any of three words; lossless sampling still rejects most drafts of one of them.",
        ("big", "large", "huge", "blue"), (0.88, 0.06, 0.04, 0.02), (0.34, 0.33, 0.31, 0.02),
    ),
    Preset(
        "overconfident", "Draft overconfident",
        "The draft is nearly sure of a token that the verifier finds likely, not certain.",
        ("Paris", "Lyon", "the", "France"), (0.96, 0.02, 0.01, 0.01), (0.5, 0.3, 0.12, 0.08),
    ),
    Preset(
        "disjoint", "Nothing in common",
        "What the draft proposes the verifier rules out: a lift of 0 stays 0, heuristics differ.",
        ("red", "green", "cat", "dog"), (0.6, 0.4, 0.0, 0.0), (0.0, 0.0, 0.7, 0.3),
    ),
    Preset(
        "equal", "Equal",
        "Draft and verifier agree: every lossless rule accepts all, and rejecting costs something.",
        ("yes", "no", "maybe"), (0.5, 0.3, 0.2), (0.5, 0.3, 0.2),
    ),
    Preset(
        "certain", "Verifier certain",
        "The verifier is all but sure. A little divergence cannot buy a wrong token much probability.",
        ("4", "5", "four", "22"), (0.3, 0.4, 0.2, 0.1), (0.97, 0.01, 0.015, 0.005), 1,
    ),
)  # fmt: skip


def normalised(name: str, weights: Sequence[float]) -> Tensor:
    """Weights as a distribution [vocab], float64. `CactusError` names the first one that cannot be a weight."""
    if not FEWEST <= len(weights) <= MOST:
        raise CactusError(f"{name} has {len(weights)} tokens; {FEWEST} to {MOST} are allowed")
    for index, weight in enumerate(weights):
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= 1e6:
            raise CactusError(f"{name} of token {index + 1} is {weight!r:.40}; a number from 0 to 1e6 is allowed")
    values = torch.tensor(weights, dtype=torch.float64)
    if not values.sum() > 0:
        raise CactusError(f"{name} is 0 everywhere; at least one token needs a probability")
    return values / values.sum()


def default_rules() -> dict[str, Rule]:
    """Every rule of the registry by name, with its defaults."""
    return {name: make_rule(name) for name in RULES}


def make_rules(params: Mapping[str, Mapping[str, object]]) -> dict[str, Rule]:
    """Every rule of the registry, with these parameters where given. `ValueError` names what is not allowed."""
    return {name: make_rule(name, **params.get(name, {})) for name in RULES}


def work_out(draft: Sequence[float], verifier: Sequence[float], drafted: int, rules: Sequence[Rule]) -> Step:
    """Every rule on one step. The weights need not sum to 1; `drafted` is the token whose h is shown."""
    draft_probs, verifier_probs = normalised("draft", draft), normalised("verifier", verifier)
    if len(draft_probs) != len(verifier_probs):
        raise CactusError(f"draft has {len(draft_probs)} tokens and verifier {len(verifier_probs)}; both need the same")
    if not (isinstance(drafted, int) and 0 <= drafted < len(draft_probs)):
        raise CactusError(f"drafted is {drafted!r}; 0 to {len(draft_probs) - 1} are allowed")
    return Step(
        draft_probs=draft_probs.tolist(),
        verifier_probs=verifier_probs.tolist(),
        kl=float(kl(draft_probs, verifier_probs)),
        tv=float(total_variation(draft_probs, verifier_probs)),
        draft_entropy=float(entropy(draft_probs)),
        verifier_entropy=float(entropy(verifier_probs)),
        rules=tuple(_rule_step(rule, draft_probs, verifier_probs, drafted) for rule in rules),
    )


def _rule_step(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor, drafted: int) -> RuleStep:
    accept = rule.accept_row(draft_probs, verifier_probs)
    adjusted = rule.adjusted_probs(draft_probs, verifier_probs, drafted)
    output = output_probs(rule, draft_probs, verifier_probs)
    spent = {
        "KL(h‖q)": float(kl(adjusted, verifier_probs)),
        "KL(output‖q)": float(kl(output, verifier_probs)),
        "KL(q‖output)": float(kl(verifier_probs, output)),
    }
    return RuleStep(
        rule=rule,
        accept_probs=accept.tolist(),
        adjusted_probs=adjusted.tolist(),
        recovery_probs=rule.recovery_probs(draft_probs, verifier_probs, drafted).tolist(),
        output_probs=output.tolist(),
        boosted_prob=float(adjusted[drafted]),
        adjusted_kl=spent["KL(h‖q)"],
        output_kl=spent["KL(output‖q)"],
        output_reverse_kl=spent["KL(q‖output)"],
        output_tv=float(total_variation(output, verifier_probs)),
        expected_acceptance=float((draft_probs * accept).sum()),
        guarantees=tuple((given, spent[given.of]) for given in rule.guarantees(draft_probs, verifier_probs)),
    )


def boost_curve(delta: float, divergence: str = "kl", points: int = CURVE_POINTS) -> BoostCurve:
    """γ* and what it spends over verifier probabilities from 0 to 1, denser at both ends."""
    angle = torch.linspace(0, math.pi, points, dtype=torch.float64)
    verifier_prob = (0.5 - 0.5 * angle.cos()).clamp(1e-4, 1 - 1e-4)
    taylor, exact = taylor_boosted_prob(verifier_prob, delta), boosted_prob(verifier_prob, delta, divergence)
    return BoostCurve(
        delta=delta,
        divergence=divergence,
        verifier_prob=verifier_prob.tolist(),
        taylor=taylor.tolist(),
        exact=exact.tolist(),
        taylor_cost=binary_divergence(taylor, verifier_prob, divergence).tolist(),
        exact_cost=binary_divergence(exact, verifier_prob, divergence).tolist(),
    )


def position(token: Token) -> Position:
    """The two distributions at a recorded token, from its top 5 of each model and its own probabilities.

    A probability that was not recorded is at most the fifth largest; the tokens without one share what is left over
    with all the others equally, below that ceiling. `CactusError` where nothing was drafted.
    """
    if token.draft_prob is None or token.verifier_prob is None or not token.top_draft:
        raise CactusError(f"token {token.text!r:.40} has no draft distribution: nothing was drafted there")
    names = {entry.id: entry.text for entry in (*token.top_draft, *token.top_verifier)}
    names.setdefault(token.id, token.text)
    ids = list(names)[: MOST - 1]
    if token.id not in ids:
        ids[-1] = token.id
    draft, draft_guess = _row(token.top_draft, token.id, token.draft_prob, ids)
    verifier, verifier_guess = _row(token.top_verifier, token.id, token.verifier_prob, ids)
    return Position(
        tokens=(*(names[id_] for id_ in ids), "all others"),
        draft_probs=draft,
        verifier_probs=verifier,
        draft_estimated=draft_guess,
        verifier_estimated=verifier_guess,
        drafted=ids.index(token.id),
    )


def _row(top: Sequence[TopToken], own: int, prob: float, ids: Sequence[int]) -> tuple[tuple[float, ...], tuple]:
    known = {entry.id: entry.prob for entry in top} | {own: prob}
    left = max(0.0, 1.0 - sum(known.values()))
    missing = sum(id_ not in known for id_ in ids)
    ceiling = min((entry.prob for entry in top), default=0.0)
    guess = min(ceiling, left / (missing + 1))
    row = [known.get(id_, guess) for id_ in ids]
    return (*row, max(0.0, left - missing * guess)), (*(id_ not in known for id_ in ids), missing > 0)
