"""Sampled chunks as training batches: rows padded to one length, and which positions predict an answer.

Knows nothing of models.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cactus.training.batches import row_batches
from cactus.training.sampler import Samples

_POSITIONS = 512  # of which logits over the whole vocabulary are held at once


class TrainingBatch(NamedTuple):
    ids: Tensor  # int64 [batch, length], right-padded: causal attention never looks there
    positions: Tensor  # int64 [positions], flat indices into ids that predict an answer token
    verifier_hidden: Tensor  # [positions, hidden]
    features: Tensor  # [batch, length, hidden], the same at every token but the last of a row


class Dataset:
    """All answers of some chunks."""

    def __init__(self, chunks: Sequence[Samples]) -> None:
        if not chunks:
            raise ValueError("no sampled text to train on")
        self.chunks = chunks
        self.rows = [(c, r) for c, chunk in enumerate(chunks) for r in range(len(chunk.ids))]
        self.lengths = torch.cat([chunk.prompt_length + chunk.lengths for chunk in chunks])
        self.num_tokens = sum(int(chunk.lengths.sum()) for chunk in chunks)

    def batches(self, batch_size: int, seed: int, start: int = 0) -> Iterator[TrainingBatch]:
        """Endless, from batch number `start` on."""
        return map(self._collate, row_batches(self.lengths, batch_size, seed, start))

    def _collate(self, rows: Tensor) -> TrainingBatch:
        ids, hidden, features, positions = [], [], [], []
        width = int(self.lengths[rows].max())
        for place, row in enumerate(rows.tolist()):
            chunk, inner = self.chunks[self.rows[row][0]], self.rows[row][1]
            answer = int(chunk.lengths[inner])
            first = chunk.prompt_length - 1  # the last prompt token predicts the first answer token
            ids.append(chunk.ids[inner, : first + 1 + answer].long())
            hidden.append(chunk.hidden[inner, :answer])
            known = torch.cat([chunk.prompt_hidden[inner], hidden[-1]])
            features.append(F.pad(known, (0, 0, 0, 1)))
            positions.append(place * width + first + torch.arange(answer))
        padded = pad_sequence(ids, batch_first=True)
        features = pad_sequence(features, batch_first=True)
        return TrainingBatch(padded, torch.cat(positions), torch.cat(hidden), features)


def likely_tokens(
    chunks: Sequence[Samples],
    head: Tensor,  # [vocab, hidden], the verifier's output head
    size: int,
    required: Sequence[int],
    positions: int = 40_000,
) -> Tensor:
    """The `size` tokens to which the verifier gives most probability at temperature 1, ascending int64 [size].

    `required` ones are always included. Averaged over a seeded draw of positions: counting the sampled tokens
    instead would know nothing of those that could have been drawn.
    """
    inside = [torch.arange(chunk.hidden.shape[1]) < chunk.lengths[:, None] for chunk in chunks]
    hidden = torch.cat([chunk.hidden[rows] for chunk, rows in zip(chunks, inside, strict=True)])  # [tokens, hidden]
    chosen = torch.randperm(len(hidden), generator=torch.Generator().manual_seed(0))[:positions]
    mass = torch.zeros(head.shape[0], dtype=torch.float64)
    with torch.inference_mode():
        for rows in hidden[chosen].split(_POSITIONS):
            mass += (rows.to(head.dtype) @ head.T).float().softmax(-1).sum(0).double()
    mass[list(required)] = mass.max() + 1
    return mass.argsort(descending=True, stable=True)[:size].sort().values
