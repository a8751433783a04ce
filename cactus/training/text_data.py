"""Plain texts as training batches: token ids, and which positions predict an answer.

Knows nothing of models.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cactus.training.batches import row_batches


class TextRow(NamedTuple):
    """One text; the first `prompt_length` of `ids` are its prompt."""

    ids: list[int]
    prompt_length: int


class TextBatch(NamedTuple):
    ids: Tensor  # int64 [batch, length], right-padded: causal attention never looks there
    positions: Tensor  # int64 [positions], flat indices into ids that predict an answer token


class TextDataset:
    """`num_tokens`: of the answers."""

    def __init__(self, rows: Sequence[TextRow]) -> None:
        if not rows:
            raise ValueError("no text to train on")
        self.rows = rows
        self.lengths = torch.tensor([len(row.ids) for row in rows])
        self.num_tokens = sum(len(row.ids) - row.prompt_length for row in rows)

    def batches(self, batch_size: int, seed: int, start: int = 0) -> Iterator[TextBatch]:
        """Endless, from batch number `start` on."""
        return map(self.collate, row_batches(self.lengths, batch_size, seed, start))

    def collate(self, numbers: Tensor) -> TextBatch:
        """The rows of these numbers."""
        chosen = [self.rows[number] for number in numbers.tolist()]
        padded = pad_sequence([torch.tensor(row.ids) for row in chosen], batch_first=True)
        width = padded.shape[1]
        positions = [
            place * width + torch.arange(row.prompt_length - 1, len(row.ids) - 1) for place, row in enumerate(chosen)
        ]
        return TextBatch(padded, torch.cat(positions))
