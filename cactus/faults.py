"""Faults in words for whoever asked for something: what it was, without what concerns only the owner of the machine."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cactus.errors import CactusError
from cactus.places import without_folders

ON_CPU = "DefaultCPUAllocator"  # named in the RuntimeError that torch raises where the system gives no memory
# Tokens of the model hub, and what stands between an address's scheme and its host.
SECRETS = re.compile(r"\bhf_[A-Za-z0-9]{8,}|(?<=://)[^\s/@]+(?=@)")
log = logging.getLogger(__name__)


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


def public(text: str) -> str:
    """A message as strangers may read it: no folders of this machine, no secrets."""
    return SECRETS.sub("…", without_folders(text))


def in_words(error: Exception) -> str:
    """What to tell visitors and callers. A fault of ours is logged, and they are told that the log says more."""
    if isinstance(error, ValueError):
        return public(str(error))
    log.error("a run failed", exc_info=error)
    return f"the run failed ({type(error).__name__}); the server's log says more"
