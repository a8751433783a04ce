"""Which tokens came before: what the repetition penalty of a row counts.

Kept on the device and brought up to date with new tokens alone, so the work does not grow with the text. A rejected
draft leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cactus.transfer import send


class Seen:
    """The tokens of the text and, while a round is drafted, of its draft. Not `wanted`, it does and gives nothing."""

    def __init__(self, vocab_size: int, device: torch.device, wanted: bool) -> None:
        self.wanted = wanted
        self._count = 0
        self._text = torch.zeros(vocab_size if wanted else 0, dtype=torch.bool, device=device)
        self._draft = self._text

    def begin(self, committed: Sequence[int]) -> None:
        """A round begins behind these tokens."""
        if self.wanted:
            self._text[send(committed[self._count :], self._text.device)] = True
            self._count = len(committed)
            self._draft = self._text.clone()

    def add(self, token: Tensor) -> None:
        """A token [1] was drafted."""
        if self.wanted:
            self._draft.index_fill_(0, token, True)

    def by_draft(self, columns: int, token_ids: Tensor | None) -> Tensor | None:
        """For the next drafted token: bool [columns], those of `token_ids` or the first ones."""
        if not self.wanted:
            return None
        return self._draft[:columns] if token_ids is None else self._draft[token_ids]

    def by_verifier(self, drafted: Tensor) -> Tensor | None:
        """For each drafted token [m] and the one behind them: bool [m + 1, vocab]."""
        if not self.wanted:
            return None
        rows = self._text.repeat(len(drafted) + 1, 1)
        for place in range(len(drafted)):
            rows[place + 1 :].index_fill_(1, drafted[place : place + 1], True)
        return rows
