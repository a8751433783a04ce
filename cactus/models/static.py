"""One causal language model on static caches, on CUDA devices with graphs (`models.slots`, `models.graphs`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

from cactus.interfaces import CachedModel, Output
from cactus.models import grouped
from cactus.models.adapter import HFModel, context_length
from cactus.models.graphs import CudaRecorder
from cactus.models.placement import is_spread
from cactus.models.pools import NewRecorder, SlotPool, StaticCache
from cactus.models.slots import WIDEST, Place

ATTENTION = ("sdpa", "eager", grouped.NAME)  # these add a mask [1, 1, fed, capacity] to the scores
EVERY_WIDTH = range(1, WIDEST + 1)
DRAFT_WIDTHS = (1, 2)  # a draft step, and catching up with the bonus token of a round

Cached = TypeVar("Cached", covariant=True)


@dataclass(frozen=True)
class CacheSource(Generic[Cached]):
    """Makes an empty cache for each run; kind: how its passes are run, in words, empty where nothing else was asked.

    kind is asked when a run ends: a pass may turn out not to be capturable only when it is first needed.
    """

    new: Callable[[], Cached]
    kind: Callable[[], str] = lambda: ""


def why_growing(model: PreTrainedModel) -> str:
    """What keeps a model from static caches, empty if nothing does.

    It has to be on one device, every layer's cache has to be rewound by position, and positions and mask have to be
    given from outside. Sliding windows cannot be rewound: what has left the window of a static cache is gone.
    """
    config = model.config.get_text_config(decoder=True)
    takes = inspect.signature(model.forward).parameters
    if is_spread(model):
        return "the model is on several devices"
    if any(type(layer) is not DynamicLayer for layer in DynamicCache(config=model.config).layers):
        return "sliding windows cannot be rewound by position"
    if config._attn_implementation not in ATTENTION:
        return f"attention is {config._attn_implementation!r}"
    if not {"attention_mask", "position_ids"} <= takes.keys():
        return "positions and mask cannot be given"
    return ""


def can_be_static(model: PreTrainedModel) -> bool:
    """Whether it can run on static caches."""
    return not why_growing(model)


def cached_models(
    model: PreTrainedModel, static: bool = False, widths: Iterable[int] = EVERY_WIDTH
) -> CacheSource[CachedModel]:
    """`CachedModel`s of this model.

    static: whether on static caches, on CUDA devices with graphs; those for `widths` fed tokens are made now. A model
    that cannot has growing ones anyway, and the kind says why.
    """
    if not static:
        return CacheSource(lambda: HFModel(model))
    if reason := why_growing(model):
        return CacheSource(lambda: HFModel(model), lambda: growing(reason))
    pool = StaticPool(model, recorder_for(model.device))
    pool.prepare(widths)
    return CacheSource(pool.new, lambda: pool.kind)


def growing(reason: str) -> str:
    """The kind of caches where static ones were asked for."""
    return f"growing caches ({reason})"


def recorder_for(device: torch.device) -> NewRecorder | None:
    """What captures passes on this kind of device."""
    return CudaRecorder if device.type == "cuda" else None


class CausalNetwork:
    """Implements `slots.Network`."""

    features = 0

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.name = type(model).__name__
        self.device, self.dtype = model.device, model.dtype
        self.context_length = context_length(model)
        self.layers = len(DynamicCache(config=model.config).layers)
        self.groups = grouped.share_key_heads(model)

    def forward(self, ids: Tensor, features: Tensor | None, place: Place, keep: int, want_hidden: bool) -> Output:
        output = self.model(
            input_ids=ids[None],
            position_ids=place.rows[None],
            attention_mask=place.mask,
            cache=place.cache,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=want_hidden,
        )
        return Output(output.logits[0], output.hidden_states[-1][0] if want_hidden else None)


class StaticPool(SlotPool):
    """The slots of one language model."""

    def __init__(self, model: PreTrainedModel, new_recorder: NewRecorder | None = None) -> None:
        super().__init__(CausalNetwork(model), new_recorder)
        self.model = model

    def new(self) -> StaticModel:
        """An empty cache for a new run."""
        return StaticModel(self.model, StaticCache(self))


class StaticModel(HFModel):
    """A model and one static cache. Implements `interfaces.CachedModel`; not safe to share between threads."""

    def __init__(self, model: PreTrainedModel, cache: StaticCache) -> None:
        self.model = model
        self.context_length = context_length(model)
        self.length = 0
        self.cache = cache

    @torch.inference_mode()
    def fork(self) -> StaticModel:
        """The same model with a copy of the cache."""
        other = StaticModel(self.model, self.cache.fork(self.length))
        other.length = self.length
        return other

    def _pass(self, tokens: Sequence[int] | Tensor, keep: int, want_hidden: bool) -> Output:
        return self.cache.run(self.length, tokens, keep=keep, want_hidden=want_hidden)

    def _drop(self, count: int) -> None:
        """Nothing to do: the next pass says where it begins."""
