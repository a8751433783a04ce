"""Numbers between this machine's memory and a device's: in without waiting, out all at once.

Reading a number makes the host wait for everything the device was given to do, so a round reads once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor


def is_far(device: torch.device) -> bool:
    """Whether a look at a number waits for the device."""
    return device.type != "cpu"


def filled_columns(mask: Tensor) -> Tensor:
    """The columns of [m, n] in which some row has not 0: [k]. All of them where to look would mean to wait."""
    if is_far(mask.device):
        return torch.arange(mask.shape[-1], device=mask.device)
    return mask.sum(0).nonzero().squeeze(-1)


def send(tokens: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """Token ids as a tensor [n] on the device."""
    if isinstance(tokens, Tensor):
        return tokens.to(device)
    # Not waited for: from pageable memory the numbers are taken before the call returns.
    return torch.tensor(tokens, dtype=torch.long).to(device, non_blocking=True)


def read(*tensors: Tensor) -> list[Any]:
    """The numbers of tensors [n] or [rows, n] as lists, all in one transfer. Whole numbers below 2²⁴ stay exact."""
    wide = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    numbers = iter(torch.cat([tensor.reshape(-1).to(wide) for tensor in tensors]).tolist())
    return [_rows(numbers, tensor) for tensor in tensors]


def _rows(numbers: Iterator[float], like: Tensor) -> list[Any]:
    width = like.shape[-1]
    kind = float if like.is_floating_point() else int
    rows = [list(map(kind, islice(numbers, width))) for _ in range(like.shape[:-1].numel())]
    return rows if like.dim() > 1 else rows[0]
