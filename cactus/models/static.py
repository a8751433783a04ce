"""One causal language model on a static cache: buffers of a fixed size, positions in tensors, CUDA graphs.

A pass over a few tokens launches some hundred kernels, and on an accelerator launching them takes longer than running
them. With nothing in a pass that depends on numbers of the host, it is captured once for every number of fed tokens
and replayed from then on. Going back is a matter of the next positions alone: nothing is copied or cleared, what lies
behind a position is invisible to attention and is overwritten when its turn comes.

Captured by `torch.cuda.CUDAGraph` rather than `torch.compile(mode="reduce-overhead")`: the very kernels of an eager
pass run, so results are the same; nothing is compiled for minutes; and compiled graphs are bound to the thread that
made them, while runs come from any thread.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, StaticLayer

from cactus.interfaces import CachedModel, Output
from cactus.models import grouped
from cactus.models.adapter import HFModel, context_length
from cactus.models.placement import is_spread
from cactus.transfer import send

WIDEST = 17  # tokens fed at once by way of a graph: sixteen drafted ones and the one before them
CHUNK = 512  # tokens of a longer feed that go through the model together
SMALLEST = 256  # tokens a cache holds
SLACK = 512  # tokens that a first feed should leave room for
IDLE = 4  # caches kept for later runs
WARMUP = 2  # passes before a capture: libraries allocate workspaces and choose kernels in the first ones
ATTENTION = ("sdpa", "eager", grouped.NAME)  # these add a mask [1, 1, fed, capacity] to the scores

Result = TypeVar("Result")


class Recorder(Protocol):
    """Captures what a function launches. All captures of one recorder may share memory: one is replayed at a time."""

    def __call__(self, work: Callable[[], Result]) -> tuple[Callable[[], object], Result]:
        """(replay, the result whose tensors a replay fills anew). `RuntimeError` if `work` cannot be captured."""


class CudaRecorder:
    """Captures CUDA graphs on one device, all in one pool of memory."""

    _one_at_a_time = threading.Lock()  # the library can make one capture in a process

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._warm_stream, self._stream = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def __call__(self, work: Callable[[], Result]) -> tuple[Callable[[], object], Result]:
        graph = torch.cuda.CUDAGraph()
        # The outer stream context comes back to the present stream, which a capture that fails leaves behind.
        with self._one_at_a_time, torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream()):
            self._warm(work)
            # Errors of this thread alone: another one may well be copying or allocating meanwhile.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                result = work()
        return graph.replay, result

    def _warm(self, work: Callable[[], object]) -> None:
        self._warm_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._warm_stream):
            for _ in range(WARMUP):
                work()
        torch.cuda.current_stream().wait_stream(self._warm_stream)


NewRecorder = Callable[[torch.device], Recorder]


def can_be_static(model: PreTrainedModel) -> bool:
    """Whether it is on one device, every layer's cache can be rewound by position, and positions and mask can be given
    from outside.

    Sliding windows cannot be rewound: what has left the window of a static cache is gone.
    """
    layers = DynamicCache(config=model.config).layers
    takes = inspect.signature(model.forward).parameters
    return (
        not is_spread(model)
        and all(type(layer) is DynamicLayer for layer in layers)
        and model.config.get_text_config(decoder=True)._attn_implementation in ATTENTION
        and {"attention_mask", "position_ids"} <= takes.keys()
    )


def cached_models(model: PreTrainedModel, static: bool = False) -> Callable[[], CachedModel]:
    """Makes a `CachedModel` of this model with an empty cache, one for each run.

    static: whether on static caches, on CUDA devices with graphs. A model that cannot has growing ones anyway.
    """
    if not static or not can_be_static(model):
        return lambda: HFModel(model)
    pool = StaticPool(model, CudaRecorder if model.device.type == "cuda" else None)
    pool.prepare()
    return pool.new


class Position:
    """Where the tokens of the pass in progress stand: `rows` [fed], shared by all layers of a cache."""

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
    """Buffers and graphs for one run at a time. Every pass reads and writes the same memory."""

    def __init__(self, model: PreTrainedModel, capacity: int, recorder: Recorder | None) -> None:
        self.capacity = capacity
        self.model = model
        self.recorder = recorder
        self._groups = grouped.share_key_heads(model)
        self._position = Position()
        self._layers = [PositionedLayer(capacity, self._position) for _ in DynamicCache(config=model.config).layers]
        self._cache = Cache(layers=list(self._layers))
        self._inputs = torch.zeros(1 + WIDEST, dtype=torch.long, device=model.device)  # first position, then ids
        self._columns = torch.arange(capacity, device=model.device)
        self._graphs: dict[int, tuple[Callable[[], object], Output]] = {}
        self._forward(self._inputs[:2], 1, False)  # allocates keys and values, outside any graph's memory

    @property
    def widths(self) -> list[int]:
        """Numbers of fed tokens for which there is a graph."""
        return sorted(self._graphs)

    def run(self, start: int, tokens: Sequence[int] | Tensor, keep: int, want_hidden: bool) -> Output:
        """A pass over `tokens`, the first of them at position `start`; logits of the last `keep`."""
        device = self._inputs.device
        given = torch.cat([send([start], device), send(tokens, device)])
        if len(tokens) > WIDEST:
            return self._forward(given, keep, want_hidden)
        inputs = self._inputs[: len(given)]
        inputs.copy_(given)
        if self.capture(len(tokens)):
            replay, output = self._graphs[len(tokens)]
            replay()
            return _kept(output, keep, want_hidden)
        return self._forward(inputs, keep, want_hidden)

    def capture(self, width: int) -> bool:
        """Whether there is a graph for so many tokens, captured now if it can be and has not been yet."""
        if self.recorder is None or width in self._graphs:
            return width in self._graphs
        inputs = self._inputs[: 1 + width]
        try:
            self._graphs[width] = self.recorder(lambda: self._forward(inputs, width, True))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a step that waits for the device, say; launched one by one it works
            self.recorder = None
            reason = str(error).partition("\n")[0]
            warnings.warn(
                f"{type(self.model).__name__} runs without CUDA graphs: {reason}", RuntimeWarning, stacklevel=2
            )
        return width in self._graphs

    def take_over(self, other: Slot, length: int) -> None:
        """The first `length` tokens of another slot of the same model."""
        for mine, its in zip(self._layers, other._layers, strict=True):
            mine.keys[:, :, :length] = its.keys[:, :, :length]
            mine.values[:, :, :length] = its.values[:, :, :length]

    def clear(self) -> None:
        """Masked numbers count as 0 times themselves, so a NaN of an earlier run would show."""
        for layer in self._layers:
            layer.keys.zero_()
            layer.values.zero_()

    def _forward(self, inputs: Tensor, keep: int, want_hidden: bool) -> Output:
        """inputs [1 + fed]: the first position and the tokens. Nothing here may depend on a number in a tensor."""
        ids = inputs[1:]
        rows = inputs[0] + self._columns[: len(ids)]  # [fed]
        self._position.rows = rows
        output = self.model(
            input_ids=ids[None],
            position_ids=rows[None],
            attention_mask=self._mask(rows),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=want_hidden,
        )
        return Output(output.logits[0].float(), output.hidden_states[-1][0] if want_hidden else None)

    def _mask(self, rows: Tensor) -> Tensor:
        """To be added to the scores: [1, 1, groups · fed, capacity], a token sees itself and what stands before it."""
        hidden = self._columns > rows.repeat(self._groups)[:, None]
        dtype = self.model.dtype
        shown = torch.zeros(hidden.shape, dtype=dtype, device=rows.device)
        return shown.masked_fill_(hidden, torch.finfo(dtype).min)[None, None]


class StaticPool:
    """The slots of one model. A slot belongs to one run at a time and is used again when that run is gone."""

    def __init__(self, model: PreTrainedModel, new_recorder: NewRecorder | None = None) -> None:
        self.model = model
        self.context_length = context_length(model)
        self._new_recorder = new_recorder
        # Only its atomic methods are used: a run may be collected, and give its slot back, in the midst of anything.
        self._idle: deque[Slot] = deque(maxlen=IDLE)

    def new(self) -> StaticModel:
        """An empty cache for a new run."""
        return StaticModel(self)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture now what an ordinary run needs, so that its first rounds do not have to."""
        slot = self.take(2 * SLACK)
        for width in range(1, WIDEST + 1):
            slot.capture(width)
        self.give_back(slot)

    def take(self, length: int) -> Slot:
        """A cleared slot that holds at least `length` tokens."""
        capacity, idle = self._capacity(length), self._drained()
        fitting = [slot for slot in idle if slot.capacity == capacity]
        best = max(fitting, key=lambda slot: len(slot.widths), default=None)
        self._idle.extend(slot for slot in idle if slot is not best)
        if best is not None:
            best.clear()
            return best
        # Graphs of one slot share memory; those of two would write into each other's results.
        recorder = self._new_recorder(self.model.device) if self._new_recorder is not None else None
        return Slot(self.model, capacity, recorder)

    def _drained(self) -> list[Slot]:
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._idle.popleft())
        return found

    def give_back(self, slot: Slot) -> None:
        """For later runs; the slot longest unused may have to go. One without graphs, as a long prompt leaves behind
        while it is read, is not worth its memory."""
        if slot.widths:
            self._idle.append(slot)

    def _capacity(self, length: int) -> int:
        """Powers of two: few sizes, so slots and graphs are used again, and at most half of one is idle."""
        return min(max(SMALLEST, 1 << (length - 1).bit_length()), max(WIDEST, self.context_length))


