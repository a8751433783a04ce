"""A feature head on static caches, on CUDA devices with graphs: as `models.static` runs a language model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from cactus.interfaces import FeatureModel, Output
from cactus.models import grouped
from cactus.models.feature import FeatureHead, HFFeatureHead
from cactus.models.pools import NewRecorder, SlotPool, StaticCache
from cactus.models.slots import Place
from cactus.models.static import EVERY_WIDTH, CacheSource, growing, recorder_for, why_growing
from cactus.transfer import send


def cached_heads(head: FeatureHead, context_length: int, static: bool = False) -> CacheSource[FeatureModel]:
    """`FeatureModel`s of this head; static: as in `models.static.cached_models`."""
    if not static:
        return CacheSource(lambda: HFFeatureHead(head, context_length))
    if reason := why_growing(head.backbone):
        return CacheSource(lambda: HFFeatureHead(head, context_length), lambda: growing(reason))
    pool = HeadPool(head, context_length, recorder_for(head.token_norm.weight.device))
    pool.prepare(EVERY_WIDTH)  # a round begins with the pairs of all tokens that were accepted in the last one
    return CacheSource(pool.new, lambda: pool.kind)


class HeadNetwork:
    """Implements `slots.Network`: what is fed beside each token is the verifier's hidden state before it."""

    def __init__(self, head: FeatureHead, context_length: int) -> None:
        self.head = head
        self.name = type(head).__name__
        weight = head.token_norm.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.context_length = context_length
        self.features = head.backbone.config.hidden_size
        self.layers = len(DynamicCache(config=head.backbone.config).layers)
        self.groups = grouped.share_key_heads(head.backbone)

    def forward(self, ids: Tensor, features: Tensor | None, place: Place, keep: int, want_hidden: bool) -> Output:
        """Logits [1, draft_vocab] of the last pair, estimated hidden states of all."""
        assert features is not None
        hidden = self.head(
            ids[None], features[None], place.cache, position_ids=place.rows[None], attention_mask=place.mask
        )[0]
        return Output(self.head.backbone.lm_head(hidden[-1:]), hidden)


class HeadPool(SlotPool):
    """The slots of one feature head."""

    def __init__(self, head: FeatureHead, context_length: int, new_recorder: NewRecorder | None = None) -> None:
        super().__init__(HeadNetwork(head, context_length), new_recorder)
        self.head = head

    def new(self) -> StaticHead:
        """An empty cache for a new run."""
        return StaticHead(self.head, self.network.context_length, StaticCache(self))


class StaticHead:
    """A head and one static cache. Implements `interfaces.FeatureModel`; not safe to share between threads."""

    def __init__(self, head: FeatureHead, context_length: int, cache: StaticCache) -> None:
        self.head = head
        self.context_length = context_length
        self.length = 0
        self.cache = cache

    @torch.inference_mode()
    def feed(self, tokens: Sequence[int] | Tensor, features: Tensor) -> Output:
        """Append pairs: float32 logits [1, draft_vocab] of the last one and estimated hidden states [fed, hidden]."""
        weight = self.head.token_norm.weight
        output = self.cache.run(self.length, send(tokens, weight.device), features.to(weight), want_hidden=True)
        self.length += len(tokens)
        return output

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` pairs: the next pass says where it begins."""
        self.length = length
