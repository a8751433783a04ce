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
REDRAWS = 8


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
        for unknown in values.keys() - fields.keys():
            raise ValueError(f"sampling has no setting {unknown!r}; it takes {', '.join(fields)}")
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
    logits = logits.float()
    check_finite(logits)
    if params.repetition_penalty != 1.0 and contexts is not None:
        logits = penalised(logits, contexts, params.repetition_penalty)
    if params.temperature == 0.0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, best, 1.0)
    # From the row's maximum, so that no temperature can overflow; one copy, then in place.
    logits = (logits - logits.amax(-1, keepdim=True)).div_(max(params.temperature, COLDEST))
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


def penalised(logits: Tensor, contexts: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Seen tokens' logits divided by the penalty where positive, multiplied where negative."""
    vocab = logits.shape[-1]
    rows = logits.reshape(-1, vocab).clone()  # [rows, vocab]
    if len(contexts) != len(rows):
        raise ValueError(f"contexts must hold {len(rows)} rows of token ids, got {len(contexts)}")
    for row, context in zip(rows, contexts, strict=True):
        seen = [token for token in set(context) if 0 <= token < vocab]
        ids = torch.tensor(seen, dtype=torch.long, device=row.device)
        values = row[ids]
        row[ids] = torch.where(values < 0, values * penalty, values / penalty)
    return rows.view_as(logits)


def _truncated(logits: Tensor, params: SamplingParams) -> Tensor:
    """Softmax after top-k, top-p and min-p. `logits` is ours to change."""
    vocab = logits.shape[-1]
    if 0 < params.top_k < vocab:
        last = logits.topk(params.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill_(logits < last, -math.inf)
    probs = logits.softmax(-1)
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
    size = min(NUCLEUS_HEAD, vocab)
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
    mass = wide(probs).cumsum(0)
    total = mass[-1]
    if not (bool(total.isfinite()) and total > 0):
        raise ValueError(f"cannot draw from probabilities that sum to {total.item()}")
    for _ in range(REDRAWS):
        target = uniforms(1, generator).to(mass) * total
        token = int(torch.searchsorted(mass, target, right=True))
        # By construction the token has probability, but for rounding at the end: never trust it.
        if token < len(probs) and probs[token] > 0:
            return token
    raise RuntimeError(f"no token of positive probability in {REDRAWS} draws")


def uniforms(count: int, generator: torch.Generator) -> Tensor:
    """float64 numbers in [0, 1): [count]."""
    return torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)


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
