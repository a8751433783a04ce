"""Numbers between this machine's memory and a device's: in without waiting, out all at once.

Reading a number makes the host wait for everything the device was given to do, so a round reads once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def send(tokens: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """Token ids as a tensor [n] on the device."""
    if isinstance(tokens, Tensor):
        return tokens.to(device)
    # Not waited for: from pageable memory the numbers are taken before the call returns.
    return torch.tensor(tokens, dtype=torch.long).to(device, non_blocking=True)


def read(*tensors: Tensor) -> list[Any]:
    """The numbers of all tensors, as `tolist` would give each, in one transfer. Whole numbers below 2²⁴ stay exact."""
    kind = torch.float32 if tensors[0].device.type == "mps" else torch.float64
    flat = torch.cat([tensor.reshape(-1).to(kind) for tensor in tensors]).cpu()
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape).to(tensor.dtype).tolist() for piece, tensor in zip(pieces, tensors, strict=True)]
