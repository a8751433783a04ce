"""The verdict on one round: which drafted tokens pass, and what is drawn after them.

Pure tensors, and nothing waits for them: knows rules and distributions, nothing of models, text or time. `evidence`
reads a verdict together with the numbers behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus.acceptance import Rule
from cactus.acceptance.rule import unchecked
from cactus.sampling import pick, uniforms
from cactus.transfer import is_far


@dataclass(frozen=True)
class Verdict:
    """`accepted` drafted tokens pass; `drawn` is the recovered token after a rejection, else the bonus token.

    `drawn_prob`: of the drawn token in what it was drawn from. Token i passes iff uniforms[i] < accept_probs[i] and
    all before it passed.
    """

    accepted: Tensor  # [1]
    drawn: Tensor  # [1]
    drawn_prob: Tensor  # [1]
    accept_probs: Tensor  # [m]
    uniforms: Tensor  # [m]


def judge(
    rule: Rule | None,
    draft_tokens: Tensor,  # [m]
    draft_probs: Tensor,  # [m, vocab]
    verifier_probs: Tensor,  # [m + 1, vocab]
    generator: torch.Generator,
) -> Verdict:
    """Judge the drafted tokens in order and draw the token behind them. `rule` may be None only for m = 0."""
    count = len(draft_tokens)
    if rule is None or count == 0:
        none = verifier_probs.new_empty(0)
        return _drawn(draft_tokens.new_zeros(1), verifier_probs[0], none, none, generator)
    judged = draft_probs, verifier_probs[:count], draft_tokens
    accept = unchecked(rule.accept_probs)(*judged).clamp(0, 1)  # sums in float32 may overshoot 1 by rounding
    chances = uniforms(count, generator).to(accept.device)
    accepted = (chances < accept).long().cumprod(0).sum(0, keepdim=True)  # [1]
    aim = _aim(rule, judged, verifier_probs[count], accepted)
    return _drawn(accepted, aim, accept, chances, generator)


def _aim(rule: Rule, judged: tuple[Tensor, Tensor, Tensor], bonus: Tensor, accepted: Tensor) -> Tensor:
    """What the token behind the accepted ones is drawn from: [vocab]."""
    count = len(judged[-1])
    if not is_far(accepted.device) and int(accepted) == count:
        return bonus
    recovery = rule.recovery_at(*judged, accepted.clamp(max=count - 1))
    if not is_far(accepted.device):
        return recovery
    # Which of them counts is not known here.
    return torch.stack([recovery, bonus]).index_select(0, (accepted == count).long())[0]


def _drawn(accepted: Tensor, aim: Tensor, accept: Tensor, chances: Tensor, generator: torch.Generator) -> Verdict:
    drawn = pick(aim, generator)
    return Verdict(accepted, drawn, aim[drawn], accept, chances)
