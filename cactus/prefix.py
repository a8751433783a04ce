"""The caches of a finished run, kept for the next turn of its conversation: what both prompts begin with stays read.

The next prompt is compared token by token; both caches go back to the longest common beginning, and what follows is
read. So an edited history or another system prompt costs time, never a wrong token; where a cache cannot go back so far
(a sliding window), reading starts afresh. Knows the protocols of `interfaces`; nothing of loops, models or pages.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from cactus.errors import RewindError
from cactus.interfaces import CachedModel, Drafter, ModelPair

CONVERSATIONS = 8
"""Kept at most: a cache of a large model takes about a gigabyte for 8,000 tokens."""


@dataclass(frozen=True)
class Caches:
    """Verifier and drafter of one run. tokens: the run's; the verifier has read the first `verifier.length` of them."""

    verifier: CachedModel
    drafter: Drafter | None
    tokens: Sequence[int] = ()


class Prefix:
    """The caches of one conversation while no run uses them. Safe to share between threads; goes with its pair.

    Only the atomic methods of the deque are used: a pair may be collected in the midst of anything.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[weakref.ref[ModelPair], Caches]] = deque(maxlen=1)
        self._closed = False

    def take(self, pair: ModelPair) -> Caches | None:
        """What was put here last, if it is this pair's; it is the caller's now."""
        try:
            owner, caches = self._held.pop()
        except IndexError:
            return None
        return caches if owner() is pair else None

    def put(self, pair: ModelPair, caches: Caches) -> None:
        """Keep them for the next run; nothing is kept once this is closed."""
        self._held.append((weakref.ref(pair, self._forget), caches))
        if self._closed:
            self._held.clear()

    def close(self) -> None:
        """Forget what is kept, and keep nothing from now on."""
        self._closed = True
        self._held.clear()

    def _forget(self, owner: object) -> None:
        self._held.clear()


class Prefixes:
    """Those of the conversations used last, by names that nobody can guess. Safe to share between threads."""

    def __init__(self, limit: int = CONVERSATIONS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Prefix] = OrderedDict()

    def of(self, conversation: str) -> Prefix | None:
        """The place of this conversation, a new one at its first turn; none for a run outside of any ("")."""
        if not conversation:
            return None
        with self._lock:
            prefix = self._kept.setdefault(conversation, Prefix())
            self._kept.move_to_end(conversation)
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)[1].close()
        return prefix

    def forget(self, conversation: str) -> None:
        """It is over: its caches go, also those of a run still going on when that ends."""
        with self._lock:
            prefix = self._kept.pop(conversation, None)
        if prefix is not None:
            prefix.close()

    def __len__(self) -> int:
        return len(self._kept)


def start(pair: ModelPair, prompt: Sequence[int], drafts: bool, reuse: Prefix | None = None) -> Caches:
    """Caches for a run over `prompt`: empty, or with as much of it as the turn before has left in them."""
    held = reuse.take(pair) if reuse is not None else None
    if held is not None:
        try:
            return _gone_back(pair, held, prompt, drafts)
        except RewindError:
            pass
    return Caches(pair.new_verifier(), pair.new_drafter() if drafts else None)


def _gone_back(pair: ModelPair, held: Caches, prompt: Sequence[int], drafts: bool) -> Caches:
    """Both caches with what `held` and the prompt, but for its last token, begin with."""
    common = common_length(held.tokens, prompt[:-1])
    drafter = (held.drafter or pair.new_drafter()) if drafts else None
    length = min(common, held.verifier.length)
    if drafter is not None and drafter.wants_hidden:
        if held.drafter is None:
            length = 0  # a new one needs the hidden states of all tokens
        elif common < held.verifier.length:
            length = max(0, common - 1)  # and one that goes back, that of the last token it keeps
    held.verifier.rewind(length)
    if drafter is not None:
        drafter.rewind(common)
    return Caches(held.verifier, drafter)


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
