"""Who has which static cache: slots of one network, lent to one run at a time and used again.

A cache is as large as its text needs: a text that outgrows it moves to one of twice the size.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from cactus.interfaces import Output
from cactus.models.graphs import Recorder
from cactus.models.slots import WIDEST, Network, Slot

CHUNK = 512  # tokens of a longer feed that go through the network together
SMALLEST = 256  # tokens a cache holds
SLACK = 512  # tokens that a first feed should leave room for
IDLE = 4  # caches kept for later runs

STATIC, GRAPHS = "static caches", "static caches and CUDA graphs"

NewRecorder = Callable[[torch.device], Recorder]


class SlotPool:
    """The slots of one network. A slot belongs to one run at a time and is used again when that run is gone.

    Where a pass could not be captured, nobody tries again: each try would take as long, and fail alike.
    """

    def __init__(self, network: Network, new_recorder: NewRecorder | None = None) -> None:
        self.network = network
        self._new_recorder = new_recorder
        self._launched = ""  # why there are no graphs, though they were wished for
        # Only its atomic methods are used: a run may be collected, and give its slot back, in the midst of anything.
        self._idle: deque[Slot] = deque(maxlen=IDLE)

    @property
    def kind(self) -> str:
        """In words, how passes are run."""
        if self._launched:
            return f"{STATIC}, no CUDA graphs ({self._launched})"
        return GRAPHS if self._new_recorder is not None else STATIC

    @torch.inference_mode()
    def prepare(self, widths: Iterable[int]) -> None:
        """Capture now what an ordinary run needs, so that its first rounds do not have to."""
        slot = self.take(2 * SLACK)
        for width in widths:
            slot.capture(width)
        self.give_back(slot)

    def take(self, length: int) -> Slot:
        """A cleared slot that holds at least `length` tokens."""
        capacity, idle = self._capacity(length), self._drained()
        fitting = [slot for slot in idle if slot.capacity == capacity]
        best = max(fitting, key=lambda slot: len(slot.widths), default=None)
        self._idle.extend(slot for slot in idle if slot is not best)
        if best is not None:
            best.clear()
            return best
        return Slot(self.network, capacity, self._recorder(), self._refuse)

    def give_back(self, slot: Slot) -> None:
        """For later runs; the slot longest unused may have to go. One without graphs, as a long prompt leaves behind
        while it is read, is not worth its memory."""
        if slot.widths:
            self._idle.append(slot)

    def _recorder(self) -> Recorder | None:
        """Each slot has its own: their graphs share memory, and those of two would write into each other's."""
        if self._new_recorder is None or self._launched:
            return None
        try:
            return self._new_recorder(self.network.device)
        except RuntimeError as error:
            self._refuse(str(error).partition("\n")[0])
            return None

    def _refuse(self, reason: str) -> None:
        self._launched = reason
        warnings.warn(f"{self.network.name} runs without CUDA graphs: {reason}", RuntimeWarning, stacklevel=2)

    def _drained(self) -> list[Slot]:
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._idle.popleft())
        return found

    def _capacity(self, length: int) -> int:
        """Powers of two: few sizes, so slots and graphs are used again, and at most half of one is idle."""
        return min(max(SMALLEST, 1 << (length - 1).bit_length()), max(WIDEST, self.network.context_length))


class StaticCache:
    """The cache of one run: a slot of the pool, given back when the run is gone. Not safe to share between threads."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._slot: Slot | None = None
        self._give_back: Callable[[], object] = lambda: None

    @property
    def capacity(self) -> int:
        """Tokens it holds at its present size."""
        return 0 if self._slot is None else self._slot.capacity

    @property
    def widths(self) -> list[int]:
        """Numbers of fed tokens for which there is a graph at its present size."""
        return [] if self._slot is None else self._slot.widths

    def run(
        self,
        start: int,
        tokens: Sequence[int] | Tensor,
        features: Tensor | None = None,
        keep: int = 1,
        want_hidden: bool = False,
    ) -> Output:
        """A pass over `tokens`, the first of them at position `start`; long ones go through in chunks."""
        slot = self._room_for(start, len(tokens))
        outputs = []
        for begin in range(0, len(tokens), CHUNK):
            part = slice(begin, begin + CHUNK)
            chunk, beside = tokens[part], None if features is None else features[part]
            wanted = min(len(chunk), max(1, keep - (len(tokens) - begin - len(chunk))))
            outputs.append(slot.run(start + begin, chunk, beside, wanted, want_hidden))
        return outputs[0] if len(outputs) == 1 else _joined(outputs, keep)

    def fork(self, length: int) -> StaticCache:
        """A copy of the first `length` tokens."""
        other = StaticCache(self._pool)
        if self._slot is not None:
            other._move(self.capacity, self._slot, length)
        return other

    def _room_for(self, start: int, count: int) -> Slot:
        needed = start + count
        if self._slot is None:
            self._move(min(needed + SLACK, self._pool.network.context_length), None, 0)
        elif needed > self.capacity:
            self._move(needed, self._slot, start)
        assert self._slot is not None
        return self._slot

    def _move(self, length: int, source: Slot | None, held: int) -> None:
        """To a slot for `length` tokens, with the `held` first ones of `source`; the slot so far is free for others."""
        slot = self._pool.take(length)
        if source is not None:
            slot.take_over(source, held)
        self._give_back()
        self._slot = slot
        finalizer = weakref.finalize(self, self._pool.give_back, slot)
        finalizer.atexit = False
        self._give_back = finalizer


def _joined(outputs: Sequence[Output], keep: int) -> Output:
    hidden = [output.hidden for output in outputs if output.hidden is not None]
    return Output(torch.cat([output.logits for output in outputs])[-keep:], torch.cat(hidden) if hidden else None)
