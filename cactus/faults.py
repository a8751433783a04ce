"""Faults of a machine in the middle of a run, in words for whoever asked for the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cactus.errors import CactusError

ON_CPU = "DefaultCPUAllocator"  # named in the RuntimeError that torch raises where the system gives no memory


class MemoryFault(CactusError):
    """A run needs more memory than there is. Whatever it had is free again."""


@contextmanager
def names_lack_of_memory() -> Iterator[None]:
    """Lack of memory, however torch or Python say it, becomes a `MemoryFault`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and ON_CPU not in str(error):
            raise
        raise MemoryFault(
            "out of memory: the run ended here; a shorter prompt, fewer new tokens or a smaller pair need less"
        ) from error
