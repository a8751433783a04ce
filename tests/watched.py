"""A pair whose passes can be watched, held up, made to fail or spoiled, over tiny models."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tiny

from cactus.interfaces import CachedModel, Drafter, Output
from cactus.pairs import Pair

VERIFIER, DRAFT = "verifier", "draft model"


@dataclass
class Watch:
    """Hears every pass: which model's, and which of that model's passes since `clear`; may change what comes of it."""

    before: Callable[[str, int], None] = lambda model, number: None
    after: Callable[[str, int, Output], Output] = lambda model, number, output: output
    counts: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        """From now on passes go through as they are, and are counted anew."""
        self.before, self.after, self.counts = Watch().before, Watch().after, {}

    def count(self, model: str) -> int:
        self.counts[model] = self.counts.get(model, 0) + 1
        return self.counts[model]


class Watched:
    """A cached model that tells its watch."""

    def __init__(self, model: CachedModel, name: str, watch: Watch) -> None:
        self._model, self._name, self._watch = model, name, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def feed(self, tokens: Any, keep: int = 1, want_hidden: bool = False) -> Output:
        number = self._watch.count(self._name)
        self._watch.before(self._name, number)
        return self._watch.after(self._name, number, self._model.feed(tokens, keep, want_hidden))

    def fork(self) -> Watched:
        return Watched(self._model.fork(), self._name, self._watch)


@dataclass(frozen=True)
class WatchedPair(Pair):
    watch: Watch = field(default_factory=Watch)

    def new_verifier(self) -> Any:
        return Watched(super().new_verifier(), VERIFIER, self.watch)

    def new_drafter(self) -> Drafter:
        drafter: Any = super().new_drafter()
        drafter.model = Watched(drafter.model, DRAFT, self.watch)
        return drafter


def watched_pair(name: str = "watched", watch: Watch | None = None, static: bool = False) -> WatchedPair:
    made = tiny.pair()
    return WatchedPair(name, made.model, made.codec, made.drafter, static=static, watch=watch or Watch())


class Gate:
    """Holds up whoever comes until it is opened; `reached` is set when somebody has come."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.reached.set()
        assert self.opened.wait(30), "nobody opened the gate"
