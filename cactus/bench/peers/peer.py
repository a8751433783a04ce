"""What the benchmark asks of another library. Protocol only; knows no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cactus.bench.contest import Contestant
from cactus.pairs import Pair
from cactus.sampling import SamplingParams


@dataclass(frozen=True)
class Task:
    """What every contestant does: the same pair, sampling and length."""

    pair: Pair
    sampling: SamplingParams
    max_new_tokens: int


@dataclass(frozen=True)
class Entry:
    """The settings a peer takes part with, and what a reader must know of them (or of what it cannot do here)."""

    contestants: Sequence[Contestant]
    notes: Sequence[str]


class Peer(Protocol):
    """Another library that can decode with the same models."""

    def enter(self, task: Task) -> Entry:
        """All settings to be tried; the report takes the best one of each method."""
