"""Capturing, as far as it can be tested without a GPU: on a stand-in for the library's part."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from cuda import CPU, Cuda

from cactus.models import graphs
from cactus.models.graphs import CaptureError, CudaRecorder, Graphs


@pytest.fixture
def cuda(monkeypatch):
    stand_in = Cuda()
    monkeypatch.setattr(graphs.torch, "cuda", stand_in)
    monkeypatch.setattr(CudaRecorder, "_lent", {})
    return stand_in


def test_warm_up_and_capture_share_a_stream_and_the_present_one_comes_back(cuda):
    recorder = CudaRecorder(CPU)
    replay, result = recorder(cuda.work)
    own = cuda.log[0][1]
    assert own != -1 and result == "result"
    assert cuda.log == [("work", own), ("work", own), ("capture", own), ("work", own)]
    assert cuda.present.cuda_stream == -1 and gc.isenabled()
    replay()
    assert recorder._graphs[0].replayed == 1


def test_a_stream_has_another_holder_only_when_all_graphs_of_the_first_are_gone(cuda):
    recorders = [CudaRecorder(CPU) for _ in range(4)]
    assert len({recorder._stream.cuda_stream for recorder in recorders}) == 4
    with pytest.raises(CaptureError, match="all 32 streams of cpu hold graphs"):
        CudaRecorder(CPU)
    recorders[2](cuda.work)
    freed, graph = recorders[2]._stream.cuda_stream, weakref.ref(recorders[2]._graphs[0])
    seen = []
    lent = CudaRecorder._lent[CPU]
    weakref.finalize(graph(), lambda: seen.append(freed in lent))
    del recorders[2]
    assert graph() is None and seen == [True]  # the graph went first
    assert CudaRecorder(CPU)._stream.cuda_stream == freed


def test_a_failed_capture_says_why_and_leaves_the_present_stream(cuda):
    def reads():
        if len(cuda.log) > 2:
            raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might")
        cuda.work()

    with pytest.raises(CaptureError, match="^operation not permitted when stream is capturing$"):
        CudaRecorder(CPU)(reads)
    assert cuda.present.cuda_stream == -1 and gc.isenabled()


def test_want_of_memory_is_named_and_frees_the_graphs_there_are(cuda):
    said, recorder = [], CudaRecorder(CPU)
    made = Graphs(recorder, said.append)
    assert made.find(1, cuda.work) is not None

    def too_large():
        if cuda.log[-1][0] == "capture":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return cuda.work()

    assert made.find(2, too_large) is None
    assert said == ["the device has not enough memory for them"]
    assert made.widths == [] and recorder._graphs == []
    assert made.find(1, cuda.work) is None  # launched one by one from now on


def test_a_second_look_captures_nothing(cuda):
    made = Graphs(CudaRecorder(CPU), pytest.fail)
    replay, result = made.find(3, cuda.work)
    done = len(cuda.log)
    assert made.find(3, cuda.work) == (replay, result) and len(cuda.log) == done
