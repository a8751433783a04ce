"""The target that makes plain speculative sampling a rule: log h in place of the target's logits, row by row.

Pure functions of tensors; O(vocabulary) a row, all rows of a rule at once. Knows nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cactus.acceptance import Rule


def retarget(
    target_logits: Tensor, draft_probs: Tensor | None, draft_tokens: Tensor, rules: Sequence[Rule | None]
) -> Tensor:
    """Logits whose softmax is h: [rows, vocab], [rows, vocab] or None, [rows], one rule a row -> [rows, vocab].

    The logits are those that would be sampled from (temperature and truncation done). No draft probabilities: the
    drafted token was chosen, not drawn. Rows without a rule, with a lossless one, with a placeholder (−1) for a
    draft, or with h = q keep their logits bit by bit. The given tensor is not written to.
    """
    groups: dict[Rule, list[int]] = {}
    for row, rule in enumerate(rules):
        if rule is not None and not rule.lossless:
            groups.setdefault(rule, []).append(row)
    if len(groups) == 1 and len(rules) == len(next(iter(groups.values()))):
        return _adjusted(next(iter(groups)), target_logits, draft_probs, draft_tokens)
    result = target_logits.clone() if groups else target_logits
    for rule, rows in groups.items():
        at = torch.tensor(rows, device=target_logits.device)
        drafts = None if draft_probs is None else draft_probs[at]
        result[at] = _adjusted(rule, target_logits[at], drafts, draft_tokens[at])
    return result


def _adjusted(rule: Rule, logits: Tensor, draft_probs: Tensor | None, draft_tokens: Tensor) -> Tensor:
    verifier_probs = logits.softmax(-1, dtype=torch.float32)
    tokens = draft_tokens.long().clamp(min=0)
    if draft_probs is None:
        draft_probs = torch.zeros_like(verifier_probs).scatter_(-1, tokens.unsqueeze(-1), 1.0)
    adjusted = rule.adjusted_rows(draft_probs, verifier_probs, tokens)
    unchanged = (adjusted == verifier_probs).all(-1) | (draft_tokens < 0)
    return torch.where(unchanged.unsqueeze(-1), logits, adjusted.log().to(logits.dtype))
