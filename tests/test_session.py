"""One lock, seeds, stops, switching pairs, requests out of range."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import tiny

from cactus import SamplingParams
from cactus.errors import CactusError, UnavailableError
from cactus.limits import Limits
from cactus.pairs import Pair
from cactus.request import RunRequest
from cactus.session import Session


def session(limits: Limits | None = None) -> Session:
    def load(spec, progress) -> Pair:
        progress(0.5, f"loading {spec.name}")
        made = tiny.pair()
        return Pair(spec.name, made.model, made.codec, made.drafter)

    return Session(limits=limits, load_pair=load)


def request(**changes) -> RunRequest:
    return RunRequest(**{"prompt": [5, 9, 30], "max_new_tokens": 12, "seed": 1, **changes})


def finish(made: Session, asked: RunRequest):
    with made.start(asked) as live:
        list(live)
        return live.trace


def test_a_run_has_settings_baseline_and_text():
    trace = finish(session(), request(params={"delta": 0.5}))
    assert trace.method == "cactus" and trace.params == {"delta": 0.5} and trace.num_draft_tokens == 5
    assert trace.baseline is not None and trace.metrics().speedup is not None
    assert len(trace.tokens) == 12 or trace.stop_reason == "stop"
    alone = finish(session(), request(method="ar"))
    assert alone.method == "ar" and alone.num_draft_tokens == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "x" * 100_001}, "100,001 characters"),
        ({"pair": "nope"}, "pair is 'nope'"),
        ({"method": "magic"}, "method is 'magic'"),
        ({"params": {"delta": -1}}, "delta"),
        ({"params": {"epsilon": 0.1}}, "epsilon"),
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0"),
        ({"num_draft_tokens": 50}, "num_draft_tokens is 50"),
        ({"max_new_tokens": 10**9}, "max_new_tokens"),
        ({"seed": 2**40}, "seed is"),
        ({"stop": ("",)}, "stop is"),
        ({"prompt": "half \ud83c a cactus"}, "U\\+D83C"),
        ({"system": "\udfff"}, "U\\+DFFF"),
        ({"prompt": [{"role": "user", "content": "x" * 100_001}]}, "100,001 characters"),
    ],
)
def test_requests_out_of_range_name_the_value(changes, message):
    with pytest.raises(ValueError, match=message):
        request(**changes)
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=-1.0)


def test_fault_23_an_error_in_a_run_frees_the_model():
    made = session()
    with pytest.raises(ZeroDivisionError), made.start(request()) as live:
        next(iter(live))
        raise ZeroDivisionError
    with pytest.raises(CactusError, match="token id"):
        made.start(request(prompt=[10**6]))
    assert len(finish(made, request()).tokens) == 12


def test_fault_23_stop_before_and_during_a_run():
    made, stop = session(), threading.Event()
    with made.start(request(max_new_tokens=200), stop=stop) as live:
        next(iter(live))
        stop.set()
        assert list(live) == [] and live.stop_reason == "cancelled"
    with made.start(request(), stop=stop) as live:
        assert list(live) == [] and live.stop_reason == "cancelled"
        assert live.trace.text == ""


def test_fault_23_leaving_early_ends_the_run():
    made = session()
    with made.start(request(max_new_tokens=200)) as live:
        next(iter(live))
    assert live.stop_reason == "cancelled" and len(live.trace.rounds) == 1


def test_fault_24_a_run_beyond_the_limit_waits_says_its_place_and_is_unchanged():
    made, seen, traces = session(Limits(max_runs=1)), [], []
    alone = finish(made, request(seed=2))
    with made.start(request(seed=1)) as live:
        second = threading.Thread(
            target=lambda: traces.append(_run_reporting(made, request(seed=2), seen)), daemon=True
        )
        second.start()
        next(iter(live))
        second.join(timeout=0.7)
        assert second.is_alive() and seen[0].startswith("1st in line")
        list(live)
    second.join(timeout=60)
    assert traces[0].text == alone.text != live.trace.text


def _run_reporting(made: Session, asked: RunRequest, seen: list[str]):
    with made.start(asked, progress=lambda share, message: seen.append(message)) as live:
        list(live)
        return live.trace


def test_fault_24_a_waiting_run_can_be_stopped():
    made, stop = session(Limits(max_runs=1)), threading.Event()
    with made.start(request()):
        stop.set()
        with pytest.raises(CactusError, match="stopped while waiting in line"):
            made.start(request(), stop=stop)
    assert len(finish(made, request()).tokens) == 12


def test_fault_25_switching_pairs_lets_go_of_the_former():
    made = session(Limits(max_pairs=1))
    first = weakref.ref(made.load("smollm2-135m"))
    assert [state.name for state in made.states() if state.loaded] == ["smollm2-135m"]
    made.load("smollm2-135m-lookup")
    gc.collect()
    assert first() is None
    assert [state.name for state in made.states() if state.loaded] == ["smollm2-135m-lookup"]


def test_a_pair_that_cannot_be_loaded_says_why_and_the_next_try_may_work():
    tries = []

    def load(spec, progress):
        tries.append(spec.name)
        if len(tries) == 1:
            raise UnavailableError("no network")
        if len(tries) == 2:
            raise MemoryError
        return tiny.pair()

    made = Session(load_pair=load)
    with pytest.raises(UnavailableError, match="no network"):
        made.start(request())
    assert (made.states()[0].available, made.states()[0].needs) == (False, "no network")
    with pytest.raises(UnavailableError, match="not enough memory"):
        made.load("smollm2-135m")
    made.load("smollm2-135m")
    assert made.states()[0].available


def test_time_limit_of_a_run():
    made = session(Limits(max_seconds=0.0))
    assert finish(made, request(max_new_tokens=500)).stop_reason == "time"
