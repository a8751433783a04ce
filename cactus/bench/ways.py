"""The ways in which passes of a model can be run on a device, and a text to feed it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from cactus.interfaces import CachedModel
from cactus.models import HFModel
from cactus.models.static import StaticPool, can_be_static, recorder_for

LAUNCHED, STATIC, GRAPHS = "growing cache", "static cache", "graphs"

Make = Callable[[], CachedModel]


def ways(model: PreTrainedModel) -> dict[str, Make]:
    """How passes of this model can be run here, the plainest first."""
    found: dict[str, Make] = {LAUNCHED: lambda: HFModel(model)}
    if can_be_static(model):
        found[STATIC] = StaticPool(model).new
        if recorder := recorder_for(model.device):
            found[GRAPHS] = StaticPool(model, recorder).new
    return found


def text_of(count: int, vocab_size: int) -> list[int]:
    """Tokens without a meaning, the same ones every time."""
    return torch.randint(0, vocab_size, (count,), generator=torch.Generator().manual_seed(1)).tolist()
