"""CUDA graphs: a pass is captured once for every number of fed tokens and replayed from then on.

Captured by `torch.cuda.CUDAGraph` rather than `torch.compile(mode="reduce-overhead")`: the very kernels of an eager
pass run, so results are the same; nothing is compiled for minutes; and compiled graphs are bound to the thread that
made them, while runs come from any thread. Knows nothing of models and caches.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol, TypeVar

import torch

WARMUP = 2  # passes before a capture: libraries allocate workspaces and choose kernels in the first ones
STREAMS = 32  # of a device, which the library gives out in turns, the same ones again and again

Result = TypeVar("Result")


class CaptureError(RuntimeError):
    """A pass cannot be captured. The message is the reason; launched one by one, its kernels may well run."""


class Recorder(Protocol):
    """Captures what a function launches. All captures of one recorder may share memory: one is replayed at a time."""

    def __call__(self, work: Callable[[], Result]) -> tuple[Callable[[], object], Result]:
        """(replay, the result whose tensors a replay fills anew). `RuntimeError` if `work` cannot be captured."""

    def drop(self) -> None:
        """Free all that was captured; nothing of it is replayed any more."""


class CudaRecorder:
    """Captures CUDA graphs on one device, all in one pool of memory and on one stream, which is nobody else's.

    What cuBLAS needs for its work goes by streams: freeing one graph takes it from every other captured on the same
    stream, whose replay would then write where it must not (seen in the library, pytorch issue 193402). So a stream
    has another holder only once all graphs of the first are gone.
    """

    _one_at_a_time = threading.Lock()  # the library can make one capture in a process
    _lent: ClassVar[dict[torch.device, set[int]]] = {}

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._pool = torch.cuda.graph_pool_handle()
        lent = self._lent.setdefault(device, set())
        with self._one_at_a_time:
            self._stream = _own_stream(device, lent)
        # Without a lock: it may be called in the midst of anything.
        weakref.finalize(self, _give_back, self._graphs, lent, self._stream.cuda_stream).atexit = False

    def __call__(self, work: Callable[[], Result]) -> tuple[Callable[[], object], Result]:
        graph = torch.cuda.CUDAGraph()
        # The outer stream context comes back to the present stream, which a capture that fails leaves behind.
        with (
            self._one_at_a_time,
            _no_garbage(),
            torch.cuda.device(self.device),
            torch.cuda.stream(torch.cuda.current_stream()),
        ):
            try:
                self._warm(work)
                # Errors of this thread alone: another one may well be copying or allocating meanwhile.
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    result = work()
            except RuntimeError as error:
                raise CaptureError(_reason(error)) from error
        number = len(self._graphs)
        self._graphs.append(graph)
        graphs = self._graphs  # held in this list alone, so that they go before their stream does
        return lambda: graphs[number].replay(), result

    def drop(self) -> None:
        self._graphs.clear()

    def _warm(self, work: Callable[[], object]) -> None:
        """On the stream of the capture, so that what libraries allocate for it is not taken from the graphs' memory."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARMUP):
                work()
        torch.cuda.current_stream().wait_stream(self._stream)


def _own_stream(device: torch.device, lent: set[int]) -> torch.cuda.Stream:
    for _ in range(STREAMS):
        stream = torch.cuda.Stream(device)
        if stream.cuda_stream not in lent:
            lent.add(stream.cuda_stream)
            return stream
    raise CaptureError(f"all {STREAMS} streams of {device} hold graphs of other caches")


def _give_back(graphs: list[torch.cuda.CUDAGraph], lent: set[int], stream: int) -> None:
    graphs.clear()
    lent.discard(stream)


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    """What is collected in the midst of a capture might free other graphs, or memory of the device."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _reason(error: BaseException) -> str:
    """The first error: ending a capture that failed raises another one, which says only that it failed."""
    while error.__context__ is not None:
        error = error.__context__
    if isinstance(error, torch.OutOfMemoryError):
        return "the device has not enough memory for them"
    return str(error).partition("\n")[0] or type(error).__name__


class Graphs:
    """Those of one cache, by the number of fed tokens. Where a pass cannot be captured there are none any more.

    refused: told why, so that nobody tries again. Those captured before a failure go too: they share its stream, and
    where memory ran out it is needed.
    """

    def __init__(self, recorder: Recorder | None, refused: Callable[[str], object]) -> None:
        self._recorder = recorder
        self._refused = refused
        self._made: dict[int, tuple[Callable[[], object], object]] = {}

    @property
    def widths(self) -> list[int]:
        """Numbers of fed tokens for which there is a graph."""
        return sorted(self._made)

    def find(self, width: int, work: Callable[[], Result]) -> tuple[Callable[[], object], Result] | None:
        """(replay, the result that it fills), captured now if it has not been yet; None where that cannot be."""
        if self._recorder is not None and width not in self._made:
            try:
                self._made[width] = self._recorder(work)
            except RuntimeError as error:
                self._made.clear()
                self._recorder.drop()
                self._recorder = None
                self._refused(_reason(error))
        return self._made.get(width)  # type: ignore[return-value]
