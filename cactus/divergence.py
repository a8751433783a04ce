"""How far one distribution is from another, and how far a budget lets a probability rise.

Knows nothing of acceptance rules beyond asking one for its output distribution, and nothing
of models, text or the page. All divergences are in nats (or, for `tv` and `hellinger`, in
[0, 1]) and take the adjusted distribution first: D(adjusted ‖ verifier).

The boosted probability of a step (Cactus, arXiv 2604.04987) is

    γ* = max { γ in [q_n, 1] : D((γ, 1−γ) ‖ (q_n, 1−q_n)) ≤ δ },

because the lift h(n) = γ, h(x) = q(x)(1−γ)/(1−q_n) for x ≠ n scales everything but n by one
number, so that only the two parts n and not-n matter. Corollary 5 is its second-order answer,
γ* = min(1, q_n + √(2δ·q_n(1−q_n))), which solves ½χ²(h‖q) = δ exactly.
"""

import reprlib
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cactus.acceptance import Rule

SUM_TOLERANCE = 0.01  # what rounding to half precision may leave
SOLVER_STEPS = 100  # a safeguard: about fifteen are taken
HALVING_EVERY = 8
SOLVER_PRECISION = 1e-15  # of the larger end of the bracket


def output_probs(rule: "Rule", draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
    """The exact distribution of the token one step of `rule` emits: [vocab] -> [vocab].

    `ValueError` for what are no distributions.
    """
    for name, probs in (("draft_probs", draft_probs), ("verifier_probs", verifier_probs)):
        if isinstance(probs, Tensor) and probs.dim() and probs.numel():  # else the rule itself names what it is
            _check_distributions(name, probs)
    return rule.output_probs(draft_probs, verifier_probs)


def _check_distributions(name: str, probs: Tensor) -> None:
    if not (least := float(probs.amin())) >= 0:  # NaN is not, either
        raise ValueError(f"{name} must hold probabilities from 0 to 1, got {least:.3g}")
    if (far := float((wide(probs).sum(-1) - 1).abs().amax())) > SUM_TOLERANCE:
        raise ValueError(f"{name} must be a distribution, but its sum is {far:.3g} from 1")


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, or in float32 on the one device (MPS) that has no float64."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def as_numbers(compare: Callable[..., Tensor], left: Tensor, right: Tensor | float) -> Tensor:
    """`compare` element by element, 1 where it holds and else 0, in the shape and dtype of `left`.

    On a CPU a third of the price of booleans, which are not vectorised.
    """
    return compare(left, right, out=torch.empty_like(left, memory_format=torch.contiguous_format))


# --- divergences of distributions over the last dimension: [..., vocab] -> [...] ---------------


def entropy(probs: Tensor) -> Tensor:
    """H = −Σ p ln p, in nats."""
    return -_log(probs).mul_(probs).sum(-1).clamp(max=0)


def kl(probs: Tensor, reference: Tensor) -> Tensor:
    """KL(probs ‖ reference); infinite where probs has mass that the reference lacks."""
    ratio = probs / reference.clamp(min=torch.finfo(reference.dtype).tiny)
    total = _log(ratio).mul_(probs).sum(-1).clamp(min=0)
    outside = as_numbers(torch.eq, reference, 0).mul_(probs).sum(-1)
    return torch.where(outside > 0, torch.inf, total)


def reverse_kl(probs: Tensor, reference: Tensor) -> Tensor:
    """KL(reference ‖ probs)."""
    return kl(reference, probs)


def chi2(probs: Tensor, reference: Tensor) -> Tensor:
    """Pearson's χ² = Σ (probs − reference)²/reference."""
    gap = (probs - reference).square()
    return torch.where(gap > 0, gap / reference, 0.0).sum(-1)


def total_variation(probs: Tensor, reference: Tensor) -> Tensor:
    """½ Σ |probs − reference|, in [0, 1]."""
    return 0.5 * (probs - reference).abs().sum(-1)


def hellinger(probs: Tensor, reference: Tensor) -> Tensor:
    """Squared Hellinger distance ½ Σ (√probs − √reference)², in [0, 1]."""
    return 0.5 * (probs.sqrt() - reference.sqrt()).square().sum(-1)


def js(probs: Tensor, reference: Tensor) -> Tensor:
    """Jensen–Shannon divergence, in [0, ln 2]."""
    middle = 0.5 * (probs + reference)
    return 0.5 * (kl(probs, middle) + kl(reference, middle))


Divergence = Callable[[Tensor, Tensor], Tensor]

DIVERGENCES: Mapping[str, Divergence] = MappingProxyType(
    {
        "kl": kl,
        "reverse_kl": reverse_kl,
        "chi2": chi2,
        "tv": total_variation,
        "hellinger": hellinger,
        "js": js,
    }
)


def binary_divergence(prob: Tensor, verifier_prob: Tensor, divergence: str = "kl") -> Tensor:
    """D of (prob, 1−prob) from (verifier_prob, 1−verifier_prob), element by element.

    It is the divergence of the whole lifted distribution h from the verifier's.
    """
    prob, verifier_prob = torch.broadcast_tensors(prob, verifier_prob)
    if divergence == "kl":
        return _binary_kl(prob, verifier_prob)
    return _named(divergence)(_two_parts(prob), _two_parts(verifier_prob))


def _binary_kl(prob: Tensor, verifier_prob: Tensor) -> Tensor:
    """The same as `kl` of the two parts, in half as many steps: the solver takes it again and again."""
    rest, verifier_rest = (1 - prob).clamp_(min=0), (1 - verifier_prob).clamp_(min=0)
    total = (_log(prob) - _log(verifier_prob)) * prob + (_log(rest) - _log(verifier_rest)) * rest
    outside = ((verifier_prob == 0) & (prob > 0)) | ((verifier_rest == 0) & (rest > 0))
    return total.clamp_(min=0).masked_fill_(outside, torch.inf)


# --- the boosted probability -------------------------------------------------------------------


def taylor_boosted_prob(verifier_prob: Tensor | float, delta: Tensor | float) -> Tensor:
    """Corollary 5: min(1, q_n + √(2δ·q_n(1−q_n)))."""
    start = _as_tensor(verifier_prob)
    spread = (start * (1 - start)).clamp(min=0)  # q(1−q) is the variance of the indicator of n
    return (start + (2 * _checked(delta) * spread).sqrt()).clamp(max=1)


def boosted_prob(verifier_prob: Tensor | float, delta: Tensor | float, divergence: str = "kl") -> Tensor:
    """The exact γ*: the largest γ in [q_n, 1] whose lift stays within `delta`.

    All elements at once, and from below, so the budget is kept. A verifier probability of 0
    stays 0 under `kl` and `chi2`, which are infinite there; the other four are finite, so
    they lift even a token that the verifier rules out.
    """
    given = _as_tensor(verifier_prob)
    start = wide(given)
    budget = torch.as_tensor(_checked(delta), dtype=start.dtype, device=start.device)
    start, budget = torch.broadcast_tensors(start, budget)

    def cost(prob: Tensor) -> Tensor:
        return binary_divergence(prob, start, divergence)

    # Infinite before 1 means infinite everywhere above the start, which is then 0.
    liftable = cost(0.5 * (start + 1)).isfinite()
    return largest_within(cost, start, torch.where(liftable, 1.0, start), budget).to(given.dtype)


def largest_within(cost: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, budget: Tensor) -> Tensor:
    """The largest x in [low, high] with cost(x) ≤ budget, where cost rises from cost(low) = 0.

    A divergence grows with the square of the distance at first, so its root is nearly a
    straight line: bracketed secant steps on √cost − √budget (the Illinois variant: an end
    that stays twice counts half), with a halving now and then. Returns the end that fits.
    """
    goal = budget.sqrt()
    at_low, at_high = -goal, cost(high).sqrt() - goal
    low = torch.where(at_high <= 0, high, low)
    # A budget of 0 buys nothing, though rounding might let it.
    high = torch.where(budget > 0, high, low)
    moved_low = torch.zeros_like(low, dtype=torch.bool)
    for step in range(SOLVER_STEPS):
        least = SOLVER_PRECISION * high
        if bool((high - low <= least).all()):
            break
        middle = 0.5 * (low + high)
        if (step + 1) % HALVING_EVERY:
            secant = low - at_low * (high - low) / (at_high - at_low)
            secant = torch.clamp(secant, low + least, high - least)  # to close in from both ends
            middle = torch.where(at_high.isfinite() & (high - low > 2 * least), secant, middle)
        value = cost(middle).sqrt() - goal
        fits = value <= 0
        again = (fits == moved_low) & (step > 0)
        at_low = torch.where(fits, value, torch.where(again, 0.5 * at_low, at_low))
        at_high = torch.where(fits, torch.where(again, 0.5 * at_high, at_high), value)
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        moved_low = fits
    return low


def _log(probs: Tensor) -> Tensor:
    """ln, but finite at 0, where it is only ever multiplied by 0: log(0) is ten times slower."""
    return probs.clamp(min=torch.finfo(probs.dtype).tiny).log_()


def _named(divergence: str) -> Divergence:
    if divergence not in DIVERGENCES:
        raise ValueError(f"divergence must be one of {', '.join(DIVERGENCES)}, got {divergence!r}")
    return DIVERGENCES[divergence]


def _two_parts(prob: Tensor) -> Tensor:
    parts = torch.stack((prob, (1 - prob).clamp(min=0)))  # [2, ...], each part contiguous
    return parts.movedim(0, -1)  # [..., 2]


def _as_tensor(value: Tensor | float) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if not (_is_number(value) and 0 <= value <= 1):
        raise ValueError(f"verifier_prob must be a number between 0 and 1, got {reprlib.repr(value)}")
    return torch.tensor(value, dtype=torch.float64)


def _checked(delta: Tensor | float) -> Tensor | float:
    if isinstance(delta, Tensor):  # a tensor is computed by a rule, from a checked parameter
        return delta
    if not (_is_number(delta) and 0 <= delta <= sys.float_info.max):
        raise ValueError(f"delta must be a finite number of at least 0, got {reprlib.repr(delta)}")
    return float(delta)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
