"""The exact output distribution of a lift rule, in O(V log V).

    out(x) = min(p(x), γ_x) + Σ_n w_n·(s_n·q(x) − p(x))₊ / Z(s_n)
    w_n = (p_n − γ_n)₊,  s_n = (1 − γ_n)/(1 − q_n),  Z(s) = Σ_x (s·q(x) − p(x))₊

The residual after a rejection of n depends on n only through s_n (and is 0 at n itself, since
γ_n < p_n there), so x receives from n iff p(x)/q(x) < s_n. Tokens whose ratio is at most the
smallest s_n receive from all; only those between the smallest and the largest need sorting.
Knows nothing of how γ was chosen.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cactus.divergence import wide


def lift_scale(boosted_prob: Tensor, verifier_prob: Tensor) -> Tensor:
    """s = (1−γ)/(1−q_n), by which a lift scales every token but n. 0 where q_n = 1."""
    rest = 1 - verifier_prob
    return torch.where(rest > 0, (1 - boosted_prob) / rest, torch.zeros_like(rest))


def lift_output_probs(draft_probs: Tensor, verifier_probs: Tensor, rejectable: Tensor, boosted: Tensor) -> Tensor:
    """out for [vocab] rows, given the k tokens with γ_n < p_n and their γ: [k], [k]."""
    output = draft_probs.clone()
    if rejectable.numel() == 0:
        return output
    output[rejectable] = boosted.to(output.dtype)
    rejected = wide(draft_probs[rejectable]) - boosted  # [k] w_n
    scale = lift_scale(boosted, wide(verifier_probs[rejectable]))  # [k] s_n
    bands = _split(draft_probs, verifier_probs, scale)
    _pour(output, draft_probs, verifier_probs, bands, scale, rejected)
    return output


@dataclass(frozen=True)
class _Bands:
    always: Tensor  # [vocab] bool: receives from every rejected token
    inside: Tensor  # [b] tokens that receive from some, by rising ratio
    rank: Tensor  # [k] how many of `inside` the rejected token n feeds
    verifier_mass: Tensor  # [b+1] Σ q over `always` and the first j of `inside`
    draft_mass: Tensor  # [b+1] the same for p


def _split(draft_probs: Tensor, verifier_probs: Tensor, scale: Tensor) -> _Bands:
    low, high = scale.min(), scale.max()
    always = draft_probs <= verifier_probs * low
    inside = (~always & (draft_probs < verifier_probs * high)).nonzero().squeeze(-1)
    ratio, order = (wide(draft_probs[inside]) / wide(verifier_probs[inside])).sort()
    inside = inside[order]
    return _Bands(
        always=always,
        inside=inside,
        rank=torch.searchsorted(ratio, scale),
        verifier_mass=_running_mass(verifier_probs, always, inside),
        draft_mass=_running_mass(draft_probs, always, inside),
    )


def _running_mass(probs: Tensor, always: Tensor, inside: Tensor) -> Tensor:
    base = wide((probs * always).sum()).unsqueeze(0)
    return torch.cat((base, wide(probs[inside]))).cumsum(0)  # [b+1]


def _pour(
    output: Tensor,
    draft_probs: Tensor,
    verifier_probs: Tensor,
    bands: _Bands,
    scale: Tensor,
    rejected: Tensor,
) -> None:
    """Add to `output` what each token receives from the rejected ones."""
    residual = scale * bands.verifier_mass[bands.rank] - bands.draft_mass[bands.rank]  # [k] Z
    weight = rejected / torch.maximum(residual, rejected)  # Z ≥ w_n, but for rounding
    reach = _suffix_sums(bands.rank, weight, bands.inside.numel())  # [b+1]
    scaled = _suffix_sums(bands.rank, weight * scale, bands.inside.numel())  # [b+1]
    everyone = (verifier_probs * scaled[0] - draft_probs * reach[0]).clamp(min=0)
    output += everyone * bands.always
    some = wide(verifier_probs[bands.inside]) * scaled[1:]
    some = (some - wide(draft_probs[bands.inside]) * reach[1:]).clamp(min=0)
    output[bands.inside] += some.to(output.dtype)


def _suffix_sums(rank: Tensor, weight: Tensor, count: int) -> Tensor:
    """At j: the summed weight of those that feed at least j tokens of the inside band."""
    by_rank = weight.new_zeros(count + 1).index_add(0, rank, weight)
    return by_rank.flip(0).cumsum(0).flip(0)
