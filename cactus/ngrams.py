"""What a verifier mostly writes behind one or two tokens: counted in texts of its own, kept as a small table.

For every n-gram the one token that followed most often: all that a drafter without a model can use of it. Knows
nothing of models, pairs or drafters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from cactus.errors import CactusError

NGrams = Mapping[tuple[int, ...], int]
"""n-gram -> the token that mostly follows it."""

SIZES = (1, 2)
LEAST = 3  # times that an n-gram must have been seen: what was seen once or twice is mostly chance
FILE = "ngrams.safetensors"


def most_frequent(texts: Iterable[tuple[Sequence[int], int]], least: int = LEAST) -> dict[tuple[int, ...], int]:
    """Counted over the answers of texts (token ids, where the answer begins); of equals the one seen first."""
    counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for tokens, begin in texts:
        for end in range(begin, len(tokens)):
            for size in SIZES:
                if size <= end:
                    counts[tuple(tokens[end - size : end])][tokens[end]] += 1
    return {ngram: seen.most_common(1)[0][0] for ngram, seen in counts.items() if seen.total() >= least}


def save(ngrams: NGrams, folder: Path) -> None:
    """One file in a folder: int32 [n, size + 1] for each size, the following token last."""
    from safetensors.torch import save_file

    rows = {size: sorted((*ngram, token) for ngram, token in ngrams.items() if len(ngram) == size) for size in SIZES}
    tables = {_name(size): torch.tensor(rows[size], dtype=torch.int32).view(-1, size + 1) for size in SIZES}
    save_file(tables, folder / FILE)


def load(folder: Path, vocab_size: int) -> dict[tuple[int, ...], int]:
    """`CactusError` if the file cannot be read or its tokens are not all of this vocabulary."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tables = load_file(folder / FILE)
    except (OSError, SafetensorError) as error:
        raise CactusError(f"{folder / FILE} cannot be read: {error}") from None
    if sorted(tables) != sorted(map(_name, SIZES)):
        there = ", ".join(tables) or "nothing"
        raise CactusError(f"{folder / FILE} has {there}; a table for each size of {SIZES} is needed")
    rows = [row for size in SIZES for row in _rows(folder, tables[_name(size)], size, vocab_size)]
    return {tuple(ngram): token for *ngram, token in rows}


def _rows(folder: Path, table: Tensor, size: int, vocab_size: int) -> list[list[int]]:
    if table.dim() != 2 or table.shape[1] != size + 1 or table.is_floating_point():
        raise CactusError(f"{folder / FILE}: {_name(size)} is no table of whole numbers with {size + 1} columns")
    if table.numel() and not 0 <= int(table.min()) <= int(table.max()) < vocab_size:
        raise CactusError(f"{folder / FILE} has tokens up to {int(table.max())}; the vocabulary has {vocab_size}")
    return table.tolist()


def _name(size: int) -> str:
    return f"{size}-grams"
