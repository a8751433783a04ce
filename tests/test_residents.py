"""How many pairs stay loaded, which one goes, and that one in use does not."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import psutil
import pytest
import torch

from cactus.errors import CactusError, UnavailableError
from cactus.pairs import PAIRS
from cactus.residents import Residents

A, B, C = list(PAIRS.values())[:3]


class Loaded:
    """In place of a pair."""

    def __init__(self, name: str) -> None:
        self.name = name


class Loads:
    """In place of loading: keeps a list of what was asked for; may be told to wait or to fail."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.error: BaseException | None = None
        self.go = threading.Event()
        self.go.set()

    def __call__(self, spec, progress):
        self.names.append(spec.name)
        progress(0.5, f"loading {spec.name}")
        assert self.go.wait(10)
        if self.error is not None:
            raise self.error
        return Loaded(spec.name)


@pytest.fixture
def loads() -> Loads:
    return Loads()


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_pair_is_loaded_once(loads):
    residents = Residents(1, loads)
    said = []
    first = residents.get(A, lambda share, message: said.append((share, message)))
    assert residents.get(A) is first is residents.peek(A.name)
    assert loads.names == [A.name] and said == [(0.5, f"loading {A.name}")]
    assert residents.peek(B.name) is None


def test_the_least_recently_used_goes(loads):
    residents = Residents(2, loads)
    for spec in (A, B, A, C):
        residents.get(spec)
    assert residents.names == [A.name, C.name]
    residents.peek(A.name)  # looking is not using
    residents.get(B)
    assert residents.names == [C.name, B.name]


def test_fault_25_nothing_holds_a_dropped_pair(loads):
    residents = Residents(1, loads)
    gone = weakref.ref(residents.get(A))
    residents.get(B)
    assert gone() is None


def test_a_pair_in_use_is_not_dropped_and_its_place_is_waited_for(loads):
    residents, said = Residents(1, loads), []
    lease = residents.lease(A)
    thread = in_thread(lambda: residents.get(B, lambda share, message: said.append(message)))
    thread.join(0.5)
    assert thread.is_alive() and residents.names == [A.name] and "waiting for a run of another pair" in said
    assert residents.get(A) is lease.pair  # meanwhile it can be used by others
    lease.release()
    lease.release()
    thread.join(10)
    assert residents.names == [B.name]


def test_two_users_of_one_pair(loads):
    residents = Residents(2, loads)
    one, two = residents.lease(A), residents.lease(A)
    one.release()
    residents.get(B)
    residents.get(C)  # B goes: A still has a user
    assert residents.names == [A.name, C.name]
    two.release()
    residents.get(B)
    assert residents.names == [C.name, B.name]


def test_waiting_for_a_place_can_be_stopped(loads):
    residents, stop = Residents(1, loads), threading.Event()
    stop.set()
    with residents.lease(A), pytest.raises(CactusError, match="stopped while waiting to load"):
        residents.get(B, stop=stop)


def test_two_threads_that_want_the_same_pair_load_it_once(loads):
    residents, found = Residents(1, loads), []
    loads.go.clear()
    threads = [in_thread(lambda: found.append(residents.get(A))) for _ in range(2)]
    loads.go.set()
    for thread in threads:
        thread.join(10)
    assert loads.names == [A.name] and found[0] is found[1]


def test_what_is_loaded_can_be_taken_while_another_is_being_loaded(loads):
    residents = Residents(2, loads)
    residents.get(A)
    loads.go.clear()
    thread = in_thread(lambda: residents.get(B))
    try:
        assert residents.get(A).name == A.name and thread.is_alive()
    finally:
        loads.go.set()
    thread.join(10)
    assert residents.names == [A.name, B.name]


@pytest.mark.parametrize(
    ("error", "reason"), [(UnavailableError("no network"), "no network"), (MemoryError(), "not enough memory")]
)
def test_a_failure_is_remembered_until_the_pair_can_be_had(loads, error, reason):
    residents = Residents(1, loads)
    loads.error = error
    with pytest.raises(UnavailableError, match=reason):
        residents.get(A)
    assert reason in residents.failure(A.name) and not residents.failure(B.name)
    loads.error = None
    residents.get(A)
    assert residents.failure(A.name) == ""


def test_a_fault_of_ours_leaves_the_place_free(loads):
    residents = Residents(1, loads)
    loads.error = KeyError("a fault")
    with pytest.raises(KeyError):
        residents.get(A)
    loads.error = None
    assert residents.get(B).name == B.name and not residents.failure(A.name)


def test_where_memory_is_short_idle_pairs_go_below_the_limit(loads):
    residents = Residents(3, loads, fits=lambda spec: spec is not C or not residents._residents)
    residents.get(A)
    residents.get(B)
    assert residents.names == [A.name, B.name]
    residents.get(C)
    assert residents.names == [C.name]


def test_a_pair_that_never_fits_is_left_to_the_loader_to_refuse(loads):
    residents = Residents(2, loads, fits=lambda spec: False)
    loads.error = UnavailableError("needs 20 GB, 8 GB are free")
    with pytest.raises(UnavailableError, match="needs 20 GB"):
        residents.get(A)


def test_clear_spares_pairs_in_use(loads):
    residents = Residents(2, loads)
    residents.get(A)
    with residents.lease(B):
        residents.clear()
        assert residents.names == [B.name]
    residents.clear()
    gc.collect()
    assert residents.names == []


def test_the_limit_is_at_least_one(loads):
    with pytest.raises(CactusError, match="is 0"):
        Residents(0, loads)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the allocator decides")
def test_fault_25_memory_goes_back_to_the_system():
    """Many middling pieces, as a model's weights are: without a trim they stay in the allocator's lists."""

    def load(spec, progress):
        pair = Loaded(spec.name)
        pair.weights = [torch.ones(25_000) for _ in range(2_000)]  # 200 MB
        pair.itself = pair
        return pair

    residents, process = Residents(1, load), psutil.Process()
    before = process.memory_info().rss
    residents.get(A)
    full = process.memory_info().rss
    residents.clear()
    assert full - before > 150e6 and process.memory_info().rss - before < 50e6
