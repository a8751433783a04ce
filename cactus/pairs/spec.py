"""One entry of the registry: what a pair is made of, where its weights come from, and how it is loaded.

What is needed to load is imported when it is: a list of pairs does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cactus.machine import look
from cactus.pairs.drafting import DrafterSource
from cactus.weights import HubWeights, ShippedWeights, Source, ensure, kept, origin
from cactus.weights.source import Progress, part, silent

if TYPE_CHECKING:
    from cactus.models import Placement
    from cactus.pairs.pair import Pair

FETCHING = 0.9  # the share of a load's progress that is left to the downloads


@dataclass(frozen=True)
class Weights:
    """A verifier's weights: the name they are kept under, and their sources, of which the first to deliver is used.

    size_bytes: as kept; download_bytes: the smallest download that brings them.
    """

    name: str
    sources: tuple[Source, ...]
    size_bytes: int
    download_bytes: int
    licence: str

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
    """One entry of the registry. `draft_length`, `temperature`, `top_p`, `top_k`: settings to start with.

    examples: prompts that suit it, a file of the assets; prompts: the set it is trained and evaluated on, by name.
    template: what the verifier's chat template is given beside the messages; switches: what a word in a message makes
    of that (`models.HFCodec`).
    """

    name: str
    label: str
    verifier: Weights | ShippedWeights | HubWeights
    drafter: DrafterSource
    draft_length: int = 5
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    notes: str = ""
    examples: str = "examples.json"
    prompts: str = "prompts"
    template: Mapping[str, Any] = field(default_factory=dict)
    switches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def hub_weights(self) -> tuple[HubWeights, ...]:
        """Those of its weights that have to come from the model hub."""
        found = (self.drafter.hub, self.verifier)
        return tuple(weights for weights in found if isinstance(weights, HubWeights))

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> Path:
        """The verifier's folder, downloaded and converted where it, or the drafter, is not there yet."""
        share = self.drafter.size_bytes / max(self.drafter.size_bytes + self.verifier.size_bytes, 1)
        self.drafter.fetch(part(progress, 0.0, share), verify=verify)
        return self.verifier.fetch(part(progress, share, 1.0), verify=verify)

    def load(
        self, device: str = "auto", dtype: str = "auto", progress: Progress = silent, static: bool = False
    ) -> Pair:
        """Fetch what is missing and load both models; `UnavailableError` before either where they do not fit."""
        from cactus.models import HFCodec, load_placed, load_tokenizer
        from cactus.pairs.pair import Pair

        placement = self._placement(device, dtype)
        folder = self.fetch(part(progress, 0.0, FETCHING))
        progress(FETCHING, f"loading {self.label}")
        model = load_placed(folder, placement)
        codec = HFCodec(load_tokenizer(folder), model, self.template, self.switches)
        drafting = self.drafter.build(model, codec, static)
        weights = ", ".join(filter(None, (self.verifier.origin(folder), placement.label)))
        pair = Pair(self.name, model, codec, drafting.new, weights, drafting.weights, static, drafting.caches)
        pair.new_verifier()  # whatever is made once for all runs is made now
        progress(1.0, f"{self.label} is ready")
        return pair

    def _placement(self, device: str, dtype: str) -> Placement:
        """On one device in the dtype that is fastest there; else spread, or with narrower numbers, where that helps."""
        from cactus.models import Placement
        from cactus.pairs.status import check_memory, must_be_narrow, needs_spreading

        wish = Placement(device, dtype)
        machine = look(device=str(wish.chosen[0]) if device != "auto" else device)
        check_memory(self, machine, dtype)
        narrow = dtype == "auto" and must_be_narrow(self, machine)
        spread = device == "auto" and needs_spreading(self, machine)
        return Placement(device, "bfloat16" if narrow else dtype, "auto" if spread else None)
