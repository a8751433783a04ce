"""Weights that come with this package: a folder that needs no download, no cache and no network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cactus.errors import UnavailableError
from cactus.weights.source import Progress, SourceError, silent
from cactus.weights.store import require_complete


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
        """The folder, looked at but not copied. `UnavailableError` if it is not whole."""
        try:
            require_complete(self.folder)
        except (SourceError, OSError) as error:
            raise UnavailableError(
                f"the weights of {self.name}, part of this installation, are damaged ({self.folder}: {error}); "
                "install again"
            ) from error
        return self.folder

    def origin(self, folder: Path) -> str:
        """For people: which weights these are."""
        return f"{self.name} (shipped with Cactus, {self.licence})"
