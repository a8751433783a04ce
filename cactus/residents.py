"""The loaded pairs: at most so many, the least recently used goes, and its memory is given back.

A pair that a run uses is never dropped: whoever needs its place waits. One pair is loaded at a time; those that are
loaded can be taken meanwhile. Knows nothing of runs, pages or how a pair is loaded.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import torch

from cactus.errors import CactusError, UnavailableError
from cactus.pairs import Pair, PairSpec
from cactus.weights.source import Progress, silent

LOOK_SECONDS = 0.2

Load = Callable[[PairSpec, Progress], Pair]
Fits = Callable[[PairSpec], bool]


@dataclass
class _Resident:
    pair: Pair
    users: int = 0


class Lease:
    """The right to use `pair` until `release`, which may be called more than once, or the end of the `with` block."""

    def __init__(self, pair: Pair, give_back: Callable[[], None]) -> None:
        self.pair = pair
        self._give_back = give_back
        self._lock = threading.Lock()

    def release(self) -> None:
        """The pair may be dropped from now on, unless others use it too."""
        with self._lock:
            give_back, self._give_back = self._give_back, _nothing
        give_back()

    def __enter__(self) -> Pair:
        return self.pair

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class Residents:
    """At most `limit` pairs, loaded by `load` when first asked for.

    fits: whether there is memory for a pair now. Where there is not, idle pairs are dropped before it is loaded, the
    least recently used first, even below the limit.
    """

    def __init__(self, limit: int, load: Load, fits: Fits = lambda spec: True) -> None:
        if limit < 1:
            raise CactusError(f"the number of loaded pairs is {limit}; 1 or more is allowed")
        self._limit = limit
        self._load = load
        self._fits = fits
        self._changed = threading.Condition()
        self._residents: dict[str, _Resident] = {}  # the least recently used first
        self._failures: dict[str, str] = {}
        self._loading = ""

    def get(self, spec: PairSpec, progress: Progress = silent, stop: threading.Event | None = None) -> Pair:
        """The pair, loaded if it is not. It may be dropped as soon as another is asked for: runs take a `lease`."""
        with self.lease(spec, progress, stop) as pair:
            return pair

    def lease(self, spec: PairSpec, progress: Progress = silent, stop: threading.Event | None = None) -> Lease:
        """The pair, loaded if it is not, and kept until the lease is released.

        Waits while another is being loaded and while all places are in use; `CactusError` if `stop` is set by then.
        `UnavailableError` where it cannot be had or does not fit; the reason is remembered until it can.
        """
        pair = self._take(spec.name) or self._take_place(spec, progress, stop or threading.Event())
        return Lease(pair, lambda: self._release(spec.name))

    def peek(self, name: str) -> Pair | None:
        """The pair if it is loaded. Does not count as a use."""
        with self._changed:
            resident = self._residents.get(name)
            return resident.pair if resident else None

    def failure(self, name: str) -> str:
        """Why the last try to load it failed; empty where it did not, or was not tried."""
        with self._changed:
            return self._failures.get(name, "")

    def failed(self, name: str, reason: str) -> None:
        """Remember why it could not be had, where that turned out before it was asked for here."""
        with self._changed:
            self._failures[name] = reason

    @property
    def names(self) -> list[str]:
        """Of the loaded pairs, the least recently used first."""
        with self._changed:
            return list(self._residents)

    def clear(self) -> None:
        """Drop every pair that no run uses."""
        with self._changed:
            while self._drop_oldest():
                pass

    def _take(self, name: str) -> Pair | None:
        """Count one more user of a loaded pair, now the most recently used one."""
        with self._changed:
            resident = self._residents.pop(name, None)
            if resident is None:
                return None
            self._residents[name] = resident
            resident.users += 1
            return resident.pair

    def _take_place(self, spec: PairSpec, progress: Progress, stop: threading.Event) -> Pair:
        """Wait for a place and load into it, unless another thread has loaded the pair meanwhile."""
        with self._changed:
            while (pair := self._take(spec.name)) is None:
                if not self._loading and self._make_room(spec):
                    self._loading = spec.name
                    break
                if stop.is_set():
                    raise CactusError(f"stopped while waiting to load {spec.label}")
                progress(None, self._what_is_waited_for())
                self._changed.wait(LOOK_SECONDS)
        return pair or self._load_into_place(spec, progress)

    def _load_into_place(self, spec: PairSpec, progress: Progress) -> Pair:
        """Without the lock held: others take what is loaded meanwhile."""
        try:
            pair = self._loaded(spec, progress)
        except CactusError as error:
            self._finish(spec.name, None, str(error))
            return_memory()  # of what was read before it failed
            raise
        except BaseException:
            self._finish(spec.name, None, "")
            raise
        self._finish(spec.name, pair, "")
        return pair

    def _loaded(self, spec: PairSpec, progress: Progress) -> Pair:
        try:
            return self._load(spec, progress)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise UnavailableError(f"not enough memory to load {spec.label}; choose a smaller pair") from error

    def _finish(self, name: str, pair: Pair | None, failure: str) -> None:
        with self._changed:
            self._loading = ""
            self._failures.pop(name, None)
            if pair is not None:
                self._residents[name] = _Resident(pair, users=1)
            elif failure:
                self._failures[name] = failure
            self._changed.notify_all()

    def _make_room(self, spec: PairSpec) -> bool:
        """Whether there is a place, after dropping idle pairs for it. With the lock held."""
        while len(self._residents) >= self._limit or not self._fits(spec):
            if not self._drop_oldest():
                break
        return len(self._residents) < self._limit

    def _drop_oldest(self) -> bool:
        """Drop the least recently used of the idle pairs; False where there is none."""
        name = next((name for name, resident in self._residents.items() if not resident.users), None)
        if name is None:
            return False
        del self._residents[name]
        return_memory()
        return True

    def _what_is_waited_for(self) -> str:
        return f"waiting for {self._loading} to be loaded" if self._loading else "waiting for a run of another pair"

    def _release(self, name: str) -> None:
        with self._changed:
            self._residents[name].users -= 1
            self._changed.notify_all()


def return_memory() -> None:
    """Give back to the system what dropped models held: cycles, the accelerator's cache, and glibc's free lists."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # musl has none
        libc.malloc_trim(0)


def _nothing() -> None:
    """What a lease that has been released gives back."""
