"""The distillation loss on the trimmed vocabulary, with its gradient worked out by hand.

With p = draft_probs, q = verifier_probs renormalised over the k tokens:
  cross entropy  -sum q log p          gradient on the logits: p - q
  distance       1 - sum min(p, q)     gradient: p * (sum_x m p - m), m = 1[p < q]
and sum min(p, q) is the acceptance rate of lossless speculative sampling. Working in
blocks of positions keeps the [positions, k] tables in cache and out of the autograd graph.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_POSITIONS = 256  # a block of logits is then a few megabytes


class Distilled(NamedTuple):
    loss: Tensor  # scalar, differentiable
    acceptance: float  # mean sum min(p, q)


def distil(
    draft_hidden: Tensor,  # [positions, hidden], normed
    verifier_hidden: Tensor,  # [positions, hidden], normed
    head: Tensor,  # [k, hidden]
    tv_share: float,
) -> Distilled:
    """Mean over positions of (1 - tv_share) * cross entropy + tv_share * distance."""
    loss, accepted = _Distil.apply(draft_hidden, verifier_hidden, head, tv_share)
    return Distilled(loss, float(accepted))


def distil_logits(draft_logits: Tensor, verifier_logits: Tensor, tv_share: float) -> Distilled:
    """The same of logits [positions, k], for draft models whose head learns too."""
    loss, accepted = _DistilLogits.apply(draft_logits, verifier_logits, tv_share)
    return Distilled(loss, float(accepted))


class _DistilLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, draft_logits: Tensor, verifier_logits: Tensor, tv_share: float) -> tuple[Tensor, Tensor]:
        count = len(draft_logits)
        loss, accepted, slope = _block(draft_logits, verifier_logits, tv_share)
        ctx.save_for_backward(slope / count)
        accepted = accepted / count
        ctx.mark_non_differentiable(accepted)
        return loss / count, accepted

    @staticmethod
    def backward(ctx, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * grad_loss, None, None


class _Distil(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, draft_hidden: Tensor, verifier_hidden: Tensor, head: Tensor, tv_share: float
    ) -> tuple[Tensor, Tensor]:
        draft_hidden_cast = draft_hidden.to(head.dtype)
        verifier_hidden = verifier_hidden.to(head.dtype)
        grad = torch.empty_like(draft_hidden)
        total, accepted = torch.zeros(()), torch.zeros(())
        for rows in torch.arange(len(draft_hidden)).split(_POSITIONS):
            block = slice(int(rows[0]), int(rows[-1]) + 1)
            loss, overlap, slope = _block(draft_hidden_cast[block] @ head.T, verifier_hidden[block] @ head.T, tv_share)
            total += loss
            accepted += overlap
            grad[block] = slope.to(head.dtype) @ head
        count = len(draft_hidden)
        ctx.save_for_backward(grad / count)
        accepted /= count
        ctx.mark_non_differentiable(accepted)
        return total / count, accepted

    @staticmethod
    def backward(ctx, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * grad_loss, None, None, None


def _block(draft_logits: Tensor, verifier_logits: Tensor, tv_share: float) -> tuple[Tensor, ...]:
    """Loss and overlap summed over positions, and the loss's slope in draft_logits [n, k]."""
    draft_log_probs = draft_logits.float().log_softmax(-1)
    draft_probs = draft_log_probs.exp()
    verifier_probs = verifier_logits.float().softmax(-1)
    overlap = torch.minimum(draft_probs, verifier_probs).sum()
    cross_entropy = -torch.dot(verifier_probs.flatten(), draft_log_probs.flatten())
    distance = len(draft_probs) - overlap
    loss = (1 - tv_share) * cross_entropy + tv_share * distance
    slope = (draft_probs - verifier_probs).mul_(1 - tv_share)
    if tv_share:
        below = torch.where(draft_probs < verifier_probs, draft_probs, 0.0)  # m * p
        slope += tv_share * (draft_probs * below.sum(-1, keepdim=True) - below)
    return loss, overlap, slope
