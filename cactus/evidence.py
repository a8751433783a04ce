"""The numbers behind a verdict, as the trace records them: probabilities, entropies, divergences, likeliest tokens.

Nothing here decides anything, so its time is kept apart from the round's. Pure tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus.acceptance import Rule
from cactus.divergence import entropy
from cactus.verdict import Verdict, clamp, unit

TOP = 5
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


def gather_evidence(
    rule: Rule | None,
    verdict: Verdict,
    draft_tokens: Sequence[int],
    draft_probs: Tensor,  # [m, vocab]
    verifier_probs: Tensor,  # [m + 1, vocab]
) -> list[Evidence]:
    """One entry per drafted token and a last one for the drawn token; verdict numbers only where one was given."""
    count = len(draft_tokens)
    last = _of_drawn(verdict, draft_probs, verifier_probs)
    if rule is None or not draft_tokens:
        return [last]
    tokens = torch.as_tensor(draft_tokens, device=draft_probs.device)  # [m]
    seen = _of_drafted(tokens, draft_probs, verifier_probs[:count])
    judged = min(verdict.accepted + 1, count)
    steps = rule.judge(draft_probs, verifier_probs[:count], tokens)
    boosted, spent = unit(steps.boosted_prob), [max(0.0, nats) for nats in steps.kl.tolist()]
    for i in range(judged):
        numbers = {
            "boosted_prob": boosted[i],
            "accept_prob": verdict.accept_probs[i],
            "uniform": verdict.uniforms[i],
            "kl": spent[i],
            "output_kl": _output_kl(rule, draft_probs, verifier_probs[:count], tokens, i),
        }
        seen[i] = Evidence(**{**vars(seen[i]), **numbers})
    return [*seen, last]


def _of_drafted(tokens: Tensor, draft_probs: Tensor, verifier_probs: Tensor) -> list[Evidence]:
    columns = zip(
        _picked(draft_probs, tokens),
        _picked(verifier_probs, tokens),
        entropy(verifier_probs).tolist(),
        _tops(draft_probs),
        _tops(verifier_probs),
        strict=True,
    )
    return [
        Evidence(draft_prob=p_n, verifier_prob=q_n, entropy=max(0.0, nats), top_draft=top_p, top_verifier=top_q)
        for p_n, q_n, nats, top_p, top_q in columns
    ]


def _of_drawn(verdict: Verdict, draft_probs: Tensor, verifier_probs: Tensor) -> Evidence:
    row = verifier_probs[verdict.accepted]
    draft_row = draft_probs[verdict.accepted] if verdict.rejected else None
    return Evidence(
        draft_prob=None if draft_row is None else clamp(float(draft_row[verdict.drawn])),
        verifier_prob=clamp(float(row[verdict.drawn])),
        entropy=max(0.0, float(entropy(row))),
        top_draft=None if draft_row is None else _tops(draft_row[None])[0],
        top_verifier=_tops(row[None])[0],
    )


def _output_kl(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor, tokens: Tensor, index: int) -> float:
    """KL(output‖q) in nats of the step at `index`."""
    standing = rule.at(draft_probs, verifier_probs, tokens, index)
    return max(0.0, float(standing.output_kl(draft_probs[index], verifier_probs[index])))


def _tops(probs: Tensor) -> list[Top]:
    """The likeliest tokens of each row [rows, vocab]; those of probability 0 are left out."""
    values, ids = probs.topk(min(TOP, probs.shape[-1]), dim=-1)
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [[(i, clamp(v)) for i, v in zip(*row, strict=True) if v > 0.0] for row in rows]


def _picked(probs: Tensor, tokens: Tensor) -> list[float]:
    return unit(probs.gather(-1, tokens[:, None])[:, 0])
