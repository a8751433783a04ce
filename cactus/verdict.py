"""The verdict on one round: which drafted tokens pass, and what is drawn after them.

Pure tensors: knows rules and distributions, nothing of models, text or time. `evidence` gathers the numbers behind a
verdict for the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus.acceptance import Rule
from cactus.sampling import draw, uniforms


@dataclass(frozen=True)
class Verdict:
    """`accepted` drafted tokens pass; `drawn` is the recovered token after a rejection, else the bonus token.

    `accept_probs` and `uniforms` [m]: token i passes iff uniforms[i] < accept_probs[i] and all before it passed.
    """

    accepted: int
    drawn: int
    rejected: bool
    accept_probs: list[float]
    uniforms: list[float]


def judge(
    rule: Rule | None,
    draft_tokens: Sequence[int],
    draft_probs: Tensor,  # [m, vocab]
    verifier_probs: Tensor,  # [m + 1, vocab]
    generator: torch.Generator,
) -> Verdict:
    """Judge the drafted tokens in order and draw the token behind them. `rule` may be None only for m = 0."""
    count = len(draft_tokens)
    if rule is None or count == 0:
        return Verdict(0, draw(verifier_probs[0], generator), False, [], [])
    tokens = torch.as_tensor(draft_tokens, device=draft_probs.device)  # [m]
    judged_probs = verifier_probs[:count]
    accept, chances = unit(rule.accept_probs(draft_probs, judged_probs, tokens)), uniforms(count, generator).tolist()
    accepted = next((i for i in range(count) if not chances[i] < accept[i]), count)
    aim = verifier_probs[accepted]
    if accepted < count:
        standing = rule.at(draft_probs, judged_probs, tokens, accepted)
        aim = standing.recovery_probs(draft_probs[accepted], aim, draft_tokens[accepted])
    return Verdict(accepted, draw(aim, generator), accepted < count, accept, chances)


def clamp(value: float) -> float:
    """A probability; sums in float32 may overshoot 1 by rounding."""
    return min(1.0, max(0.0, value))


def unit(values: Tensor) -> list[float]:
    """Probabilities as numbers."""
    return [clamp(value) for value in values.tolist()]
