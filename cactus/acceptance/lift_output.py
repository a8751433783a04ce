"""The exact output distribution of a lift rule, in O(V log V).

    out(x) = min(p(x), γ_x) + Σ_n w_n·(s_n·q(x) − p(x))₊ / Z(s_n)
    w_n = (p_n − γ_n)₊,  s_n = (1 − γ_n)/(1 − q_n),  Z(s) = Σ_x (s·q(x) − p(x))₊

The residual after a rejection of n depends on n only through s_n (and is 0 at n itself, since
γ_n < p_n there), so x receives from n iff p(x)/q(x) < s_n. Tokens whose ratio is at most the
smallest s_n receive from all; only those between the smallest and the largest need sorting.
All rows of a block go through together. Where few tokens can be rejected, as at a usual δ, each of
their residuals is poured out by itself: no sorting. Knows nothing of how γ was chosen.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus.divergence import as_numbers, wide
from cactus.transfer import filled_columns, is_far

FEW = 16  # residuals that are poured out one by one: about as many as sorting costs


def lift_scale(boosted_prob: Tensor, verifier_prob: Tensor) -> Tensor:
    """s = (1−γ)/(1−q_n), by which a lift scales every token but n. 0 where q_n = 1."""
    rest = 1 - verifier_prob
    return torch.where(rest > 0, (1 - boosted_prob) / rest, torch.zeros_like(rest))


def lift_output_probs(draft_probs: Tensor, verifier_probs: Tensor, rejectable: Tensor, boosted: Tensor) -> Tensor:
    """out for [m, vocab] rows, given the k tokens that some row can reject, and their γ [m, k], p where not less."""
    output = draft_probs.clone()
    if rejectable.numel() == 0:
        return output
    output[:, rejectable] = boosted.to(output.dtype)
    rejected = wide(draft_probs[:, rejectable]) - boosted  # [m, k] w_n
    scale = lift_scale(boosted, wide(verifier_probs[:, rejectable]))
    scale = torch.where(rejected > 0, scale, 1.0)  # [m, k] s_n; 1 is no bound, as γ ≥ q
    if not is_far(output.device) and len(pairs := (rejected > 0).nonzero()) <= FEW:
        return _pour_each(output, draft_probs, verifier_probs, pairs, scale, rejected)
    bands = _split(draft_probs, verifier_probs, scale, torch.where(rejected > 0, scale, 0.0).amax(-1, keepdim=True))
    _pour(output, draft_probs, verifier_probs, bands, scale, rejected)
    return output


@dataclass(frozen=True)
class _Bands:
    always: Tensor  # [m, vocab] 1 for those that receive from every rejected token, else 0
    tokens: Tensor  # [b] those that in some row receive from some
    order: Tensor  # [m, b] by rising ratio, those that receive from none last
    draft: Tensor  # [m, b] p in that order, 0 for those that receive from none
    verifier: Tensor  # [m, b] the same for q
    rank: Tensor  # [m, k] how many of `tokens`, in that order, the rejected token n feeds
    draft_mass: Tensor  # [m, b+1] Σ p over `always` and the first j of `tokens`
    verifier_mass: Tensor  # [m, b+1] the same for q


def _split(draft_probs: Tensor, verifier_probs: Tensor, scale: Tensor, high: Tensor) -> _Bands:
    low = scale.amin(-1, keepdim=True).to(draft_probs.dtype)  # [m, 1]
    always = as_numbers(torch.le, draft_probs, verifier_probs * low)
    some = as_numbers(torch.lt, draft_probs, verifier_probs * high.to(draft_probs.dtype)).sub_(always)
    tokens = filled_columns(some)
    inside = some[:, tokens] > 0
    draft = torch.where(inside, wide(draft_probs[:, tokens]), 0.0)
    verifier = torch.where(inside, wide(verifier_probs[:, tokens]), 0.0)
    ratio, order = torch.where(inside, draft / verifier, torch.inf).sort(-1)
    draft, verifier = draft.gather(-1, order), verifier.gather(-1, order)
    return _Bands(
        always=always,
        tokens=tokens,
        order=order,
        draft=draft,
        verifier=verifier,
        rank=torch.searchsorted(ratio, scale),
        draft_mass=_running_mass(draft_probs * always, draft),
        verifier_mass=_running_mass(verifier_probs * always, verifier),
    )


def _running_mass(always: Tensor, inside: Tensor) -> Tensor:
    return torch.cat((wide(always.sum(-1, keepdim=True)), inside), -1).cumsum(-1)  # [m, b+1]


def _pour(
    output: Tensor,
    draft_probs: Tensor,
    verifier_probs: Tensor,
    bands: _Bands,
    scale: Tensor,
    rejected: Tensor,
) -> None:
    """Add to `output` what each token receives from the rejected ones."""
    residual = scale * bands.verifier_mass.gather(-1, bands.rank) - bands.draft_mass.gather(-1, bands.rank)  # [m, k] Z
    weight = torch.where(rejected > 0, rejected / torch.maximum(residual, rejected), 0.0)  # Z ≥ w_n, but for rounding
    count = bands.tokens.numel() + 1
    reach, scaled = _suffix_sums(bands.rank, weight, count), _suffix_sums(bands.rank, weight * scale, count)
    everyone = verifier_probs * scaled[:, :1].to(output.dtype) - draft_probs * reach[:, :1].to(output.dtype)
    output += everyone.clamp_(min=0).mul_(bands.always)
    some = (bands.verifier * scaled[:, 1:] - bands.draft * reach[:, 1:]).clamp(min=0)  # [m, b]
    output[:, bands.tokens] += torch.empty_like(some).scatter_(-1, bands.order, some).to(output.dtype)


def _pour_each(
    output: Tensor,
    draft_probs: Tensor,
    verifier_probs: Tensor,
    pairs: Tensor,  # [j, 2] places in `scale` and `rejected`
    scale: Tensor,
    rejected: Tensor,
) -> Tensor:
    """`_pour`, residual by residual."""
    for row, column in pairs.tolist():
        residual = wide(verifier_probs[row]).mul(scale[row, column]).sub_(draft_probs[row]).clamp_(min=0)  # [vocab]
        weight = rejected[row, column]
        share = weight / torch.maximum(residual.sum(), weight)  # the sum is ≥ w_n, but for rounding
        output[row].add_(residual.mul_(share).to(output.dtype))
    return output


def _suffix_sums(rank: Tensor, weight: Tensor, count: int) -> Tensor:
    """[m, count]; at j: the summed weight of those that feed at least j tokens of the inside band."""
    by_rank = weight.new_zeros(len(weight), count).scatter_add_(-1, rank, weight)
    return by_rank.flip(-1).cumsum(-1).flip(-1)
