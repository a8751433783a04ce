"""One causal language model of the transformers library with the cache of one run.

Feed tokens, read logits, rewind. Models whose state cannot be rewound are refused by name (`check_rewindable`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicSlidingWindowLayer,
)

from cactus.errors import CactusError, RewindError
from cactus.interfaces import Output
from cactus.models.placement import input_device
from cactus.models.screening import check_state
from cactus.transfer import send


def check_rewindable(model: PreTrainedModel) -> None:
    """`CactusError` naming the model and the layers whose state cannot be rewound after a rejected draft."""
    check_state(type(model), model.config)


def context_length(model: PreTrainedModel) -> int:
    """Tokens the model can read in all."""
    return int(model.config.get_text_config(decoder=True).max_position_embeddings)


def _can_drop(layer: object, count: int) -> bool:
    """Whether a window would still be full, or begin with the first token, without its last `count` tokens."""
    if not isinstance(layer, DynamicSlidingWindowLayer) or not layer.is_initialized:
        return True
    left = layer.get_seq_length() - count
    return layer.keys.shape[-2] - count >= min(left, layer.sliding_window - 1)  # type: ignore[union-attr]


class HFModel:
    """A model and one cache. Implements `interfaces.CachedModel`; not safe to share between threads.

    `length` counts the tokens in the cache.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.context_length = context_length(model)
        self.length = 0
        self._cache: Cache = DynamicCache(config=model.config)
        # Sliding windows drop what leaves them; recorded, they can be rewound past it.
        self._cache.activate_past_recording()

    @staticmethod
    def one_step(model: PreTrainedModel) -> Callable[[], object]:
        """One draft step behind a short text, to be timed again and again."""
        cached = HFModel(model)
        cached.feed([0] * 32)
        cached.rewind(32)

        def step() -> None:
            cached.feed([0])
            cached.rewind(32)

        return step

    @property
    def device(self) -> torch.device:
        """Where the inputs go."""
        return input_device(self.model)

    @torch.inference_mode()
    def feed(self, tokens: Sequence[int] | Tensor, keep: int = 1, want_hidden: bool = False) -> Output:
        """Append `tokens` to the cache: float32 logits [keep, vocab] and hidden states [fed, hidden] if wanted."""
        if len(tokens) == 0:
            raise CactusError("feed needs at least one token, got none")
        if self.length + len(tokens) > self.context_length:
            raise CactusError(
                f"{self.length + len(tokens):,} tokens do not fit into the context of {self.context_length:,} tokens"
            )
        output = self._pass(tokens, keep, want_hidden)
        self.length += len(tokens)
        return output

    def _pass(self, tokens: Sequence[int] | Tensor, keep: int, want_hidden: bool) -> Output:
        """The forward pass of `feed`."""
        ids = send(tokens, self.device)[None]  # [1, fed]
        output = self.model(
            input_ids=ids, cache=self._cache, use_cache=True, logits_to_keep=keep, output_hidden_states=want_hidden
        )
        return Output(output.logits[0].float(), output.hidden_states[-1][0] if want_hidden else None)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens; `RewindError` where a sliding window has lost what stood before."""
        if not 0 <= length <= self.length:
            raise CactusError(f"cannot rewind to {length} tokens; the cache holds {self.length}")
        self._drop(self.length - length)
        self.length = length

    def _drop(self, count: int) -> None:
        """The last `count` tokens of the cache. A count of 0 matters too: it trims sliding windows to their size."""
        if count and not all(_can_drop(layer, count) for layer in self._cache.layers):
            raise RewindError(f"cannot go back by {count} tokens: a sliding window has lost what stood before them")
        if self.length:  # windows of an empty cache cannot be cropped
            self._cache.crop(-count)

    def fork(self) -> HFModel:
        """The same model with a copy of the cache."""
        other = copy.copy(self)
        other._cache = copy.deepcopy(self._cache)
        return other
