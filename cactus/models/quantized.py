"""Draft models with eight-bit weights: a draft step reads half the memory.

Only drafters are quantised: speculative sampling is exact for whatever distribution the drafted tokens were really
drawn from, so an approximate drafter costs acceptance at most. The kernel pays for a few rows at a time; more go
through the original weights.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

FEW_ROWS = 2  # above, the kernel was measured slower than bfloat16
TRIALS = 15

Model = TypeVar("Model", bound=nn.Module)


class Int8Linear(nn.Module):
    """A linear layer without bias, its rows scaled to int8 (symmetric, one scale a row)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()  # [out, in]
        scale = (weight.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        self.exact = linear
        self.register_buffer("rounded", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(linear.weight.dtype))

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(0, -2)  # [n, in]
        if len(flat) > FEW_ROWS:
            return self.exact(rows)
        product = torch.ops.aten._weight_int8pack_mm(flat, self.rounded, self.scale)
        return product.view(*rows.shape[:-1], -1)


def quantized(model: Model) -> Model:
    """A copy with int8 weights for few rows. Everything else is shared with the original, its weights included."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    for parent in list(twin.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and child.bias is None:
                setattr(parent, name, Int8Linear(child))
    return twin


def can_quantize(model: nn.Module) -> bool:
    """Whether this machine has the kernel for the model's kind of numbers, and the model is on the CPU."""
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    try:
        layer = Int8Linear(nn.Linear(64, 64, bias=False, dtype=weight.dtype))
        return bool(layer(torch.ones(1, 64, dtype=weight.dtype)).isfinite().all())
    except (RuntimeError, AttributeError):  # a build of torch without the kernel, or without it for this processor
        return False


def cheapest(model: Model, step: Callable[[Model], Callable[[], object]], as_it_is: bool = False) -> tuple[Model, str]:
    """The model or its quantised copy, whichever does a draft step faster here, and how its weights are held.

    as_it_is: not to be quantised; on static caches the copy was not measured.

    `step` makes one draft step of a model, to be called repeatedly. Both are timed by turns, so that a busy machine
    hits them alike.
    """
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    if as_it_is or not can_quantize(model):
        return model, kind
    rivals = (model, quantized(model))
    steps = [step(rival) for rival in rivals]
    seconds: list[list[float]] = [[], []]
    for _ in range(TRIALS + 2):
        for run, times in zip(steps, seconds, strict=True):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
    exact, rounded = (statistics.median(times[2:]) for times in seconds)
    return (rivals[1], "int8") if rounded < exact else (model, kind)
