"""Pairs of the user's own: a draft model and a verifier given by hub ids, folders or GGUF files.

Made into an entry like those of the registry, it is found, fetched, loaded and shown as any other. What can be told
without weights is told before they are downloaded or read: whether both models can be used, whether they share their
tokenizer, whether they fit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cactus.errors import CactusError
from cactus.pairs.drafting import Drafting, Lookup, ordinary
from cactus.pairs.spec import FETCHING, PairSpec
from cactus.weights.given import Given, parse_model
from cactus.weights.hub_cache import HubWeights
from cactus.weights.source import Progress, part, silent

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from cactus.models import HFCodec, Placement
    from cactus.models.placement import DeviceMap
    from cactus.pairs.pair import Pair

LOOKING = 0.1  # the share of a load's progress that is left to looking at both models


class Known(NamedTuple):
    """What was read of a model without its weights.

    ids: as many of the tokenizer's are the model's own. size_bytes: of its weights at two bytes a number.
    """

    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    ids: int
    size_bytes: int


@dataclass(frozen=True)
class GivenModel:
    """One model that a user named, and what has been read of it: a GGUF file's tokenizer takes seconds."""

    given: Given
    _known: list[Known] = field(default_factory=list, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.given.name

    @property
    def size_bytes(self) -> int:
        """At two bytes a number; before it has been looked at, of its files as far as they are here."""
        return self._known[0].size_bytes if self._known else self.given.size_bytes

    def look(self, progress: Progress = silent) -> Known:
        """Configuration and tokenizer; `CactusError` where it cannot be had or used."""
        import torch

        from cactus.models import load_tokenizer, read_config
        from cactus.models.placement import model_bytes
        from cactus.models.text_part import text_part

        if not self._known:
            files = self.given.look(progress)
            progress(None, f"looking at {self.name}")
            config = read_config(files.folder, files.gguf, self.name)
            tokenizer = load_tokenizer(files.folder, gguf=files.gguf, name=self.name)
            # Reading a GGUF file, the library may add an end of text that the file does not have.
            ids = config.get_text_config(decoder=True).vocab_size if files.gguf else sys.maxsize
            self._known.append(Known(config, tokenizer, ids, int(model_bytes(text_part(config)[0], torch.bfloat16))))
        return self._known[0]

    def load(self, placement: Placement) -> PreTrainedModel:
        """The model, downloaded where it is not here."""
        from cactus.models import load_placed

        files = self.given.fetch()
        return load_placed(files.folder, placement, gguf=files.gguf, config=self.look().config, name=self.name)


@dataclass(frozen=True)
class GivenWeights:
    """A verifier that a user named."""

    model: GivenModel
    quantize: str | None = None
    licence: str = "its authors'"
    download_bytes: int = 0  # not known before the hub is asked

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def size_bytes(self) -> int:
        """As it is held: less, if it is rounded."""
        if self.quantize is None:
            return self.model.size_bytes
        import torch

        from cactus.models.placement import rounded_share

        return int(self.model.size_bytes * rounded_share(self.quantize, torch.bfloat16))

    @property
    def is_kept(self) -> bool:
        """Whether it is on this machine."""
        return self.model.given.kept() is not None

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> Path:
        """Its folder, downloaded where it is not there yet."""
        return self.model.given.fetch(progress).folder

    def origin(self, folder: Path) -> str:
        """For people: which weights these are."""
        source = f"model hub, {folder.name[:8]}" if self.model.given.repo_id else "given"
        return f"{self.name} ({source})"


@dataclass(frozen=True)
class GivenDraft:
    """A draft model that a user named, with the verifier's tokenizer."""

    model: GivenModel
    hub: HubWeights | None = None  # of the registry's models only

    @property
    def label(self) -> str:
        return self.model.name

    @property
    def size_bytes(self) -> int:
        return self.model.size_bytes

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> None:
        """Download what is not there yet."""
        self.model.given.fetch(progress)

    def build(self, verifier: PreTrainedModel, codec: HFCodec, static: bool = False) -> Drafting:
        """Fresh drafters where the verifier's inputs go, in its dtype."""
        from cactus.models import Placement, input_device

        dtype = str(verifier.dtype).removeprefix("torch.")
        return ordinary(self.model.load(Placement(str(input_device(verifier)), dtype)), codec, static)


@dataclass(frozen=True)
class GivenSpec(PairSpec):
    """A pair of the user's own. device_map, quantize: of the verifier, as `models.Placement` has them."""

    verifier: GivenWeights  # type: ignore[assignment]
    drafter: GivenDraft | Lookup
    device_map: DeviceMap | None = None
    quantize: str | None = None

    def look(self, progress: Progress = silent) -> None:
        """`CactusError` if the pair cannot be had or used, as far as can be told without weights."""
        from cactus.models import Placement, check_fits, check_packing, check_same_tokens
        from cactus.models.text_part import text_part

        # Whatever the device will be: what is larger than all memory need not be downloaded.
        anywhere = Placement(device_map="auto", quantize=self.quantize)
        check_packing(self.verifier.model.given.gguf, self.quantize)
        verifier = self.verifier.model.look(part(progress, 0.0, 0.5))
        if isinstance(self.drafter, GivenDraft):
            draft = self.drafter.model.look(part(progress, 0.5, 1.0))
            names = (self.drafter.label, self.verifier.name)
            check_same_tokens(draft.tokenizer, verifier.tokenizer, names, min(draft.ids, verifier.ids))
        check_fits(text_part(verifier.config)[0], self.verifier.name, anywhere)

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> Path:
        """The verifier's folder, once both models have been looked at and are here."""
        self.look(part(progress, 0.0, LOOKING))
        return super().fetch(part(progress, LOOKING, 1.0), verify=verify)

    def load(
        self, device: str = "auto", dtype: str = "auto", progress: Progress = silent, static: bool = False
    ) -> Pair:
        """Look at both models, fetch what is missing and load them."""
        from cactus.models import HFCodec, Placement
        from cactus.pairs.pair import Pair

        placement = Placement(device, dtype, self.device_map, self.quantize)
        if static and not placement.is_plain:
            raise CactusError("static caches need a verifier on one device, unrounded: no device_map, no quantize")
        folder = self.fetch(part(progress, 0.0, FETCHING))
        progress(FETCHING, f"loading {self.label}")
        model = self.verifier.model.load(placement)
        codec = HFCodec(self.verifier.model.look().tokenizer, model, self.template)
        drafting = self.drafter.build(model, codec, static)
        weights = ", ".join(filter(None, (self.verifier.origin(folder), placement.label)))
        pair = Pair(self.name, model, codec, drafting.new, weights, drafting.weights, static, drafting.caches)
        pair.new_verifier()  # whatever is made once for all runs is made now
        progress(1.0, f"{self.label} is ready")
        return pair


def given_pair(
    draft: str | Path | None,
    verifier: str | Path,
    device_map: DeviceMap | None = None,
    quantize: str | None = None,
) -> GivenSpec:
    """An entry for these two models; without a draft model it drafts by prompt lookup.

    `CactusError` where a name can be no model, or a wish about the placement is not known. Nothing is read yet.
    """
    model = parse_model(verifier, "verifier")
    drafter = GivenDraft(GivenModel(parse_model(draft, "draft model"))) if draft is not None else Lookup()
    name = f"{drafter.model.name if isinstance(drafter, GivenDraft) else 'prompt lookup'} + {model.name}"
    verifier_weights = GivenWeights(GivenModel(model), quantize)
    return GivenSpec(name, name, verifier_weights, drafter, device_map=device_map, quantize=quantize)
