"""A fault of vLLM's CPU kernels, mended where it is found.

`expand_batch_to_tokens` gives every drafted token its request's temperature, top-k and top-p. On a CPU the kernel of
vLLM 0.32.0 writes them into a copy, so that the caller is left with uninitialised numbers and the text is gibberish.
"""

from __future__ import annotations

import logging
from types import ModuleType

import torch
from torch import Tensor

log = logging.getLogger("vllm.cactus")


def mend_expansion(module: ModuleType) -> bool:
    """Replace `module.expand_batch_to_tokens` if it does not do what it says. Whether it was replaced."""
    if _works(module):
        return False
    module.expand_batch_to_tokens = expand_batch_to_tokens  # type: ignore[attr-defined]
    if not _works(module):
        raise RuntimeError("expand_batch_to_tokens could not be replaced")
    log.info("cactus: replaced expand_batch_to_tokens, whose CPU kernel leaves its result uninitialised")
    return True


def _works(module: ModuleType) -> bool:
    given, ends = torch.tensor([0.0, 1.5, 2.5]), torch.tensor([1, 2, 4], dtype=torch.int32)
    return module.expand_batch_to_tokens(given, ends, 4, 0, 1).tolist() == [1.0, 1.5, 2.5, 2.5]


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """x of its request for each token: [batch], running counts [batch] -> [num_tokens]."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts, output_size=num_tokens)
