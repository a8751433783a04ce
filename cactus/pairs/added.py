"""Pairs added while the program runs, beside the registry's: a few, by name, the oldest forgotten first."""

from __future__ import annotations

import threading
from dataclasses import replace

from cactus.pairs.spec import PairSpec

MOST = 8


class AddedPairs:
    """Entries by name. Safe to share between threads."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._specs: dict[str, PairSpec] = {}

    def add(self, spec: PairSpec) -> PairSpec:
        """The entry as it is found from now on: another pair of the same name gives it a number behind its own."""
        with self._lock:
            name, number = spec.name, 1
            while (known := self._specs.get(name)) is not None and known != replace(spec, name=name, label=known.label):
                number += 1
                name = f"{spec.name} ({number})"
            spec = spec if name == spec.name else replace(spec, name=name, label=name)
            self._specs.pop(name, None)
            self._specs[name] = spec
            for oldest in list(self._specs)[: -self._most]:
                del self._specs[oldest]
            return spec

    def find(self, name: str) -> PairSpec | None:
        with self._lock:
            return self._specs.get(name)

    def drop(self, name: str) -> None:
        """Forget it: it could not be loaded."""
        with self._lock:
            self._specs.pop(name, None)

    def all(self) -> list[PairSpec]:
        """The oldest first."""
        with self._lock:
            return list(self._specs.values())


ADDED = AddedPairs()
"""Of this process: a request names its pair, and whoever reads it must find that."""
