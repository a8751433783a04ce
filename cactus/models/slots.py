"""Static caches: buffers of a fixed size, positions in tensors, and the graphs that read and write them.

A pass over a few tokens launches some hundred kernels, and on an accelerator launching them takes longer than running
them. With nothing in a pass that depends on numbers of the host, it can be captured and replayed (`models.graphs`).
Going back is a matter of the next positions alone: nothing is copied or cleared, what lies behind a position is
invisible to attention and is overwritten when its turn comes. What a pass computes is said by a `Network`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticLayer

from cactus.interfaces import Output
from cactus.models.graphs import Graphs, Recorder

WIDEST = 17  # tokens fed at once by way of a graph: sixteen drafted ones and the one before them


@dataclass(frozen=True)
class Place:
    """Where the tokens of a pass stand: positions `rows` [fed], what each may see [1, 1, groups · fed, capacity]."""

    rows: Tensor
    mask: Tensor
    cache: Cache


class Network(Protocol):
    """What a pass computes, whatever holds its keys and values. groups: query heads that share a key head's rows.

    layers: that keep keys and values; features: numbers fed beside each token, 0 for none.
    """

    name: str
    device: torch.device
    dtype: torch.dtype
    context_length: int
    layers: int
    groups: int
    features: int

    def forward(self, ids: Tensor, features: Tensor | None, place: Place, keep: int, want_hidden: bool) -> Output:
        """ids [fed], features [fed, features]: logits [kept, vocab] of the last `keep`, as exact as the weights, and
        hidden states [fed, hidden]. Nothing in it may depend on a number in a tensor."""


class Position:
    """`rows` [fed] of the pass in progress, shared by all layers of a cache."""

    rows: Tensor


class PositionedLayer(StaticLayer):
    """Keys and values are written at the rows of `position`; it keeps no count of its own.

    The library's layer counts its tokens in a tensor; a model of thirty layers would have as many to set back.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, capacity: int, position: Position) -> None:
        super().__init__(capacity)
        self.position = position

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Without the library's marks for a compiler, which is not loaded here."""
        batch, heads = key_states.shape[:2]
        self.keys = key_states.new_zeros(batch, heads, self.max_cache_len, key_states.shape[-1])
        self.values = value_states.new_zeros(batch, heads, self.max_cache_len, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, self.position.rows, key_states)
        self.values.index_copy_(2, self.position.rows, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Tensor:  # type: ignore[override]
        return self.position.rows[0]


class Slot:
    """Buffers and graphs for one run at a time. Every pass reads and writes the same memory.

    What a graph leaves behind is in the slot's own buffers: nothing in the memory of its graphs outlives a replay, so
    they share it in any order.
    """

    def __init__(
        self, network: Network, capacity: int, recorder: Recorder | None, refused: Callable[[str], object]
    ) -> None:
        self.capacity = capacity
        self.network = network
        device = network.device
        self._position = Position()
        self._layers = [PositionedLayer(capacity, self._position) for _ in range(network.layers)]
        self._cache = Cache(layers=list(self._layers))
        self._inputs = torch.zeros(1 + WIDEST, dtype=torch.long, device=device)  # first position, then ids
        self._features = torch.zeros(WIDEST, network.features, dtype=network.dtype, device=device)
        self._columns = torch.arange(capacity, device=device)
        self._graphs = Graphs(recorder, refused)
        # Allocates keys and values, outside any graph's memory, and tells how large a result is.
        like = self._forward(self._inputs[:2], self._features[:1], 1, True)
        assert like.hidden is not None
        self._logits = like.logits.new_empty(WIDEST, like.logits.shape[-1], dtype=torch.float32)
        self._hidden = like.hidden.new_empty(WIDEST, like.hidden.shape[-1])

    @property
    def widths(self) -> list[int]:
        """Numbers of fed tokens for which there is a graph."""
        return self._graphs.widths

    def run(
        self, start: int, tokens: Sequence[int] | Tensor, features: Tensor | None, keep: int, want_hidden: bool
    ) -> Output:
        """A pass over `tokens`, the first of them at position `start`; float32 logits of the last `keep`."""
        width = len(tokens)
        inputs = self._inputs[: 1 + width] if width <= WIDEST else self._inputs.new_empty(1 + width)
        inputs[:1].fill_(start)
        # Not waited for: from pageable memory the numbers are taken before the call returns.
        inputs[1:].copy_(tokens if isinstance(tokens, Tensor) else torch.tensor(tokens), non_blocking=True)
        if width > WIDEST:
            return _exact(self._forward(inputs, features, keep, want_hidden))
        if features is not None:
            self._features[:width].copy_(features)
        if found := self._graphs.find(width, lambda: self._captured(width)):
            replay, output = found
            replay()
            return _kept(output, keep, want_hidden)
        return _exact(self._forward(inputs, self._features[:width], keep, want_hidden))

    def capture(self, width: int) -> None:
        """Make the graph for so many tokens now, if it can be and has not been yet."""
        self._graphs.find(width, lambda: self._captured(width))

    def take_over(self, other: Slot, length: int) -> None:
        """The first `length` tokens of another slot of the same network."""
        for mine, its in zip(self._layers, other._layers, strict=True):
            mine.keys[:, :, :length] = its.keys[:, :, :length]
            mine.values[:, :, :length] = its.values[:, :, :length]

    def clear(self) -> None:
        """Masked numbers count as 0 times themselves, so a NaN of an earlier run would show."""
        for layer in self._layers:
            layer.keys.zero_()
            layer.values.zero_()

    def _captured(self, width: int) -> Output:
        """A pass over what is in the buffers for inputs; its result is in those for results."""
        found = self._forward(self._inputs[: 1 + width], self._features[:width], width, True)
        logits, hidden = self._logits[: len(found.logits)], self._hidden[:width]
        assert found.hidden is not None
        logits.copy_(found.logits)
        hidden.copy_(found.hidden)
        return Output(logits, hidden)

    def _forward(self, inputs: Tensor, features: Tensor | None, keep: int, want_hidden: bool) -> Output:
        """inputs [1 + fed]: the first position and the tokens."""
        ids = inputs[1:]
        rows = inputs[0] + self._columns[: len(ids)]  # [fed]
        self._position.rows = rows
        place = Place(rows, self._mask(rows), self._cache)
        return self.network.forward(ids, features, place, keep, want_hidden)

    def _mask(self, rows: Tensor) -> Tensor:
        """To be added to the scores: [1, 1, groups · fed, capacity], a token sees itself and what stands before it."""
        hidden = self._columns > rows.repeat(self.network.groups)[:, None]
        dtype = self.network.dtype
        shown = torch.zeros(hidden.shape, dtype=dtype, device=rows.device)
        return shown.masked_fill_(hidden, torch.finfo(dtype).min)[None, None]


def _exact(output: Output) -> Output:
    return Output(output.logits.float(), output.hidden)


def _kept(output: Output, keep: int, want_hidden: bool) -> Output:
    """Copies, as the next replay writes into the same memory."""
    hidden = output.hidden.clone() if want_hidden and output.hidden is not None else None
    return Output(output.logits[-keep:].clone(), hidden)
