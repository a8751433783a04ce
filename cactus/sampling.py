"""From logits to the one distribution that is sampled, tested and recovered from; seeded draws.

The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p. Both
models go through the same function, so nothing is truncated for one of them alone. Knows
nothing of models, rules or rounds, and never touches the global random state.

Ties are kept whole: top-k keeps every token level with the k-th, top-p every token level with
the last one it needs (a token stays iff the mass of strictly more probable ones is < top_p).
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from cactus.divergence import wide

NUCLEUS_HEAD = 1024  # a nucleus within this many tokens is found without sorting the rest,
NUCLEUS_GROWTH = 8  # else this many times more are looked at
COLDEST = 1e-30  # colder is the same in float32, and would divide by 0
SPARES = 3  # further draws, should rounding make one impossible


class NonFiniteLogits(ValueError):
    """A model returned NaN or infinite logits, from which no distribution follows."""


@dataclass(frozen=True)
class SamplingParams:
    """How logits become probabilities, for both models alike. Checks itself."""

    temperature: float = 1.0  # 0 is the one-hot of the largest logit
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        checked = {
            "temperature": _number("temperature", self.temperature, 0.0, 100.0),
            "top_k": _whole("top_k", self.top_k),
            "top_p": _number("top_p", self.top_p, 0.0, 1.0, above=True),
            "min_p": _number("min_p", self.min_p, 0.0, 1.0),
            "repetition_penalty": _number("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, float | int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        fields = cls.__dataclass_fields__
        if not isinstance(values, Mapping):
            raise ValueError(f"sampling must be settings by name, got {reprlib.repr(values)}")
        for unknown in values.keys() - fields.keys():
            raise ValueError(f"sampling has no setting {unknown!r:.60}; it takes {', '.join(fields)}")
        return cls(**values)


def probs_from_logits(
    logits: Tensor,
    params: SamplingParams,
    contexts: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """The distribution to sample from, in float32: [..., vocab] -> [..., vocab].

    `contexts` holds the token ids seen before each row, for the repetition penalty alone. A
    logit of −inf rules a token out; NaN, +inf, or a row of nothing but −inf is refused.
    """
    check_finite(logits)
    seen = None
    if params.repetition_penalty != 1.0 and contexts is not None:
        seen = seen_tokens(contexts, logits).view_as(logits)
    return distribution(logits, params, seen)


def distribution(logits: Tensor, params: SamplingParams, seen: Tensor | None = None) -> Tensor:
    """`probs_from_logits` without a look at the numbers, so that nothing waits for them.

    `seen` [..., vocab]: whether a token came before, for the repetition penalty. A row that would be refused is
    nothing but NaN.
    """
    logits = logits.float()
    if params.repetition_penalty != 1.0 and seen is not None:
        logits = penalised(logits, seen, params.repetition_penalty)
    peak = logits.amax(-1, keepdim=True)  # NaN and +inf win a maximum; a row of −inf has −inf
    if params.temperature == 0.0:
        best, sure = logits.argmax(-1, keepdim=True), peak - peak + 1.0  # NaN where the peak is no finite number
        return (torch.zeros_like(logits) * sure).scatter_(-1, best, sure)
    # From the row's maximum, so that no temperature can overflow; one copy, then in place.
    logits = (logits - peak).div_(max(params.temperature, COLDEST))
    return _truncated(logits, params)


def check_finite(logits: Tensor) -> None:
    """NonFiniteLogits unless every row has a largest logit and it is a finite number."""
    if not logits.numel():
        return
    peaks = logits.amax(-1)  # NaN and +inf win a maximum; a row of −inf has −inf
    if bool(peaks.isfinite().all()):
        return
    bad = peaks[~peaks.isfinite()][0].item()
    what = "only −inf" if bad == -math.inf else ("+inf" if bad == math.inf else "NaN")
    raise NonFiniteLogits(
        f"the model's logits contain {what}: every row needs a finite largest logit "
        "(a float16 overflow or damaged weights are the usual cause)"
    )


def seen_tokens(contexts: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """Which tokens came before each row of logits: bool [rows, vocab]."""
    vocab, count = logits.shape[-1], logits.shape[:-1].numel()
    if len(contexts) != count:
        raise ValueError(f"contexts must hold {count} rows of token ids, got {len(contexts)}")
    seen = torch.zeros(count, vocab, dtype=torch.bool, device=logits.device)
    for row, context in zip(seen, contexts, strict=True):
        known = [token for token in set(context) if 0 <= token < vocab]
        row[torch.tensor(known, dtype=torch.long, device=row.device)] = True
    return seen


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Seen tokens' logits divided by the penalty where positive, multiplied where negative."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def _truncated(logits: Tensor, params: SamplingParams) -> Tensor:
    """Softmax after top-k, top-p and min-p. `logits` is ours to change."""
    vocab = logits.shape[-1]
    if 0 < params.top_k < vocab:
        last = logits.topk(params.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill_(logits < last, -math.inf)
    probs = torch.softmax(logits, -1, out=logits)
    if params.top_p == 1.0 and params.min_p == 0.0:
        return probs
    least = params.min_p * probs.amax(-1, keepdim=True)
    if params.top_p < 1.0:
        least = torch.maximum(least, nucleus_cutoff(probs, params.top_p))
    probs = probs.masked_fill_(probs < least, 0.0)
    return probs.div_(probs.sum(-1, keepdim=True))


def nucleus_cutoff(probs: Tensor, top_p: float) -> Tensor:
    """The smallest probability in each row's nucleus: [..., vocab] -> [..., 1].

    It is the first, by falling probability, at which the running mass reaches top_p.
    """
    vocab = probs.shape[-1]
    # On an accelerator sorting is cheaper than the wait to see whether it was needed.
    size = min(NUCLEUS_HEAD, vocab) if probs.device.type == "cpu" else vocab
    while True:
        head = probs.topk(size, dim=-1).values  # [..., size], falling
        mass = wide(head).cumsum(-1)
        if size == vocab or bool((mass[..., -1] >= top_p).all()):
            break
        size = min(size * NUCLEUS_GROWTH, vocab)
    index = (mass < top_p).sum(-1, keepdim=True).clamp(max=size - 1)
    return head.gather(-1, index)


def draw(probs: Tensor, generator: torch.Generator) -> int:
    """One token id from [vocab] probabilities; never one of probability 0."""
    total = wide(probs).sum().item()
    if not (math.isfinite(total) and total > 0):
        raise ValueError(f"cannot draw from probabilities that sum to {total}")
    token = int(pick(probs, generator))
    if not probs[token] > 0:
        raise RuntimeError(f"no token of positive probability in {1 + SPARES} draws")
    return token


def pick(probs: Tensor, generator: torch.Generator) -> Tensor:
    """`draw` without a look at the numbers, so that nothing waits for them: an id [1].

    The id has probability 0 only where `draw` would refuse; whoever reads it must check.
    """
    mass = wide(probs).cumsum(0)
    targets = uniforms(1 + SPARES, generator).to(mass) * mass[-1]
    tokens = torch.searchsorted(mass, targets, right=True).clamp_(max=len(probs) - 1)
    # By construction a token has probability, but for rounding at the end: never trust it, take the first that has.
    first = (probs[tokens] > 0).int().argmax(0, keepdim=True)
    return tokens[first]


def uniforms(count: int, generator: torch.Generator) -> Tensor:
    """Numbers in [0, 1), float64 where the device has it: [count]."""
    kind = torch.float32 if generator.device.type == "mps" else torch.float64
    return torch.rand(count, generator=generator, dtype=kind, device=generator.device)


def _number(name: str, value: Any, low: float, high: float, above: bool = False) -> float:
    number = _real(value)
    if not low <= number <= high or (above and number == low):
        words = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be a number {words}, got {reprlib.repr(value)}")
    return number


def _whole(name: str, value: Any) -> int:
    number = _real(value)
    if not number >= 0 or not number.is_integer():
        raise ValueError(f"{name} must be a whole number of at least 0, got {reprlib.repr(value)}")
    return int(number)


def _real(value: Any) -> float:
    """The value as a float; NaN, which is in no range, for what is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
