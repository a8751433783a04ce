"""Rules that lift the verifier's probability of the drafted token n, and scale the rest down.

    h(n) = γ,  h(x) = q(x)·(1−γ)/(1−q_n) for x ≠ n                 (Cactus, arXiv 2604.04987)
    accept iff u < min(1, γ/p_n), else draw from norm(max(h − p, 0))

A rule of this family supplies γ for a budget δ; everything else is here. γ = q_n is lossless
speculative sampling. Knows nothing of how a round is drafted or run.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from cactus.acceptance.lift_output import lift_output_probs, lift_scale
from cactus.acceptance.parameter import Parameter
from cactus.acceptance.rule import Guarantee, Rule, Steps, acceptance, chosen, normalised
from cactus.divergence import (
    DIVERGENCES,
    as_numbers,
    binary_divergence,
    boosted_prob,
    entropy,
    kl,
    taylor_boosted_prob,
    wide,
)
from cactus.transfer import filled_columns, is_far

DELTA = Parameter(
    name="delta",
    label="Budget δ",
    default=1.0,
    help="Divergence from the verifier allowed in one step, in nats. 0 is lossless.",
    minimum=0.0,
    maximum=10.0,
    step=0.05,
)


@dataclass(frozen=True)
class LiftRule(Rule):
    """A rule given by its γ. Scalars are worked out in float64 and returned as given."""

    lift_reason: ClassVar[str] = "ln(1 + 2δ)"
    beyond_sampling = ""

    def step_budget(self, verifier_probs: Tensor) -> float | Tensor:
        """δ of a step: [..., vocab] -> number or [...]."""
        return 0.0

    @abstractmethod
    def lift(self, verifier_prob: Tensor, budget: float | Tensor) -> Tensor:
        """γ = h(n) for tokens of these verifier probabilities, in [verifier_prob, 1]."""

    def may_fall(self, draft_probs: Tensor, verifier_probs: Tensor, budget: float | Tensor) -> Tensor:
        """1 for tokens with γ < p, which can be rejected, and perhaps for others, else 0: [m, vocab]."""
        return as_numbers(torch.gt, draft_probs, self.lift(verifier_probs, budget))

    def accept_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        verifier_prob = wide(chosen(verifier_probs, draft_tokens))  # [m]
        boosted = self.lift(verifier_prob, self.step_budget(verifier_probs))
        return acceptance(boosted, wide(chosen(draft_probs, draft_tokens))).to(draft_probs.dtype)

    def judge(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Steps:
        draft_prob = wide(chosen(draft_probs, draft_tokens))  # [m]
        verifier_prob = wide(chosen(verifier_probs, draft_tokens))  # [m]
        boosted = self.lift(verifier_prob, self.step_budget(verifier_probs))  # [m]
        return Steps(
            accept_prob=acceptance(boosted, draft_prob).to(draft_probs.dtype),
            boosted_prob=boosted.to(draft_probs.dtype),
            kl=binary_divergence(boosted, verifier_prob).to(draft_probs.dtype),
            output_kl=self.output_kl(draft_probs, verifier_probs),
        )

    def accept_row(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        boosted = self.lift(wide(verifier_probs), self.step_budget(verifier_probs))
        return acceptance(boosted, wide(draft_probs)).to(draft_probs.dtype)

    def recovery_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_token: int | Tensor) -> Tensor:
        adjusted = self.adjusted_probs(draft_probs, verifier_probs, draft_token)
        return normalised((adjusted - draft_probs).clamp(min=0), adjusted)

    def adjusted_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_token: int | Tensor) -> Tensor:
        verifier_prob = wide(verifier_probs[draft_token])
        boosted = self.lift(verifier_prob, self.step_budget(verifier_probs))
        adjusted = verifier_probs * lift_scale(boosted, verifier_prob)
        adjusted[draft_token] = boosted
        return adjusted

    def adjusted_rows(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        verifier_prob = wide(chosen(verifier_probs, draft_tokens))  # [m]
        boosted = self.lift(verifier_prob, self.step_budget(verifier_probs))
        scale = lift_scale(boosted, verifier_prob).to(verifier_probs.dtype)
        adjusted = verifier_probs * scale.unsqueeze(-1)
        return adjusted.scatter_(-1, draft_tokens.unsqueeze(-1), boosted.to(adjusted.dtype).unsqueeze(-1))

    def output_probs(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        draft_rows, verifier_rows = torch.atleast_2d(draft_probs), torch.atleast_2d(verifier_probs)  # [m, vocab]
        budget = self.step_budget(verifier_rows)
        budget = budget.unsqueeze(-1) if isinstance(budget, Tensor) else budget  # [m, 1]
        level = budget.to(verifier_rows.dtype) if isinstance(budget, Tensor) else budget
        falls = self.may_fall(draft_rows, verifier_rows, level)  # [m, vocab]
        tokens = filled_columns(falls)  # [k], few: all else is emitted at least as often as drafted
        draft_prob = wide(draft_rows[:, tokens])  # [m, k]
        boosted = torch.minimum(self.lift(wide(verifier_rows[:, tokens]), budget), draft_prob)
        boosted = torch.where(falls[:, tokens] > 0, boosted, draft_prob)
        return lift_output_probs(draft_rows, verifier_rows, tokens, boosted).view_as(draft_probs)

    def lift_bound(self, verifier_probs: Tensor) -> float:
        """What KL(h‖q) cannot exceed, whichever token was drafted. The Taylor step solves ½χ²(h‖q) = δ."""
        return math.log1p(2 * float(self.step_budget(verifier_probs)))

    def guarantees(self, draft_probs: Tensor, verifier_probs: Tensor) -> tuple[Guarantee, ...]:
        budget = self.step_budget(verifier_probs)
        boosted, verifier_prob = self.lift(wide(verifier_probs), budget), wide(verifier_probs)
        # No token is emitted oftener than its own lift says, nor the output further off than the draft: Theorem 3.
        highest = float(torch.where(boosted > verifier_prob, boosted / verifier_prob, 1.0).log().max())
        own, furthest = self.lift_bound(verifier_probs), float(kl(draft_probs, verifier_probs))
        output = Guarantee("KL(output‖q)", min(highest, furthest), "min(max ln(γ*/q), KL(p‖q))")
        return (Guarantee("KL(h‖q)", own, self.lift_reason), output) if math.isfinite(own) else (output,)


@dataclass(frozen=True)
class Sps(LiftRule):
    name = "sps"
    label = "Speculative sampling"
    summary = "Lossless: the text is distributed exactly as the verifier's own."
    lift_reason = "h = q"
    formula = "accept min(1, q(n)/p(n)); recover ∝ (q − p)₊"
    lossless = True

    def lift(self, verifier_prob: Tensor, budget: float | Tensor) -> Tensor:
        return verifier_prob


@dataclass(frozen=True)
class Cactus(LiftRule):
    name = "cactus"
    label = "Cactus"
    summary = "Raises the drafted token's probability as far as δ nats of divergence allow."
    formula = "γ* = min(1, q(n) + √(2δ·q(n)(1 − q(n)))); accept min(1, γ*/p(n))"
    parameters = (DELTA,)

    delta: float = 1.0

    def step_budget(self, verifier_probs: Tensor) -> float | Tensor:
        return self.delta

    def lift(self, verifier_prob: Tensor, budget: float | Tensor) -> Tensor:
        return taylor_boosted_prob(verifier_prob, budget)


@dataclass(frozen=True)
class CactusExact(LiftRule):
    name = "cactus_exact"
    lift_reason = "D(h‖q) ≤ δ"
    label = "Cactus, exact"
    summary = "Cactus with the budget met exactly, under a divergence of your choice."
    formula = "γ* = max{γ ≥ q(n): D(h‖q) ≤ δ}; accept min(1, γ*/p(n))"
    parameters = (
        DELTA,
        Parameter(
            name="divergence",
            label="Divergence D",
            default="kl",
            help="What δ measures. tv and hellinger end at 1, js at ln 2: more δ accepts all.",
            choices=tuple(DIVERGENCES),
        ),
    )

    delta: float = 1.0
    divergence: str = "kl"

    def step_budget(self, verifier_probs: Tensor) -> float | Tensor:
        return self.delta

    def lift(self, verifier_prob: Tensor, budget: float | Tensor) -> Tensor:
        return boosted_prob(verifier_prob, budget, self.divergence)

    def accept_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        draft_prob = wide(chosen(draft_probs, draft_tokens))  # [m]
        verifier_prob = wide(chosen(verifier_probs, draft_tokens))  # [m]
        if not is_far(draft_prob.device):
            dear = binary_divergence(torch.maximum(draft_prob, verifier_prob), verifier_prob, self.divergence)
            if not ((dear > self.delta) | (draft_prob == 0)).any():  # usual: a lift to p is within δ; no γ* is sought
                return torch.ones_like(draft_probs[..., 0])
        return super().accept_probs(draft_probs, verifier_probs, draft_tokens)

    def may_fall(self, draft_probs: Tensor, verifier_probs: Tensor, budget: float | Tensor) -> Tensor:
        # γ* rises with q, so no token falls that is less likely than the γ* of the smallest q there is.
        high = as_numbers(torch.gt, draft_probs, _least_boost(self.delta, self.divergence))
        impossible = as_numbers(torch.eq, verifier_probs, 0)
        return torch.maximum(high, impossible) * as_numbers(torch.gt, draft_probs, verifier_probs)

    def lift_bound(self, verifier_probs: Tensor) -> float:
        """δ itself, or what follows from it; nothing does from the divergences that are finite at q_n = 0."""
        return {"kl": self.delta, "chi2": math.log1p(self.delta)}.get(self.divergence, math.inf)


@cache
def _least_boost(delta: float, divergence: str) -> float:
    """γ* of the smallest positive number in float32."""
    smallest = torch.tensor(torch.finfo(torch.float32).smallest_normal * 2.0**-23, dtype=torch.float64)
    return float(boosted_prob(smallest, delta, divergence))


@dataclass(frozen=True)
class CactusAdaptive(LiftRule):
    name = "cactus_adaptive"
    label = "Cactus, adaptive"
    summary = "Cactus that spends less of δ where the verifier is unsure."
    formula = "Cactus with δₜ = δ·max(floor, 1 − H(q)/ln|V|)"
    reads = "vocabulary"
    parameters = (
        DELTA,
        Parameter(
            name="floor",
            label="Minimum share of δ",
            default=0.0,
            help="Share of δ kept where the verifier is as unsure as it can be.",
            minimum=0.0,
            maximum=1.0,
            step=0.05,
        ),
    )

    delta: float = 1.0
    floor: float = 0.0

    def step_budget(self, verifier_probs: Tensor) -> float | Tensor:
        most = math.log(max(verifier_probs.shape[-1], 2))
        return self.delta * wide(1 - entropy(verifier_probs) / most).clamp(self.floor, 1.0)

    def lift(self, verifier_prob: Tensor, budget: float | Tensor) -> Tensor:
        return taylor_boosted_prob(verifier_prob, budget)
