"""Block verification: lossless over the block, never fewer accepted than token by token.

Sun et al., arXiv 2403.10444. With w_0 = 1 and w_i = min(1, w_{i−1}·q(x_i)/p(x_i)), the test of
the prefix of length i < m passes with chance

    h_i = R_i/(R_i + 1 − w_i),  R_i = Σ_x (w_i·q(x | …x_i) − p(x | …x_i))₊,  h_m = w_m,

and the accepted length τ is the longest prefix whose own, independent test passes. The same τ
comes from one test per token in order, passed with chance P(τ ≥ i)/P(τ ≥ i−1), where
P(τ ≥ i) = h_i + (1 − h_i)·P(τ ≥ i+1). After τ < m, draw from norm((w_τ·q − p)₊).
Knows nothing of how a round is drafted or run.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from cactus.acceptance.rule import Rule, Steps, chosen, normalised
from cactus.divergence import wide


@dataclass(frozen=True)
class Block(Rule):
    name = "block"
    label = "Block verification"
    summary = "Lossless, and judges the draft as a whole: never fewer accepted on average."
    formula = "wᵢ = min(1, wᵢ₋₁·q/p); the longest prefix that passes Rᵢ/(Rᵢ + 1 − wᵢ)"
    reads = "vocabulary"
    lossless = True
    beyond_sampling = "it judges the drafted tokens of a round together"

    weight: float = 1.0  # w of the prefix accepted so far; not a setting

    def judge(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Steps:
        verifier_prob = chosen(verifier_probs, draft_tokens)  # [m]
        weights = self._weights(draft_probs, verifier_probs, draft_tokens)  # [m], of w_1 … w_m
        tests = _test_chances(weights, draft_probs, verifier_probs)
        return Steps(
            accept_prob=verifier_prob.new_tensor(_in_order(tests)),
            boosted_prob=verifier_prob,
            kl=torch.zeros_like(verifier_prob),
            output_kl=torch.zeros_like(verifier_prob),
        )

    def recovery_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_token: int | Tensor) -> Tensor:
        residual = (self.weight * verifier_probs - draft_probs).clamp(min=0)
        return normalised(residual, verifier_probs)

    def output_probs(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        """The verifier's: exact over the block as a whole."""
        return verifier_probs.clone()

    def at(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor, index: int) -> Self:
        weights = self._weights(draft_probs[:index], verifier_probs[:index], draft_tokens[:index])
        return replace(self, weight=weights[-1]) if weights else self

    def advance(self, spent: float) -> Self:
        return replace(self, weight=1.0)

    def _weights(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> list[float]:
        pairs = zip(
            wide(chosen(draft_probs, draft_tokens)).tolist(),
            wide(chosen(verifier_probs, draft_tokens)).tolist(),
            strict=True,
        )
        weights, weight = [], self.weight
        for draft_prob, verifier_prob in pairs:
            weighted = weight * verifier_prob
            weight = weighted / draft_prob if weighted < draft_prob else float(weighted > 0)
            weights.append(weight)
        return weights


def _test_chances(weights: list[float], draft_probs: Tensor, verifier_probs: Tensor) -> list[float]:
    """h_1 … h_m. The residual of prefix i is read from the row of the token after it."""
    if len(weights) < 2:
        return list(weights)
    scale = draft_probs.new_tensor(weights[:-1]).unsqueeze(-1)  # [m-1, 1]
    residual = (scale * verifier_probs[1:] - draft_probs[1:]).clamp(min=0).sum(-1).tolist()
    return [_share(left, 1 - w) for left, w in zip(residual, weights, strict=False)] + weights[-1:]


def _share(residual: float, shortfall: float) -> float:
    # 0/0: the prefix is certain and the next rows agree, so a later test passes for sure.
    return residual / (residual + shortfall) if residual + shortfall > 0 else 1.0


def _in_order(tests: list[float]) -> list[float]:
    """Chances of tests in order that stop at the same length: P(τ ≥ i)/P(τ ≥ i−1)."""
    at_least = [0.0]
    for test in reversed(tests):
        at_least.append(test + (1 - test) * at_least[-1])
    reached = [1.0, *at_least[:0:-1]]  # P(τ ≥ 0), P(τ ≥ 1), …, P(τ ≥ m)
    return [min(1.0, here / before) if before > 0 else 0.0 for before, here in pairwise(reached)]
