"""A model behind another one's interface: what wraps it changes what goes in or comes out, and nothing else."""

from __future__ import annotations

import torch

from cactus.interfaces import CachedModel


class Wrapped:
    """The part of `interfaces.CachedModel` that is the wrapped model's own."""

    def __init__(self, model: CachedModel) -> None:
        self._model = model

    @property
    def length(self) -> int:
        return self._model.length

    @property
    def context_length(self) -> int:
        return self._model.context_length

    @property
    def device(self) -> torch.device:
        return self._model.device

    def rewind(self, length: int) -> None:
        self._model.rewind(length)