class StaticModel(HFModel):
    """A model and one static cache. Implements `interfaces.CachedModel`; not safe to share between threads.

    The cache is as large as the text needs: a text that outgrows it moves to one of twice the size.
    """

    def __init__(self, pool: StaticPool) -> None:
        self.model = pool.model
        self.context_length = pool.context_length
        self.length = 0
        self._pool = pool
        self._slot: Slot | None = None
        self._give_back: Callable[[], object] = lambda: None

    @property
    def capacity(self) -> int:
        """Tokens the cache holds at its present size."""
        return 0 if self._slot is None else self._slot.capacity

    @torch.inference_mode()
    def fork(self) -> StaticModel:
        """The same model with a copy of the cache."""
        other = StaticModel(self._pool)
        other.length = self.length
        if self._slot is not None:
            other._move(self.capacity, self._slot)
        return other

    def _pass(self, tokens: Sequence[int] | Tensor, keep: int, want_hidden: bool) -> Output:
        needed = self.length + len(tokens)
        if self._slot is None:
            self._move(min(needed + SLACK, self.context_length), None)
        elif needed > self.capacity:
            self._move(needed, self._slot)
        assert self._slot is not None
        outputs = []
        for begin in range(0, len(tokens), CHUNK):
            chunk = tokens[begin : begin + CHUNK]
            wanted = min(len(chunk), max(1, keep - (len(tokens) - begin - len(chunk))))
            outputs.append(self._slot.run(self.length + begin, chunk, wanted, want_hidden))
        return outputs[0] if len(outputs) == 1 else _joined(outputs, keep)

    def _drop(self, count: int) -> None:
        """Nothing to do: the next pass says where it begins."""

    def _move(self, length: int, source: Slot | None) -> None:
        """To a slot for `length` tokens, with what `source` holds; the slot so far is free for others."""
        slot = self._pool.take(length)
        if source is not None:
            slot.take_over(source, self.length)
        self._give_back()
        self._slot = slot
        finalizer = weakref.finalize(self, self._pool.give_back, slot)
        finalizer.atexit = False
        self._give_back = finalizer


def _kept(output: Output, keep: int, want_hidden: bool) -> Output:
    """Copies, as the next replay writes into the same memory."""
    hidden = output.hidden.clone() if want_hidden and output.hidden is not None else None
    return Output(output.logits[-keep:].clone(), hidden)


def _joined(outputs: Sequence[Output], keep: int) -> Output:
    hidden = [output.hidden for output in outputs if output.hidden is not None]
    return Output(torch.cat([output.logits for output in outputs])[-keep:], torch.cat(hidden) if hidden else None)
