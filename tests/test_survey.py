"""All pairs as they stand: what is loaded makes room, what failed says so, what cannot fit is refused first."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import tiny

from cactus import survey
from cactus.errors import UnavailableError
from cactus.machine import Accelerator, Machine
from cactus.pairs import PAIRS, Pair, find_pair
from cactus.residents import Residents
from cactus.session import Session
from cactus.survey import Survey

GB = 10**9
SMALL = Machine(memory=5 * GB, disk=900 * GB, hub="reachable")
LARGE = find_pair("qwen3-0.6b-8b")


@pytest.fixture
def machine(monkeypatch):
    """Puts another machine in place of this one."""

    def put(made_up: Machine) -> None:
        monkeypatch.setattr(survey, "look", lambda *args, **options: made_up)

    put(SMALL)
    return put


def load(spec, progress) -> Pair:
    made = tiny.pair()
    return Pair(spec.name, made.model, made.codec, made.drafter)


def test_every_pair_is_there_with_its_state(machine):
    states = {state.name: state for state in Survey().states(Residents(1, load))}
    assert list(states)[: len(PAIRS)] == list(PAIRS)  # behind them those that were added in this process
    assert states["pocket"].state == "ready" and states[LARGE.name].state == "too large here"
    assert all(state.size and state.licence for state in states.values())


def test_loaded_pairs_count_as_room_for_others(machine):
    residents, spec = Residents(2, load), find_pair("qwen2.5-0.5b-1.5b")
    residents.get(spec)
    machine(replace(SMALL, memory=2 * GB))
    found = {state.name: state for state in Survey().states(residents)}
    assert found[spec.name].loaded and found[spec.name].state == "ready"
    assert found["smollm2-135m-1.7b"].usable  # once the loaded one has gone
    assert not Survey().fits_now(find_pair("smollm2-135m-1.7b"))


def test_what_is_too_large_is_refused_before_a_download(machine, monkeypatch):
    fetched = []
    monkeypatch.setattr(type(LARGE), "fetch", lambda *args, **options: fetched.append(args))
    session = Session()
    with pytest.raises(UnavailableError, match=r"too large here: it needs about 19\.\d GB of memory; 5\.0 GB"):
        session.load(LARGE.name)
    assert not fetched and "too large" in next(s for s in session.states() if s.name == LARGE.name).needs


def test_a_loaded_pair_on_a_gpu_makes_room_there(machine):
    pair = load(LARGE, None)
    residents = Residents(1, lambda spec, progress: OnGpu(pair))
    residents.get(LARGE)
    machine(replace(SMALL, accelerators=(Accelerator("NVIDIA A", 1 * GB, 24 * GB),)))
    assert Survey()._emptied(survey.look(), residents).accelerators[0].free > 30 * GB  # in float32, as the tiny pair is


class OnGpu:
    """A pair that says it is on a GPU."""

    def __init__(self, pair: Pair) -> None:
        import torch

        self.model, self.dtype, self.device = pair.model, pair.dtype, torch.device("cuda", 0)


def test_where_memory_is_short_the_idle_pair_goes_before_the_next_is_loaded(machine):
    session = Session(load_pair=load)
    session.load("qwen2.5-0.5b-1.5b")
    machine(replace(SMALL, memory=1 * GB))
    session.load("smollm2-135m-1.7b")
    assert [state.name for state in session.states() if state.loaded] == ["smollm2-135m-1.7b"]


def test_a_silent_hub_holds_up_no_list(machine, monkeypatch):
    silence = threading.Event()
    monkeypatch.setattr("cactus.weights.reach.answers", lambda seconds: silence.wait(10))
    start = time.monotonic()
    Survey().states(Residents(1, load))
    assert time.monotonic() - start < 2.0
    silence.set()
