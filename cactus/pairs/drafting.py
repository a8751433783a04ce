"""How a pair drafts: each source makes fresh drafters for a loaded verifier. A new way is one class with `build`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from transformers import PreTrainedModel

from cactus.drafters import FeatureDrafter, ModelDrafter, PromptLookup
from cactus.interfaces import Drafter
from cactus.models import (
    HFCodec,
    HFModel,
    cached_models,
    cheapest,
    check_same_tokens,
    context_length,
    feature,
    load_model,
    load_tokenizer,
    shared,
)


class Drafting(NamedTuple):
    """How to make a fresh drafter, and how the weights of all of them are held."""

    new: Callable[[], Drafter]
    weights: str = ""


class DrafterSource(Protocol):
    """How a pair drafts."""

    @property
    def label(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def build(self, verifier: PreTrainedModel, codec: HFCodec) -> Drafting:
        """Fresh drafters for this verifier."""


@dataclass(frozen=True)
class SharedDraft:
    """A draft model in `folder` that borrows the verifier's embeddings and output head (`models.shared`)."""

    folder: Path
    label: str = "two-layer draft model on the verifier's embeddings"

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))

    def build(self, verifier: PreTrainedModel, codec: HFCodec) -> Drafting:
        model, token_ids = shared.load(self.folder, verifier)
        model, weights = cheapest(model.requires_grad_(False), HFModel.one_step)
        new = cached_models(model)
        return Drafting(lambda: ModelDrafter(new(), codec.vocab_size, token_ids), weights)


@dataclass(frozen=True)
class FeatureDraft:
    """A feature head in `folder` on the verifier's hidden states, embeddings and output head (`models.feature`)."""

    folder: Path
    label: str = "feature head on the verifier's hidden states"

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))

    def build(self, verifier: PreTrainedModel, codec: HFCodec) -> Drafting:
        head, token_ids = feature.load(self.folder, verifier)
        head, weights = cheapest(head.requires_grad_(False), feature.HFFeatureHead.one_step)
        length = context_length(verifier)

        def new() -> Drafter:
            return FeatureDrafter(feature.HFFeatureHead(head, length), codec.vocab_size, token_ids)

        return Drafting(new, weights)


@dataclass(frozen=True)
class OwnDraft:
    """An ordinary draft model in `folder`: embeddings and head of its own, the verifier's tokenizer."""

    folder: Path
    label: str = "one-layer draft model"

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.safetensors"))

    def build(self, verifier: PreTrainedModel, codec: HFCodec) -> Drafting:
        check_same_tokens(load_tokenizer(self.folder), codec.tokenizer)
        model, weights = cheapest(load_model(self.folder, verifier.device, verifier.dtype), HFModel.one_step)
        new = cached_models(model)
        return Drafting(lambda: ModelDrafter(new(), codec.vocab_size), weights)


@dataclass(frozen=True)
class Lookup:
    """Prompt lookup: no model at all."""

    label: str = "prompt lookup (n-grams of the text so far)"
    size_bytes: int = 0

    def build(self, verifier: PreTrainedModel, codec: HFCodec) -> Drafting:
        return Drafting(lambda: PromptLookup(codec.vocab_size, verifier.device))
