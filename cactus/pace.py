"""How many tokens to draft in a round: always as many as asked for, or as many as pay.

Whether drafting goes on is decided before the next token is drawn, from what the drafter knows: the probabilities it
gave the tokens so far, and how such tokens fared in earlier rounds. So no rule is less exact for it: the number of
drafted tokens is a stopping time of the draft. Costs are measured once for a pair and process, not in the run, so
that a seed gives the same text again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import torch

from cactus.acceptance import Rule
from cactus.settings import MAX_DRAFT_TOKENS

GRADES = 6  # of the drafter's confidence: above 1/2, above 1/4, ...
# What a verifier makes of a drafted token's probability, about equally often: seen on two pairs of very unequal draft
# models. With it a rule says by itself how lenient it is, before a token was judged.
USUAL_RATIOS = (0.003, 0.1, 0.5, 1.0, 2.0)
GUESS_WEIGHT = 3.0  # judged tokens that a first guess counts for
TINY = 1e-12  # seconds: where steps are too quick to be timed


@dataclass(frozen=True)
class StepCosts:
    """Seconds, measured: one draft step, a verifier pass over one token, and each further token of such a pass."""

    draft: float
    verify: float
    verify_more: float

    def round(self, drafted: int) -> float:
        """A round with so many drafted tokens."""
        return self.verify + drafted * self.step

    @property
    def step(self) -> float:
        """One more drafted token: a draft step, and its place in the verifier's pass."""
        return self.draft + self.verify_more


class Pace(Protocol):
    """Asked by the loop; `learn` hears the accept probabilities of a round's judged tokens.

    looks: whether `enough` has to be asked behind every drafted token.
    """

    looks: bool

    def begin(self) -> None:
        """A round begins."""

    def enough(self, draft_prob: float) -> bool:
        """Whether drafting should end behind a token drawn with this probability."""

    def learn(self, accept_probs: Sequence[float], emitted: int) -> None: ...


class Steady:
    """Never enough: the limit decides."""

    looks = False

    def begin(self) -> None: ...

    def enough(self, draft_prob: float) -> bool:
        return False

    def learn(self, accept_probs: Sequence[float], emitted: int) -> None: ...


class Chances:
    """How likely drafted tokens are to pass, by the probability they were drawn with.

    A rule's own first guess for each grade of it, corrected by what was judged: in each grade, and by how much more or
    less was refused over all grades than the guesses had said. The latter helps where little was seen yet.
    """

    def __init__(self, rule: Rule) -> None:
        self._guesses = first_guesses(rule)
        self._passed = [0.0] * GRADES
        self._judged = [0.0] * GRADES
        self._refused = self._expected = GUESS_WEIGHT  # to be refused, over all grades
        guess = sum(self._guesses) / GRADES
        self._all_passed, self._all_judged = GUESS_WEIGHT * guess, GUESS_WEIGHT

    @property
    def mean(self) -> float:
        """Of a token not yet drawn."""
        return self._all_passed / self._all_judged

    def of(self, draft_prob: float) -> float:
        """Of a token drawn with this probability."""
        grade = _grade(draft_prob)
        guess = 1 - min(1.0, (1 - self._guesses[grade]) * self._refused / self._expected)
        return (self._passed[grade] + GUESS_WEIGHT * guess) / (self._judged[grade] + GUESS_WEIGHT)

    def learn(self, draft_prob: float, accept_prob: float) -> None:
        """A token drawn with this probability was accepted with that one."""
        grade = _grade(draft_prob)
        self._passed[grade] += accept_prob
        self._judged[grade] += 1
        self._refused += 1 - accept_prob
        self._expected += 1 - self._guesses[grade]
        self._all_passed += accept_prob
        self._all_judged += 1


@dataclass
class Paying:
    """Goes on while one more token is expected to save more time than it costs.

    A further draft token is emitted if all before it pass and it does: a gain of reach · mean tokens, each worth the
    seconds that a token has taken so far. It costs a draft step and a place in the verifier's pass. At least one
    token is drafted in any case, or nothing would be learnt.
    """

    costs: StepCosts
    rule: Rule
    looks: bool = True
    _drafted: list[float] = field(default_factory=list)  # this round's draft probabilities
    _reach: float = 1.0  # expected probability that all of them pass

    def __post_init__(self) -> None:
        self._chances = Chances(self.rule)
        # As if a round had been made of the length that is best for the first guess.
        most = max(range(1, MAX_DRAFT_TOKENS + 1), key=self._tokens_per_second)
        self._seconds, self._tokens = self.costs.round(most), self._tokens_of(most)

    def begin(self) -> None:
        self._drafted, self._reach = [], 1.0

    def enough(self, draft_prob: float) -> bool:
        self._drafted.append(draft_prob)
        self._reach *= self._chances.of(draft_prob)
        return self._reach * self._chances.mean * self._seconds / self._tokens < self.costs.step

    def learn(self, accept_probs: Sequence[float], emitted: int) -> None:
        for draft_prob, accept_prob in zip(self._drafted, accept_probs, strict=False):
            self._chances.learn(draft_prob, accept_prob)
        self._seconds += self.costs.round(len(self._drafted))
        self._tokens += emitted

    def _tokens_of(self, count: int) -> float:
        """Expected tokens of a round with so many drafted ones."""
        return sum(self._chances.mean**passed for passed in range(count + 1))

    def _tokens_per_second(self, count: int) -> float:
        return self._tokens_of(count) / max(self.costs.round(count), TINY)


@cache
def first_guesses(rule: Rule) -> tuple[float, ...]:
    """Mean accept probability under the rule, by grade, were the verifier's probability one of `USUAL_RATIOS` of the
    drafter's."""
    return tuple(
        sum(_accept_prob(rule, 0.75 / 2**grade, ratio) for ratio in USUAL_RATIOS) / len(USUAL_RATIOS)
        for grade in range(GRADES)
    )


def _accept_prob(rule: Rule, draft_prob: float, ratio: float) -> float:
    """Of a token of this probability, where there is but one other token."""
    verifier_prob = min(draft_prob * ratio, 1.0)
    draft, verifier = (torch.tensor([[prob, 1 - prob]]) for prob in (draft_prob, verifier_prob))
    return rule.accept_probs(draft, verifier, torch.tensor([0])).item()


def _grade(draft_prob: float) -> int:
    if draft_prob <= 0:
        return GRADES - 1
    return min(GRADES - 1, int(-math.log2(min(1.0, draft_prob))))
