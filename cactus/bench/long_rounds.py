"""What every round of one long text takes: its seconds by part, and what the page would make and send of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cactus.acceptance import make_rule
from cactus.bench.methods import MethodSpec
from cactus.bench.plan import Plan
from cactus.decoding import decode
from cactus.interfaces import TextCodec
from cactus.pairs import Pair
from cactus.settings import DraftLength
from cactus.ui.view import View

PROMPT = "Write a very long story about a journey around the world, with many stops and many people."


@dataclass(frozen=True)
class Endless:
    """A codec whose texts do not end by themselves."""

    codec: TextCodec
    eos_ids: frozenset[int] = frozenset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.codec, name)


@dataclass(frozen=True)
class RoundCost:
    """What one round took. begins: tokens of text before it; seconds; page_bytes: what the page would be sent."""

    begins: int
    drafted: int
    seconds: float
    draft_seconds: float
    verify_seconds: float
    judge_seconds: float
    page_bytes: int
    page_seconds: float

    @property
    def other_seconds(self) -> float:
        return self.seconds - self.draft_seconds - self.verify_seconds - self.judge_seconds


def round_costs(plan: Plan, method: MethodSpec, length: DraftLength, pair: Pair, tokens: int) -> Iterator[RoundCost]:
    """The rounds of a text of so many tokens, as they come."""
    rule = make_rule(method.name, **method.params) if method.drafts else None
    endless = replace(pair, codec=Endless(pair.codec))  # type: ignore[arg-type]
    going = decode(endless, PROMPT, rule, length, plan.sampling, tokens, plan.seed)
    going.prefill()
    view, begins = View(going.trace), 0
    sent = view.shown()
    while True:
        began = time.perf_counter()
        round_ = next(going, None)
        seconds = time.perf_counter() - began
        if round_ is None:
            return
        began = time.perf_counter()
        view.add(round_)
        shown = view.shown()
        page_seconds = time.perf_counter() - began
        yield RoundCost(
            begins=begins,
            drafted=round_.num_draft_tokens,
            seconds=seconds,
            draft_seconds=round_.draft_seconds or 0.0,
            verify_seconds=round_.verify_seconds or 0.0,
            judge_seconds=round_.judge_seconds or 0.0,
            page_bytes=update_bytes(sent, shown),
            page_seconds=page_seconds,
        )
        sent, begins = shown, begins + len(round_.emitted)


def update_bytes(before: Sequence[str], after: Sequence[str]) -> int:
    """What goes to the page: of a value that only grew what is new, otherwise all of it."""
    return sum(
        len(new[len(old) if new.startswith(old) else 0 :].encode()) for old, new in zip(before, after, strict=True)
    )
