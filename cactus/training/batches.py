"""Which rows of a data set make the next batch: shuffled, but of like lengths, so that little is padding.

The order depends on the seed and the step alone, so a resumed run sees what an
uninterrupted one would. Knows nothing of what the rows hold.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

_POOL = 16  # batches whose rows are sorted by length together


def row_batches(lengths: Tensor, batch_size: int, seed: int, start: int = 0) -> Iterator[Tensor]:
    """Endless row numbers [at most batch_size], from batch number `start` on; every epoch has every row once."""
    per_epoch = -(-len(lengths) // batch_size)
    epoch, skip = divmod(start, per_epoch)
    while True:
        yield from _epoch(lengths, batch_size, seed + epoch)[skip:]
        epoch, skip = epoch + 1, 0


def _epoch(lengths: Tensor, batch_size: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator)
    pools = [pool[lengths[pool].argsort()] for pool in order.split(batch_size * _POOL)]
    batches = [batch for pool in pools for batch in pool.split(batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator)]
