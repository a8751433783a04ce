"""Rounds early and late in one text: medians around two places, and a bare verifier pass at each.

The bare pass tells what the models' own attention adds: it is timed over the same numbers of tokens, outside any run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cactus.bench.long_rounds import PROMPT, RoundCost
from cactus.errors import CactusError
from cactus.metrics import ratio
from cactus.pairs import Pair
from cactus.settings import DraftLength

WINDOW = 50  # rounds that begin so many tokens before or behind a place belong to it
PASSES = 25
CHUNK = 512
NEGLIGIBLE = 0.02  # of a round: less growth than this is not split into shares


@dataclass(frozen=True)
class Place:
    """Medians over the rounds around one length of the text, and a bare verifier pass at that length."""

    tokens: int
    rounds: int
    round_seconds: float
    draft_seconds: float
    verify_seconds: float
    judge_seconds: float
    other_seconds: float
    bare_pass_seconds: float
    page_bytes: float
    page_seconds: float


@dataclass(frozen=True)
class Growth:
    """One method at both places. explained: share of a round's growth that the models' own passes make."""

    method: str
    num_draft_tokens: DraftLength
    early: Place
    late: Place

    @property
    def growth_seconds(self) -> float:
        return self.late.round_seconds - self.early.round_seconds

    @property
    def passes_growth_seconds(self) -> float:
        early, late = self.early, self.late
        return late.verify_seconds + late.draft_seconds - early.verify_seconds - early.draft_seconds

    @property
    def explained(self) -> float | None:
        if self.growth_seconds < NEGLIGIBLE * self.early.round_seconds:
            return None
        return ratio(self.passes_growth_seconds, self.growth_seconds)


def growth(method: str, length: DraftLength, costs: Sequence[RoundCost], places: tuple[int, int], pair: Pair) -> Growth:
    """The rounds around both places."""
    early, late = (_place(costs, place, length, pair) for place in places)
    return Growth(method, length, early, late)


def _place(costs: Sequence[RoundCost], place: int, length: DraftLength, pair: Pair) -> Place:
    near = [cost for cost in costs if abs(cost.begins - place) <= WINDOW]
    near = [cost for cost in near if cost.drafted == length] or near  # whole drafts, where there are any
    if not near:
        raise CactusError(f"the text ended before {place:,} tokens; nothing could be compared")

    def median(name: str) -> float:
        return statistics.median(getattr(cost, name) for cost in near)

    return Place(
        tokens=place,
        rounds=len(near),
        round_seconds=median("seconds"),
        draft_seconds=median("draft_seconds"),
        verify_seconds=median("verify_seconds"),
        judge_seconds=median("judge_seconds"),
        other_seconds=median("other_seconds"),
        bare_pass_seconds=bare_pass(pair, place, 1 + round(median("drafted"))),
        page_bytes=median("page_bytes"),
        page_seconds=median("page_seconds"),
    )


def bare_pass(pair: Pair, cached: int, fed: int) -> float:
    """Seconds of a verifier pass over `fed` tokens behind the prompt and `cached` tokens, in no run: the median."""
    tokens = pair.codec.encode_prompt(PROMPT)
    tokens = (tokens * (1 + (cached + len(tokens)) // len(tokens)))[: cached + len(tokens)]
    verifier = pair.new_verifier()
    for start in range(0, len(tokens), CHUNK):
        verifier.feed(tokens[start : start + CHUNK])
        verifier.rewind(verifier.length)
    seconds = []
    for _ in range(PASSES):
        began = time.perf_counter()
        verifier.feed(tokens[:fed], keep=fed)
        seconds.append(time.perf_counter() - began)
        verifier.rewind(len(tokens))
    return statistics.median(seconds)
