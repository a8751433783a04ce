"""A stand-in for what `models.graphs` uses of `torch.cuda`: streams out of a small pool, captures, replays.

As the real thing: a failed capture leaves its stream as the present one and raises an error of its own; what cuBLAS
needs goes by streams, of which there are few and the same ones again.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator

import torch


class Stream:
    handles = itertools.cycle(range(4))

    def __init__(self, device=None, handle=None) -> None:
        self.cuda_stream = next(Stream.handles) if handle is None else handle
        self.waited_for: list[int] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other.cuda_stream)


class Graph:
    def __init__(self) -> None:
        self.replayed = 0

    def replay(self) -> None:
        self.replayed += 1


class Cuda:
    """Put in place of `torch.cuda`. log: what was done on which stream."""

    CUDAGraph = Graph

    def __init__(self) -> None:
        self.present = Stream(handle=-1)
        self.log: list[tuple[str, int]] = []

    Stream = Stream

    def graph_pool_handle(self) -> object:
        return object()

    def current_stream(self) -> Stream:
        return self.present

    @contextlib.contextmanager
    def device(self, device) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.present = self.present, stream
        try:
            yield
        finally:
            self.present = before

    @contextlib.contextmanager
    def graph(self, graph: Graph, pool, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local" and not gc.isenabled()
        self.present = stream
        self.log.append(("capture", stream.cuda_stream))
        try:
            yield
        except BaseException:
            raise RuntimeError("operation failed due to a previous error during capture") from None
        self.present = Stream(handle=-1)

    def work(self) -> str:
        self.log.append(("work", self.present.cuda_stream))
        return "result"


CPU = torch.device("cpu")
