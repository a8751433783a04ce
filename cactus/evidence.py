"""The numbers behind a verdict, as the trace records them: probabilities, entropies, divergences, likeliest tokens.

Nothing here decides anything, so its time is kept apart from the round's. All is worked out as tensors, to be read with
the verdict itself in one transfer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cactus.acceptance import Rule
from cactus.acceptance.rule import chosen
from cactus.divergence import entropy
from cactus.interfaces import Proposal
from cactus.verdict import Verdict

TOP = 5
BLOCK = 128  # the likeliest tokens are sought in the likeliest blocks of so many
Top = list[tuple[int, float]]


@dataclass(frozen=True)
class Evidence:
    """The numbers of one token (see `trace.Token`); tops are (id, probability)."""

    draft_prob: float | None = None
    verifier_prob: float | None = None
    boosted_prob: float | None = None
    accept_prob: float | None = None
    uniform: float | None = None
    entropy: float | None = None
    kl: float | None = None
    output_kl: float | None = None
    top_draft: Top | None = None
    top_verifier: Top | None = None


@dataclass(frozen=True)
class Findings:
    """A verdict as numbers: the drafted tokens, how many of them pass, and the token drawn after them.

    `evidence` has an entry for each drafted token, with numbers of the verdict where one was given, and a last one
    for the drawn token. sound: whether every token came of a distribution that gives it a probability.
    """

    drafted: list[int]
    accepted: int
    drawn: int
    evidence: list[Evidence]
    sound: bool

    @property
    def rejected(self) -> bool:
        """Whether a drafted token was."""
        return self.accepted < len(self.drafted)

    @property
    def accept_probs(self) -> list[float]:
        """Of the judged tokens."""
        return [numbers.accept_prob for numbers in self.evidence if numbers.accept_prob is not None]


def work_out(
    rule: Rule | None,
    verdict: Verdict,
    proposal: Proposal,
    verifier_probs: Tensor,  # [m + 1, vocab]
    ahead: bool = False,
) -> tuple[Tensor, ...]:
    """The verdict and the numbers behind it, to be read in one transfer and given to `found`.

    ahead: work out the divergences of all drafted tokens, before it is known which were judged. Where a look costs
    nothing, only those that are needed.
    """
    count = len(proposal.tokens)
    judged = 0
    if rule is not None and count:
        judged = count if ahead else min(count, int(verdict.accepted) + 1)
    return (
        proposal.tokens,
        torch.cat([verdict.accepted, verdict.drawn]),
        _drawn_probs(verdict, proposal, verifier_probs),
        chosen(proposal.probs, proposal.tokens),
        chosen(verifier_probs[:count], proposal.tokens),
        verdict.accept_probs,
        verdict.uniforms,
        *_steps(rule, proposal, verifier_probs, judged),
        entropy(verifier_probs).clamp(min=0),
        *likeliest(proposal.probs),
        *likeliest(verifier_probs),
    )


def _drawn_probs(verdict: Verdict, proposal: Proposal, verifier_probs: Tensor) -> Tensor:
    """Of the drawn token [3]: in what it was drawn from, in q, and in the p of the draft it replaces."""
    row = verifier_probs.index_select(0, verdict.accepted)
    draft = torch.zeros_like(verdict.drawn_prob)
    if len(proposal.tokens):
        refused = proposal.probs.index_select(0, verdict.accepted.clamp(max=len(proposal.tokens) - 1))
        draft = chosen(refused, verdict.drawn)
    return torch.cat([verdict.drawn_prob, chosen(row, verdict.drawn), draft])


def _steps(rule: Rule | None, proposal: Proposal, verifier_probs: Tensor, judged: int) -> tuple[Tensor, ...]:
    """What the rule says of the first `judged` drafted tokens: boosted probabilities and both divergences."""
    if rule is None or judged == 0:
        return (verifier_probs.new_empty(0),) * 3
    rows = proposal.probs[:judged], verifier_probs[:judged]
    if not rule.lossless and rule.reads == "scalar" and proposal.token_ids is not None and proposal.columns is not None:
        steps = rule.judge(*pooled(*rows, proposal.token_ids), proposal.columns[:judged])
    else:
        steps = rule.judge(*rows, proposal.tokens[:judged])
    return tuple(column.clamp(min=0) for column in (steps.boosted_prob.clamp(max=1), steps.kl, steps.output_kl))


def pooled(draft_probs: Tensor, verifier_probs: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The rows over the tokens that can be drafted and one more for all others: [m, vocab] -> [m, k + 1].

    A rule whose verdicts depend on the drafted token's own probabilities emits the others in proportion to q: as far
    as its divergences go they are one token.
    """
    draft, verifier = draft_probs.index_select(-1, token_ids), verifier_probs.index_select(-1, token_ids)
    others = (1 - verifier.sum(-1, keepdim=True)).clamp(min=0)
    return torch.cat([draft, torch.zeros_like(others)], -1), torch.cat([verifier, others], -1)


