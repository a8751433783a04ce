"""Cactus under one budget for the whole sequence.

    γ = min(Taylor γ* of δ, exact γ* of what is left)

so a step that the remaining budget cannot pay is shrunk to exactly what it can, and at 0 the
rule is lossless speculative sampling. What was spent is the realised KL(h‖q) of every judged
token, whether it was then accepted or not. Knows nothing of rounds beyond `at` and `advance`.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from cactus.acceptance.lift import DELTA, LiftRule
from cactus.acceptance.parameter import Parameter
from cactus.acceptance.rule import Steps
from cactus.divergence import as_numbers, binary_divergence, boosted_prob, taylor_boosted_prob, wide


@dataclass(frozen=True)
class CactusBudget(LiftRule):
    name = "cactus_budget"
    label = "Cactus, budgeted"
    summary = "Cactus with a budget for the whole text; once it is spent, lossless."
    lift_reason = "min(ln(1 + 2δ), what is left of B)"
    beyond_sampling = "what it has spent has to be carried from one round to the next"
    formula = "Cactus while Σ KL(h‖q) ≤ B, γ* shrunk to what is left"
    parameters = (
        DELTA,
        Parameter(
            name="budget",
            label="Budget B of the text",
            default=20.0,
            help="Divergence allowed over the whole text, in nats. 0 is lossless.",
            minimum=0.0,
            maximum=1000.0,
            step=0.5,
        ),
    )

    delta: float = 1.0
    budget: float = 20.0
    spent: float = 0.0  # carried from step to step; not a setting

    @property
    def left(self) -> float:
        return max(0.0, self.budget - self.spent)

    @property
    def unbound(self) -> bool:
        """Whether what is left pays for any Cactus step: none costs more than ln(1 + 2δ)."""
        return self.left >= math.log1p(2 * self.delta)

    def step_budget(self, verifier_probs: Tensor) -> float | Tensor:
        return self.delta

    def lift(self, verifier_prob: Tensor, budget: float | Tensor) -> Tensor:
        wanted = taylor_boosted_prob(verifier_prob, budget)
        if self.unbound:
            return wanted
        dear = binary_divergence(wanted, verifier_prob) > self.left
        if not dear.any():
            return wanted
        return torch.where(dear, self._affordable(verifier_prob), wanted)

    def may_fall(self, draft_probs: Tensor, verifier_probs: Tensor, budget: float | Tensor) -> Tensor:
        falls = as_numbers(torch.gt, draft_probs, taylor_boosted_prob(verifier_probs, budget))
        if self.unbound:
            return falls
        # A lift to p costs at most p·ln(p/q), the part of n itself; a quarter more for q too small to be told apart.
        tiny = torch.finfo(verifier_probs.dtype).tiny
        cost = (draft_probs / verifier_probs.clamp(min=tiny)).clamp_(min=tiny).log_().mul_(draft_probs)
        return torch.maximum(falls, as_numbers(torch.gt, cost, self.left / 1.25))

    def output_kl(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        if self.left == 0.0:  # lossless from here on
            return torch.zeros_like(verifier_probs[..., 0])
        return super().output_kl(draft_probs, verifier_probs)

    def accept_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        if self._pays_for(len(draft_tokens)):
            return super().accept_probs(draft_probs, verifier_probs, draft_tokens)
        return self.judge(draft_probs, verifier_probs, draft_tokens).accept_prob  # each has paid for those before it

    def judge(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Steps:
        if self._pays_for(len(draft_tokens)):
            return super().judge(draft_probs, verifier_probs, draft_tokens)
        rule, steps = self, []
        for i in range(len(draft_tokens)):
            row = slice(i, i + 1)
            steps.append(super(CactusBudget, rule).judge(draft_probs[row], verifier_probs[row], draft_tokens[row]))
            rule = rule.advance(steps[-1].kl.item())
        return _joined(steps, draft_probs)

    def _pays_for(self, steps: int) -> bool:
        """Whether so many steps can be Cactus steps whatever they cost, so that none depends on another."""
        return self.left >= steps * math.log1p(2 * self.delta)

    def at(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor, index: int) -> Self:
        rule = self
        for i in range(index):
            verifier_prob = wide(verifier_probs[i, draft_tokens[i]])
            spent = binary_divergence(rule.lift(verifier_prob, self.delta), verifier_prob)
            rule = rule.advance(float(spent.to(verifier_probs.dtype)))
        return rule

    def lift_bound(self, verifier_probs: Tensor) -> float:
        return min(super().lift_bound(verifier_probs), self.left)

    def advance(self, spent: float) -> Self:
        return replace(self, spent=self.spent + spent)

    def _affordable(self, verifier_prob: Tensor) -> Tensor:
        return boosted_prob(verifier_prob, self.left) if self.left > 0 else verifier_prob


def _joined(steps: list[Steps], like: Tensor) -> Steps:
    def column(name: str) -> Tensor:
        return torch.cat([like.new_zeros(0), *(getattr(step, name) for step in steps)])  # [m]

    return Steps(column("accept_prob"), column("boosted_prob"), column("kl"), column("output_kl"))
