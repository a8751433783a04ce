"""The verdict on one round: which drafted tokens pass, what is drawn after them, and the numbers behind it.

Pure tensors: knows rules and distributions, nothing of models, text or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus.acceptance import Rule
from cactus.divergence import entropy, kl, output_probs
from cactus.sampling import draw, uniforms

TOP = 5
Top = list[tuple[int, float]]


@dataclass(frozen=True)
class Evidence:
    """The numbers of one token as the trace records them (see `trace.Token`); tops are (id, probability)."""

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
class Verdict:
    """`accepted` drafted tokens pass; `drawn` is the recovered token after a rejection, else the bonus token.

    `evidence` has one entry per drafted token and a last one for the drawn token.
    """

    accepted: int
    drawn: int
    rejected: bool
    evidence: list[Evidence]


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
        drawn = draw(verifier_probs[0], generator)
        return Verdict(0, drawn, False, [_drawn_evidence(drawn, None, verifier_probs[0])])
    tokens = torch.as_tensor(draft_tokens, device=draft_probs.device)  # [m]
    judged_probs = verifier_probs[:count]
    steps = rule.judge(draft_probs, judged_probs, tokens)
    accept = _unit(steps.accept_prob)
    chances = uniforms(count, generator).tolist()
    accepted = next((i for i in range(count) if not chances[i] < accept[i]), count)
    rejected = accepted < count
    if rejected:
        standing = rule.at(draft_probs, judged_probs, tokens, accepted)
        recovery = standing.recovery_probs(draft_probs[accepted], judged_probs[accepted], draft_tokens[accepted])
        drawn = draw(recovery, generator)
    else:
        drawn = draw(verifier_probs[count], generator)

    tops = _tops(draft_probs), _tops(judged_probs)
    numbers = (_picked(draft_probs, tokens), _picked(judged_probs, tokens), entropy(judged_probs).tolist())
    boosted, spent = _unit(steps.boosted_prob), _nats(steps.kl)
    evidence = []
    for i in range(count):
        judged = i <= accepted
        evidence.append(
            Evidence(
                draft_prob=numbers[0][i],
                verifier_prob=numbers[1][i],
                boosted_prob=boosted[i] if judged else None,
                accept_prob=accept[i] if judged else None,
                uniform=chances[i] if judged else None,
                entropy=max(0.0, numbers[2][i]),
                kl=spent[i] if judged else None,
                output_kl=_output_kl(rule, draft_probs, judged_probs, tokens, i) if judged else None,
                top_draft=tops[0][i],
                top_verifier=tops[1][i],
            )
        )
    draft_row = draft_probs[accepted] if rejected else None
    evidence.append(_drawn_evidence(drawn, draft_row, verifier_probs[accepted]))
    return Verdict(accepted, drawn, rejected, evidence)


def _output_kl(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor, tokens: Tensor, index: int) -> float:
    """KL(output‖q) in nats of the step at `index`, exactly 0 for a lossless rule."""
    if rule.lossless:
        return 0.0
    standing = rule.at(draft_probs, verifier_probs, tokens, index)
    output = output_probs(standing, draft_probs[index], verifier_probs[index])
    return max(0.0, float(kl(output, verifier_probs[index])))


def _drawn_evidence(token: int, draft_row: Tensor | None, verifier_row: Tensor) -> Evidence:
    return Evidence(
        draft_prob=None if draft_row is None else _clamp(float(draft_row[token])),
        verifier_prob=_clamp(float(verifier_row[token])),
        entropy=max(0.0, float(entropy(verifier_row))),
        top_draft=None if draft_row is None else _tops(draft_row[None])[0],
        top_verifier=_tops(verifier_row[None])[0],
    )


def _tops(probs: Tensor) -> list[Top]:
    """The likeliest tokens of each row [rows, vocab]; those of probability 0 are left out."""
    values, ids = probs.topk(min(TOP, probs.shape[-1]), dim=-1)
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [[(i, _clamp(v)) for i, v in zip(*row, strict=True) if v > 0.0] for row in rows]


def _picked(probs: Tensor, tokens: Tensor) -> list[float]:
    return _unit(probs.gather(-1, tokens[:, None])[:, 0])


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))


def _unit(values: Tensor) -> list[float]:
    """Probabilities as numbers; sums in float32 may overshoot 1 by rounding."""
    return [_clamp(value) for value in values.tolist()]


def _nats(values: Tensor) -> list[float]:
    return [max(0.0, value) for value in values.tolist()]
