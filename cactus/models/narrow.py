"""A draft model that knows fewer ids than the text may hold.

Models of a family share their tokenizer but not always the size of their tables: Gemma 3 1B has no row for the image
token that its larger siblings have. Such a token is read as another one, which costs acceptance at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from cactus.interfaces import CachedModel, Output
from cactus.models.wrapped import Wrapped


class NarrowModel(Wrapped):
    """Implements `interfaces.CachedModel`: `model`, with ids from `known` on read as the last known one."""

    def __init__(self, model: CachedModel, known: int) -> None:
        super().__init__(model)
        self._known = known

    def feed(self, tokens: Sequence[int] | Tensor, keep: int = 1, want_hidden: bool = False) -> Output:
        last = self._known - 1
        known = tokens.clamp(max=last) if isinstance(tokens, Tensor) else [min(token, last) for token in tokens]
        return self._model.feed(known, keep, want_hidden)

    def fork(self) -> NarrowModel:
        return NarrowModel(self._model.fork(), self._known)


def for_vocabulary(new: Callable[[], CachedModel], known: int, vocab_size: int) -> Callable[[], CachedModel]:
    """Makers of models that read all of `vocab_size` ids, of which they have rows for `known`."""
    return new if known >= vocab_size else lambda: NarrowModel(new(), known)
