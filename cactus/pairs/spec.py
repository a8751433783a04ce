"""One entry of the registry: what a pair is made of, where its weights come from, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cactus.models import HFCodec, choose_device, choose_dtype, load_model, load_tokenizer
from cactus.pairs.drafting import DrafterSource
from cactus.pairs.pair import Pair
from cactus.weights import ShippedWeights, Source, ensure, kept, origin
from cactus.weights.source import Progress, part, silent


@dataclass(frozen=True)
class Weights:
    """A verifier's weights: the name they are kept under, and their sources, of which the first to deliver is used.

    size_bytes: as kept; download_bytes: the smallest download that brings them.
    """

    name: str
    sources: tuple[Source, ...]
    size_bytes: int
    download_bytes: int

    @property
    def is_kept(self) -> bool:
        """Whether they are on this machine."""
        return kept(self.sources, self.name) is not None

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> Path:
        """Their folder, downloaded and converted where they are not there yet."""
        return ensure(self.sources, self.name, progress, verify=verify)

    def origin(self, folder: Path) -> str:
        """For people: which weights the folder holds."""
        return origin(folder)


@dataclass(frozen=True)
class PairSpec:
    """One entry of the registry. `draft_length`, `temperature`: settings to start with.

    examples: prompts that suit it, a file of the assets; prompts: the set it is trained and evaluated on, by name.
    """

    name: str
    label: str
    verifier: Weights | ShippedWeights
    drafter: DrafterSource
    draft_length: int = 5
    temperature: float = 0.7
    notes: str = ""
    examples: str = "examples.json"
    prompts: str = "prompts"

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> Path:
        """The verifier's folder, downloaded and converted where it is not there yet."""
        return self.verifier.fetch(progress, verify=verify)

    def load(
        self, device: str = "auto", dtype: str = "auto", progress: Progress = silent, static: bool = False
    ) -> Pair:
        """Fetch what is missing and load both models."""
        folder = self.fetch(part(progress, 0.0, 0.9))
        progress(0.9, f"loading {self.label}")
        where = choose_device(device)
        model = load_model(folder, where, choose_dtype(dtype, where))
        codec = HFCodec(load_tokenizer(folder), model)
        drafting = self.drafter.build(model, codec)
        pair = Pair(self.name, model, codec, drafting.new, self.verifier.origin(folder), drafting.weights, static)
        pair.new_verifier()  # whatever is made once for all runs is made now
        progress(1.0, f"{self.label} is ready")
        return pair