def likeliest(probs: Tensor) -> tuple[Tensor, Tensor]:
    """The `TOP` likeliest tokens of each row and their probabilities: [rows, vocab] -> [rows, top] both.

    They lie in the blocks with the largest maxima: five times cheaper than `topk` over a whole vocabulary.
    """
    rows, vocab = probs.shape
    blocks = vocab // BLOCK
    if rows == 0 or blocks <= TOP:
        values, ids = probs.topk(min(TOP, vocab), dim=-1)
        return ids, values
    whole = probs[:, : blocks * BLOCK].view(rows, blocks, BLOCK)
    best = whole.amax(-1).topk(TOP, dim=-1).indices  # [rows, top]
    among = (best[..., None] * BLOCK + torch.arange(BLOCK, device=probs.device)).flatten(1)
    rest = torch.arange(blocks * BLOCK, vocab, device=probs.device).expand(rows, -1)
    among = torch.cat([among, rest], -1)
    values, places = probs.gather(-1, among).topk(TOP, dim=-1)
    return among.gather(-1, places), values


def found(
    drafted: list[int],
    outcome: list[int],
    drawn_probs: list[float],
    draft_probs: list[float],
    verifier_probs: list[float],
    accept_probs: list[float],
    uniforms: list[float],
    boosted: list[float],
    kls: list[float],
    output_kls: list[float],
    entropies: list[float],
    draft_ids: list[list[int]],
    draft_tops: list[list[float]],
    verifier_ids: list[list[int]],
    verifier_tops: list[list[float]],
) -> Findings:
    """What `work_out` worked out, read."""
    accepted, drawn = outcome
    top_draft = [_top(*row) for row in zip(draft_ids, draft_tops, strict=True)]
    top_verifier = [_top(*row) for row in zip(verifier_ids, verifier_tops, strict=True)]
    evidence = []
    for i in range(len(drafted)):
        numbers = Evidence(
            draft_prob=_clamp(draft_probs[i]),
            verifier_prob=_clamp(verifier_probs[i]),
            entropy=entropies[i],
            top_draft=top_draft[i],
            top_verifier=top_verifier[i],
        )
        if i <= accepted:
            verdict = {"accept_prob": accept_probs[i], "uniform": uniforms[i], "boosted_prob": boosted[i]}
            numbers = replace(numbers, **verdict, kl=kls[i], output_kl=output_kls[i])
        evidence.append(numbers)
    source, verifier_prob, draft_prob = drawn_probs
    refused = accepted < len(drafted)
    last = Evidence(
        draft_prob=_clamp(draft_prob) if refused else None,
        verifier_prob=_clamp(verifier_prob),
        entropy=entropies[accepted],
        top_draft=top_draft[accepted] if refused else None,
        top_verifier=top_verifier[accepted],
    )
    likely = [source, *draft_probs]
    sound = all(prob > 0 for prob in likely) and not any(map(math.isnan, verifier_probs))
    return Findings(drafted, accepted, drawn, [*evidence, last], sound)


def _top(ids: list[int], probs: list[float]) -> Top:
    """Tokens of probability 0 are left out."""
    return [(token, _clamp(prob)) for token, prob in zip(ids, probs, strict=True) if prob > 0.0]


def _clamp(prob: float) -> float:
    """Sums in float32 may overshoot 1 by rounding."""
    return min(1.0, max(0.0, prob))
