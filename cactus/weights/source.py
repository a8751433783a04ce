"""What a source of weights has to offer, and what the sources share."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

Progress = Callable[[float | None, str], None]
"""Called with the share done (0..1, or None where unknown) and a line saying what is going on."""


class SourceError(Exception):
    """This source cannot deliver; the next one may. The message says why, in a few words."""


class Source(Protocol):
    """One place a model can be fetched from."""

    @property
    def key(self) -> str:
        """Identifies source and version; a kept copy with another key is not used."""

    @property
    def origin(self) -> str:
        """For people: which weights these are."""

    @property
    def where(self) -> str:
        """For error messages: the place that was tried."""

    def fetch(self, work: Path, progress: Progress) -> Path:
        """Put safetensors, configuration and tokenizer into a folder below `work` and return it, or `SourceError`."""


def silent(share: float | None, message: str) -> None:
    """Progress that nobody watches."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """A progress whose 0..1 fills only start..end of `progress`."""

    def scaled(share: float | None, message: str) -> None:
        progress(None if share is None else start + (end - start) * min(max(share, 0.0), 1.0), message)

    return scaled


def require_space(folder: Path, needed: int) -> None:
    """OSError (ENOSPC) naming the sizes if the disk of `folder` has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise no_space(f"{megabytes(needed)} needed, {megabytes(free)} free")


def no_space(detail: str) -> OSError:
    """The error of a full disk."""
    return OSError(errno.ENOSPC, detail or os.strerror(errno.ENOSPC))


def megabytes(size: float) -> str:
    """93 MB, 1,024 MB."""
    return f"{size / 1e6:,.0f} MB"


def amount(size: float) -> str:
    """93 MB, 16.4 GB."""
    return megabytes(size) if size < 999.5e6 else f"{size / 1e9:,.1f} GB"
