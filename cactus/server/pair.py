"""A pair that lives on a server, as an entry beside the registry's: found by name, never loaded here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cactus.errors import CactusError
from cactus.pairs.spec import PairSpec
from cactus.weights import HubWeights
from cactus.weights.source import Progress, silent

if TYPE_CHECKING:
    from cactus.pairs.drafting import Drafting


@dataclass(frozen=True)
class OnServer:
    """A model that a server holds; nothing of it is on this machine."""

    name: str
    url: str
    licence: str = "its authors'"
    size_bytes: int = 0
    download_bytes: int = 0
    is_kept: bool = True
    hub: HubWeights | None = None

    @property
    def label(self) -> str:
        return self.name

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> Path:
        raise CactusError(f"{self.name} is served by {self.url}; it cannot be loaded here")

    def origin(self, folder: Path) -> str:
        return self.url

    def build(self, verifier: Any, codec: Any, static: bool = False) -> Drafting:
        raise CactusError(f"{self.name} drafts on {self.url} alone")


def served_pair(model: str, url: str) -> PairSpec:
    """The entry of a server's model and the draft model it was started with."""
    name = f"server:{model}"
    return PairSpec(
        name=name, label=f"{model} (vLLM server)", verifier=OnServer(model, url),  # type: ignore[arg-type]
        drafter=OnServer("the server's draft model", url),  # type: ignore[arg-type]
    )  # fmt: skip
