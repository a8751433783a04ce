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
from typing import Protocol

GRADES = 6  # of the drafter's confidence: above 1/2, above 1/4, ...
FIRST_GUESS = 0.6  # accept probability before anything is known
GUESS_WEIGHT = 4.0  # judged tokens that the first guess counts for


@dataclass(frozen=True)
class StepCosts:
    """Seconds, measured: one draft step, a verifier pass over one token, and each further token of such a pass."""

    draft: float
    verify: float
    verify_more: float


class Pace(Protocol):
    """Asked by the loop; `learn` hears the accept probabilities of a round's judged tokens."""

    def begin(self) -> None:
        """A round begins."""

    def enough(self, draft_prob: float) -> bool:
        """Whether drafting should end behind a token drawn with this probability."""

    def learn(self, accept_probs: Sequence[float], emitted: int) -> None: ...


class Steady:
    """Never enough: the limit decides."""

    def begin(self) -> None: ...

    def enough(self, draft_prob: float) -> bool:
        return False

    def learn(self, accept_probs: Sequence[float], emitted: int) -> None: ...


@dataclass
class _Mean:
    total: float = FIRST_GUESS * GUESS_WEIGHT
    count: float = GUESS_WEIGHT

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.total / self.count


@dataclass
class Paying:
    """Goes on while one more token is expected to save more time than it costs.

    A further draft token is emitted if all before it pass and it does: a gain of reach · mean tokens, each worth the
    seconds that a token has taken so far. It costs a draft step and a place in the verifier's pass. At least one
    token is drafted in any case, or nothing would be learnt.
    """

    costs: StepCosts
    _grades: list[_Mean] = field(default_factory=lambda: [_Mean() for _ in range(GRADES)])
    _all: _Mean = field(default_factory=_Mean)
    _drafted: list[float] = field(default_factory=list)  # this round's draft probabilities
    _reach: float = 1.0  # expected probability that all of them pass
    _seconds: float = 0.0
    _tokens: float = 0.0

    def __post_init__(self) -> None:
        self._spend(2, 1 + 2 * FIRST_GUESS)  # as if a round had been made

    def begin(self) -> None:
        self._drafted, self._reach = [], 1.0

    def enough(self, draft_prob: float) -> bool:
        self._drafted.append(draft_prob)
        self._reach *= self._grades[_grade(draft_prob)].value
        gain = self._reach * self._all.value * self._seconds / self._tokens
        return gain < self.costs.draft + self.costs.verify_more

    def learn(self, accept_probs: Sequence[float], emitted: int) -> None:
        for draft_prob, accept_prob in zip(self._drafted, accept_probs, strict=False):
            self._grades[_grade(draft_prob)].add(accept_prob)
            self._all.add(accept_prob)
        self._spend(len(self._drafted), emitted)

    def _spend(self, drafted: int, emitted: float) -> None:
        self._seconds += self.costs.verify + drafted * (self.costs.draft + self.costs.verify_more)
        self._tokens += emitted


def _grade(draft_prob: float) -> int:
    if draft_prob <= 0:
        return GRADES - 1
    return min(GRADES - 1, int(-math.log2(min(1.0, draft_prob))))
