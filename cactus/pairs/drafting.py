"""How a pair drafts: each source makes fresh drafters for a loaded verifier. A new way is one class.

What is needed to build is imported when it is: a list of pairs does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cactus.weights import HubWeights
from cactus.weights.shipped import require_whole
from cactus.weights.source import Progress, silent

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from cactus.interfaces import Drafter
    from cactus.models import HFCodec


class Drafting(NamedTuple):
    """How to make a fresh drafter, how the weights of all of them are held, and how their passes are run.

    caches: as `models.CacheSource.kind`.
    """

    new: Callable[[], Drafter]
    weights: str = ""
    caches: Callable[[], str] = str


class DrafterSource(Protocol):
    """How a pair drafts. hub: the weights that have to come from the model hub, None for what is shipped."""

    @property
    def label(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def hub(self) -> HubWeights | None: ...

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> None:
        """Download what is not there yet."""

    def build(self, verifier: PreTrainedModel, codec: HFCodec, static: bool = False) -> Drafting:
        """Fresh drafters for this verifier, from what has been fetched; static: on static caches (`models.static`)."""


class Shipped:
    """What the sources that are part of the installation have in common."""

    folder: Path
    label: str
    hub: HubWeights | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> None:
        """Nothing to download; `UnavailableError` if it is not whole."""
        require_whole(self.folder, self.label)


@dataclass(frozen=True)
class SharedDraft(Shipped):
    """A draft model in `folder` that borrows the verifier's embeddings and output head (`models.shared`)."""

    folder: Path
    label: str = "two-layer draft model on the verifier's embeddings"

    def build(self, verifier: PreTrainedModel, codec: HFCodec, static: bool = False) -> Drafting:
        from cactus.drafters import ModelDrafter
        from cactus.models import DRAFT_WIDTHS, HFModel, cached_models, cheapest, shared

        model, token_ids = shared.load(self.folder, verifier)
        model, weights = cheapest(model.requires_grad_(False), HFModel.one_step, static)
        caches = cached_models(model, static, DRAFT_WIDTHS)
        return Drafting(lambda: ModelDrafter(caches.new(), codec.vocab_size, token_ids), weights, caches.kind)


@dataclass(frozen=True)
class FeatureDraft(Shipped):
    """A feature head in `folder` on the verifier's hidden states, embeddings and output head (`models.feature`)."""

    folder: Path
    label: str = "feature head on the verifier's hidden states"

    def build(self, verifier: PreTrainedModel, codec: HFCodec, static: bool = False) -> Drafting:
        from cactus.drafters import FeatureDrafter
        from cactus.models import cached_heads, cheapest, context_length, feature

        head, token_ids = feature.load(self.folder, verifier)
        head, weights = cheapest(head.requires_grad_(False), feature.HFFeatureHead.one_step, static)
        caches = cached_heads(head, context_length(verifier), static)
        return Drafting(lambda: FeatureDrafter(caches.new(), codec.vocab_size, token_ids), weights, caches.kind)


@dataclass(frozen=True)
class OwnDraft(Shipped):
    """An ordinary draft model in `folder`: embeddings and head of its own, the verifier's tokenizer."""

    folder: Path
    label: str = "one-layer draft model"

    def build(self, verifier: PreTrainedModel, codec: HFCodec, static: bool = False) -> Drafting:
        return _of_folder(self.folder, verifier, codec, static)


@dataclass(frozen=True)
class HubDraft:
    """An ordinary draft model from the model hub, with the verifier's tokenizer."""

    hub: HubWeights

    @property
    def label(self) -> str:
        return self.hub.name

    @property
    def size_bytes(self) -> int:
        return self.hub.size_bytes

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> None:
        self.hub.fetch(progress, verify=verify)

    def build(self, verifier: PreTrainedModel, codec: HFCodec, static: bool = False) -> Drafting:
        return _of_folder(self.hub.fetch(), verifier, codec, static)


@dataclass(frozen=True)
class Lookup:
    """Prompt lookup: no model at all."""

    label: str = "prompt lookup (n-grams of the text so far)"
    size_bytes: int = 0
    hub: HubWeights | None = None

    def fetch(self, progress: Progress = silent, *, verify: bool = False) -> None:
        """Nothing to download."""

    def build(self, verifier: PreTrainedModel, codec: HFCodec, static: bool = False) -> Drafting:
        from cactus.drafters import PromptLookup
        from cactus.models import input_device

        return Drafting(lambda: PromptLookup(codec.vocab_size, input_device(verifier)))


@dataclass(frozen=True)
class UsualLookup(Shipped):
    """Prompt lookup that also knows what this verifier mostly writes behind one or two tokens (a table in `folder`)."""

    folder: Path
    label: str = "prompt lookup (n-grams of the text so far, and of the verifier's own writing)"

    def build(self, verifier: PreTrainedModel, codec: HFCodec, static: bool = False) -> Drafting:
        from cactus.drafters import PromptLookup
        from cactus.models import input_device
        from cactus.ngrams import load

        usual = load(self.folder, codec.vocab_size)
        return Drafting(lambda: PromptLookup(codec.vocab_size, input_device(verifier), usual=usual))


def _of_folder(folder: Path, verifier: PreTrainedModel, codec: HFCodec, static: bool) -> Drafting:
    """A draft model of its own on the verifier's device; `CactusError` if its tokenizer is another."""
    from cactus.models import check_same_tokens, input_device, load_model, load_tokenizer

    check_same_tokens(load_tokenizer(folder), codec.tokenizer)
    return ordinary(load_model(folder, input_device(verifier), verifier.dtype), codec, static)


def ordinary(model: PreTrainedModel, codec: HFCodec, static: bool = False, rounded: bool = True) -> Drafting:
    """A draft model of its own, on static caches where wished. rounded: whether to hold its weights in eight bits
    where that is faster; on static caches they stay as they are."""
    from cactus.drafters import ModelDrafter
    from cactus.models import DRAFT_WIDTHS, HFModel, cached_models, cheapest, for_vocabulary

    model, weights = cheapest(model, HFModel.one_step, static or not rounded)
    known = model.get_input_embeddings().weight.shape[0]
    caches = cached_models(model, static, DRAFT_WIDTHS)
    new = for_vocabulary(caches.new, known, codec.vocab_size)
    return Drafting(lambda: ModelDrafter(new(), codec.vocab_size), weights, caches.kind)
