"""What every acceptance rule is: a pure function of probabilities that judges drafted tokens.

A drafted token n is accepted iff u < accept_prob; a rejected one is replaced by a draw from
the recovery distribution. Knows nothing of models, tokens' text, random numbers or the page.

    out(x) = p(x)·a(x) + Σ_n p(n)·(1 − a(n))·g_n(x)          (p draft, a accept, g recovery)

is what one step emits. Every rule gives it exactly, as `output_probs`.
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from cactus.acceptance.parameter import Parameter, Value
from cactus.divergence import as_numbers, kl


@dataclass(frozen=True)
class Steps:
    """What a rule says of the m drafted tokens of a round, in drafted order."""

    accept_prob: Tensor  # [m]
    boosted_prob: Tensor  # [m], h(n): the probability the rule gives the drafted token
    kl: Tensor  # [m], KL(h ‖ verifier) in nats
    output_kl: Tensor  # [m], KL(output ‖ verifier) of a step on these rows, in nats


@dataclass(frozen=True)
class Guarantee:
    """A proven bound on a divergence of one step, in nats; `why` is the argument in a few words."""

    of: Literal["KL(h‖q)", "KL(output‖q)", "KL(q‖output)"]
    bound: float
    why: str


@dataclass(frozen=True)
class Rule(ABC):
    """An acceptance rule with its parameters: frozen, compared by value, without side effects.

    Subclasses are frozen dataclasses with one field for each declared parameter.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    formula: ClassVar[str]
    reads: ClassVar[Literal["scalar", "vocabulary"]] = "scalar"  # what a verdict depends on
    lossless: ClassVar[bool] = False
    # Why speculative sampling with h as its target is not the rule; empty where it is, so that any engine can serve it.
    beyond_sampling: ClassVar[str] = "it is not known to be speculative sampling against its h"
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def __post_init__(self) -> None:
        for parameter in self.parameters:
            checked = parameter.check(getattr(self, parameter.name))
            object.__setattr__(self, parameter.name, checked)

    @property
    def params(self) -> dict[str, Value]:
        """The declared parameters' values, by name."""
        return {parameter.name: getattr(self, parameter.name) for parameter in self.parameters}

    @abstractmethod
    def judge(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Steps:
        """The verdicts' numbers for a block: [m, vocab], [m, vocab], [m] -> Steps of [m]."""

    @abstractmethod
    def recovery_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_token: int | Tensor) -> Tensor:
        """What to draw from once `draft_token`, a number or [1], was rejected: [vocab], [vocab] -> [vocab]."""

    @abstractmethod
    def output_probs(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        """The exact distribution of the token one step emits: [..., vocab], [..., vocab] -> [..., vocab]."""

    def output_kl(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        """KL(output ‖ verifier) of one step in nats, 0 for a lossless rule: [..., vocab], [..., vocab] -> [...]."""
        if self.lossless:
            return torch.zeros_like(verifier_probs[..., 0])
        return kl(unchecked(self.output_probs)(draft_probs, verifier_probs), verifier_probs)

    def accept_row(self, draft_probs: Tensor, verifier_probs: Tensor) -> Tensor:
        """The accept probability of every token, were it drafted alone: [vocab], [vocab] -> [vocab]."""
        rows = draft_probs[None], verifier_probs[None]
        tokens = torch.arange(draft_probs.shape[-1], device=draft_probs.device)
        return torch.cat([self.accept_probs(*rows, token[None]) for token in tokens])

    def adjusted_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_token: int | Tensor) -> Tensor:
        """h, what the rule aims at once `draft_token` was drafted: [vocab], [vocab] -> [vocab].

        It is the output itself except where it depends on the drafted token.
        """
        return self.output_probs(draft_probs, verifier_probs)

    def adjusted_rows(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        """h of every row of a block: [m, vocab], [m, vocab], [m] -> [m, vocab]."""
        rows = zip(draft_probs, verifier_probs, draft_tokens.tolist(), strict=True)
        return torch.stack([self.adjusted_probs(*row) for row in rows])

    def guarantees(self, draft_probs: Tensor, verifier_probs: Tensor) -> tuple[Guarantee, ...]:
        """What is proven of one step of this rule on these rows [vocab]; a lossless one spends nothing."""
        return (Guarantee("KL(output‖q)", 0.0, "lossless"),) if self.lossless else ()

    def accept_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        """The accept probabilities of a block: [m, vocab], [m, vocab], [m] -> [m].

        All that a verdict needs, so a rule may have it cheaper than the numbers of `judge`.
        """
        return self.judge(draft_probs, verifier_probs, draft_tokens).accept_prob

    def recovery_at(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor, index: Tensor) -> Tensor:
        """`recovery_probs` [vocab] at `index` [1] of a block [m, vocab] whose earlier tokens were all accepted.

        A rule that stands the same everywhere need not know the index, so nothing waits for it.
        """
        standing = self
        if type(self).at is not Rule.at:
            standing = self.at(draft_probs, verifier_probs, draft_tokens, int(index))
        rows = draft_probs.index_select(0, index)[0], verifier_probs.index_select(0, index)[0]
        return unchecked(standing.recovery_probs)(*rows, draft_tokens.index_select(0, index))

    def at(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor, index: int) -> Self:
        """The rule as it stands at `index` of a block whose earlier tokens were all accepted."""
        return self

    def advance(self, spent: float) -> Self:
        """The rule for the next round, after `spent` nats of KL(h ‖ verifier) on judged tokens."""
        return self


def unchecked(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A rule's public method without the look at its arguments (`checks`): for rows that come from the loop itself."""
    return functools.partial(inspect.unwrap(method.__func__), method.__self__)  # type: ignore[attr-defined]


def chosen(probs: Tensor, tokens: Tensor) -> Tensor:
    """Each row's probability of its token: [m, vocab], [m] -> [m]."""
    return probs.gather(-1, tokens.to(probs.device).unsqueeze(-1)).squeeze(-1)


def acceptance(aim: Tensor, draft_prob: Tensor) -> Tensor:
    """min(1, aim/draft_prob), element by element; 0 where the aim is 0, also for 0/0."""
    return (aim / draft_prob).clamp_(max=1).nan_to_num_(nan=0.0)


def normalised(weights: Tensor, fallback: Tensor) -> Tensor:
    """Rows of `weights` summing to 1; rows without weight take `fallback`'s shape instead.

    The fallback is met by rounding alone: a rejection that leaves no residual to draw from.
    """
    some = as_numbers(torch.gt, weights.sum(-1, keepdim=True), torch.finfo(weights.dtype).tiny)  # [..., 1], 0 or 1
    weights = (weights * some).addcmul_(fallback, 1 - some)
    return weights.div_(weights.sum(-1, keepdim=True))
