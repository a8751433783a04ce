"""Weights that come with this package: a folder that needs no download, no cache and no network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cactus.errors import UnavailableError
from cactus.sums import damaged
from cactus.weights.source import Progress, SourceError, silent
from cactus.weights.store import require_complete


def require_whole(folder: Path, name: str, check: Callable[[Path], None] = lambda folder: None) -> None:
    """`UnavailableError` if `check` finds a fault in the folder, or its checksums do."""
    try:
        check(folder)
        fault = damaged(folder)
    except (SourceError, OSError) as error:
        fault = str(error)
    if fault:
        raise UnavailableError(
            f"the weights of {name}, part of this installation, are damaged ({folder}: {fault}); install again"
        )


@dataclass(frozen=True)
class ShippedWeights:
    """A verifier in `folder`, as `from_pretrained` reads it."""

    name: str
    folder: Path
    licence: str
    download_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Of the weights."""
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))

    @property
    def is_kept(self) -> bool:
        """Whether they are on this machine: unless the installation is broken, yes."""
        return self.folder.is_dir()

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> Path:
        """The folder, not copied; every byte is compared with its checksums. `UnavailableError` if it is not whole."""
        require_whole(self.folder, self.name, require_complete)
        return self.folder

    def origin(self, folder: Path) -> str:
        """For people: which weights these are."""
        return f"{self.name} (shipped with Cactus, {self.licence})"
