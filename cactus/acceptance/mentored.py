"""Mentored decoding: the most acceptance that KL(q‖out) ≤ D allows (Tran-Thien, 2023).

    r = min(1, q/(α·p)),  s ∝ (q/β − p)₊,  1 − R = Σ(p − q/α)₊ = Σ(q/β − p)₊

so out = p clamped to [q/β, q/α]. With ceiling = 1/α ≥ 1 and floor = 1/β ≤ 1 both are levels of
the ratio p/q: one sort by that ratio and running sums give every quantity of the equations at
any level, then α is found by a bracketed search and β from the second equality in closed form.
Its KL runs from the verifier to the output, the other way round from Cactus's: the two budgets
are not comparable.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from cactus.acceptance.fixed import FixedRecoveryRule, Plan
from cactus.acceptance.parameter import Parameter
from cactus.acceptance.rule import Guarantee, acceptance, normalised
from cactus.divergence import kl, largest_within, wide


@dataclass(frozen=True)
class Mentored(FixedRecoveryRule):
    name = "mentored"
    label = "Mentored decoding"
    summary = "Accepts as much as KL(q‖output) ≤ D allows: the other direction from Cactus."
    formula = "r = min(1, q/(α·p)); recover ∝ (q/β − p)₊; KL(q‖out) = D"
    reads = "vocabulary"
    parameters = (
        Parameter(
            name="delta",
            label="Budget D",
            default=0.2,
            help="KL(verifier ‖ output) allowed in one step, in nats. 0 is lossless.",
            minimum=0.0,
            maximum=10.0,
            step=0.05,
        ),
    )

    delta: float = 0.2

    def plan(self, draft_probs: Tensor, verifier_probs: Tensor) -> Plan:
        ceiling, floor = solve_levels(wide(draft_probs), wide(verifier_probs), self.delta)
        ceiling, floor = ceiling.to(draft_probs.dtype), floor.to(draft_probs.dtype)
        accept = acceptance(ceiling * verifier_probs, draft_probs)
        free = kl(verifier_probs, draft_probs).unsqueeze(-1) <= self.delta  # [..., 1]
        residual = (floor * verifier_probs - draft_probs).clamp(min=0)
        return Plan(torch.where(free, 1.0, accept), normalised(residual, verifier_probs))

    def guarantees(self, draft_probs: Tensor, verifier_probs: Tensor) -> tuple[Guarantee, ...]:
        return (Guarantee("KL(q‖output)", self.delta, "D"),)


def solve_levels(draft_probs: Tensor, verifier_probs: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """The levels 1/α and 1/β of each row, [..., 1] both; the divergence never exceeds delta."""
    sums = _Sums.of(draft_probs, verifier_probs)
    start = torch.ones_like(sums.highest)
    most = sums.highest.clamp(min=1)
    ceiling = largest_within(sums.divergence, start, most, torch.full_like(start, delta))
    return ceiling, sums.floor_for(sums.rejected(ceiling))


class _Sums(NamedTuple):
    """A row's tokens with p > 0 by rising ratio p/q, and sums over the first j, j = 0..k.

    All the tokens with p = 0 lie below every level, so their q is counted from the start.
    """

    ratio: Tensor  # [..., k]
    draft: Tensor  # [..., k+1] Σ p
    verifier: Tensor  # [..., k+1] Σ q
    draft_above: Tensor  # [..., k+1] Σ p over the others, summed by itself: no cancellation
    verifier_above: Tensor  # [..., k+1] the same for q
    cost: Tensor  # [..., k+1] Σ q·ln(q/p)
    filled: Tensor  # [..., k] Σ(ratio_j·q − p)₊, the mass a floor at each ratio would add
    highest: Tensor  # [..., 1] the largest ratio among tokens that the verifier allows

    @classmethod
    def of(cls, draft_probs: Tensor, verifier_probs: Tensor) -> Self:
        most = max((draft_probs > 0).sum(-1).flatten().tolist(), default=1)
        ratio = torch.where(verifier_probs > 0, draft_probs / verifier_probs, torch.inf)
        ratio = torch.where(draft_probs > 0, ratio, 0.0)
        ratio, order = (tensor.flip(-1) for tensor in ratio.topk(most))
        sorted_draft = draft_probs.gather(-1, order)
        sorted_verifier = verifier_probs.gather(-1, order)
        silent = (verifier_probs.sum(-1) - sorted_verifier.sum(-1)).clamp(min=0).unsqueeze(-1)
        draft, verifier = _running(sorted_draft), silent + _running(sorted_verifier)
        cost = sorted_verifier * (sorted_verifier.log() - sorted_draft.log())
        cost = torch.where((sorted_verifier > 0) & (sorted_draft > 0), cost, 0.0)
        finite = ratio.isfinite()
        filled = torch.where(finite, ratio * verifier[..., :-1] - draft[..., :-1], torch.inf)
        highest = torch.where(finite, ratio, 0.0).amax(-1, keepdim=True)
        above = _running_down(sorted_draft), _running_down(sorted_verifier)
        return cls(ratio, draft, verifier, *above, _running(cost), filled, highest)

    def rejected(self, ceiling: Tensor) -> Tensor:
        """Σ(p − ceiling·q)₊: [..., 1] -> [..., 1]."""
        rank = torch.searchsorted(self.ratio, ceiling, right=True)
        above = self.draft_above.gather(-1, rank)
        return (above - ceiling * self.verifier_above.gather(-1, rank)).clamp(min=0)

    def floor_for(self, mass: Tensor) -> Tensor:
        """The floor with Σ(floor·q − p)₊ = mass: [..., 1] -> [..., 1]."""
        rank = torch.searchsorted(self.filled, mass)
        below = self.verifier.gather(-1, rank)
        floor = (mass + self.draft.gather(-1, rank)) / below
        return torch.where(below > 0, floor, 0.0).clamp(max=1)

    def divergence(self, ceiling: Tensor) -> Tensor:
        """KL(q ‖ p clamped between the levels) for a ceiling: [..., 1] -> [..., 1]."""
        floor = self.floor_for(self.rejected(ceiling))
        below = torch.searchsorted(self.ratio, floor, right=True)  # p = 0 lies below a floor of 0
        up_to = torch.searchsorted(self.ratio, ceiling, right=True)
        raised = self.verifier.gather(-1, below)
        lowered = self.verifier_above.gather(-1, up_to)
        kept = self.cost.gather(-1, up_to) - self.cost.gather(-1, below)
        total = kept - _times_log(raised, floor) - _times_log(lowered, ceiling)
        return total.clamp(min=0)


def _running(values: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(values[..., :1]), values), -1).cumsum(-1)


def _running_down(values: Tensor) -> Tensor:
    return _running(values.flip(-1)).flip(-1)


def _times_log(mass: Tensor, level: Tensor) -> Tensor:
    return torch.where(mass > 0, mass * level.log(), 0.0)
