"""A model that fails in the middle of a run, a visitor who goes away at any moment: the next run is exact."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from dataclasses import replace
from typing import Any

import gradio as gr
import pytest
import torch
from test_sharing import Shared, in_thread, numbers, request, soon
from test_ui_handlers import request as page_request
from watched import DRAFT, VERIFIER, Gate

from cactus.errors import CactusError
from cactus.faults import MemoryFault, in_words, public
from cactus.interfaces import Output
from cactus.limits import Limits
from cactus.sampling import NonFiniteLogits
from cactus.session import Session
from cactus.ui import settings
from cactus.ui.api import Endpoints
from cactus.ui.desk import Desk, Loader
from cactus.ui.live import LiveHandlers

# Passes of a run from its start: the verifier reads the prompt and makes ten steps of the baseline.
PLACES = {"prefill": (VERIFIER, 1), "baseline": (VERIFIER, 5), "verify": (VERIFIER, 14), "draft": (DRAFT, 9)}
ON_CPU = "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


@pytest.fixture(scope="module")
def exact() -> list[dict[str, Any]]:
    """What the request of this module gives where nothing fails."""
    return numbers(Shared().run(request()))


def failing(shared: Shared, place: str, error: Exception) -> None:
    def before(model: str, number: int) -> None:
        if (model, number) == PLACES[place]:
            raise error

    shared.watch.clear()
    shared.watch.before = before


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("a kernel failed"), RuntimeError),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), MemoryFault),
        (RuntimeError(ON_CPU), MemoryFault),
        (MemoryError(), MemoryFault),
    ],
)
def test_fault_27_a_pass_that_fails_ends_the_run_and_the_next_is_exact(exact, place, error, expected):
    shared = Shared()
    failing(shared, place, error)
    with pytest.raises(expected) as raised:
        shared.run(request())
    assert type(raised.value) is expected
    assert shared.is_idle() and not shared.session._residents._residents[request().pair].users
    shared.watch.clear()
    assert numbers(shared.run(request())) == exact and shared.loads == [request().pair]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", ["baseline", "verify", "draft"])
def test_fault_27_logits_that_are_no_numbers_end_the_run_and_the_next_is_exact(exact, place, bad):
    def after(model: str, number: int, output: Output) -> Output:
        spoiled = (model, number) == PLACES[place]
        return replace(output, logits=torch.full_like(output.logits, bad)) if spoiled else output

    shared = Shared()
    shared.watch.after = after
    with pytest.raises(NonFiniteLogits):
        shared.run(request())
    assert shared.is_idle()
    shared.watch.clear()
    assert numbers(shared.run(request())) == exact


def test_a_run_that_fails_leaves_the_others_alone(exact):
    shared = Shared()
    with shared.session.start(request()) as live:
        rounds = iter(live)
        next(rounds)
        shared.watch.before = lambda model, number: (_ for _ in ()).throw(MemoryError())
        with pytest.raises(MemoryFault):
            shared.run(request(seed=2))
        shared.watch.clear()
        list(rounds)
    assert numbers(live.trace) == exact


def test_the_caches_of_a_failed_run_are_let_go():
    shared, caches = Shared(), []

    def go() -> None:
        with shared.session.start(request()) as live:
            caches.append(weakref.ref(live._run._loop.verifier._model._cache))
            failing(shared, "verify", MemoryError())
            shared.watch.counts = {VERIFIER: 12}
            list(live)

    with pytest.raises(MemoryFault) as raised:
        go()
    del raised
    shared.watch.clear()  # it holds the error, and that its traceback
    gc.collect()
    assert caches[0]() is None


def test_a_turn_that_fails_leaves_no_caches_to_the_next_of_its_conversation():
    longer = request(prompt=[5, 9, 30, 7, 8, 40, 9], conversation="one")
    alone = numbers(Shared().run(replace(longer, conversation="")))
    shared = Shared()
    shared.run(request(conversation="one"))
    failing(shared, "verify", MemoryError())
    with pytest.raises(MemoryFault):
        shared.run(longer)
    shared.watch.clear()
    again = shared.run(longer)
    assert again.cached_tokens == 0 and numbers(again) == alone


class Visitor:
    """Asks for a run through the page or the API and looks at what comes, until it goes away."""

    def __init__(self, session: Session, way: str) -> None:
        self._live = LiveHandlers(session, Loader(session), Desk())
        self.gone, self.seen = threading.Event(), []
        self._thread = in_thread(lambda: self._look(self._asked(session, way)))

    def _asked(self, session: Session, way: str) -> Any:
        if way == "page":
            values = settings.defaults() | {"prompt": "the cat", "max_new_tokens": 40, "seed": 1}
            return self._live.run(page_request(), *(values[key] for key in settings.control_keys()))
        ask = getattr(Endpoints(session), way)
        return ask("the cat", max_new_tokens=40, seed=1)

    def _look(self, running: Any) -> None:
        """As Gradio does it: one value after the other; the generator of who has gone is closed at its next yield."""
        for shown in running:
            self.seen.append(shown)
            if self.gone.is_set():
                break
        running.close()

    def leave(self) -> None:
        """Close the tab, or lose the connection."""
        self.gone.set()
        self._live.leave(page_request())

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture(params=["page", "generate", "compare"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


def stays_exact(shared: Shared, exact: list[dict[str, Any]]) -> bool:
    """Everything is free, and the next run is as it should be."""
    assert soon(shared.is_idle)
    shared.watch.clear()
    return numbers(shared.run(request())) == exact


def test_fault_23_who_goes_away_while_waiting_in_line_leaves_it(way, exact):
    shared = Shared(Limits(max_runs=1))
    with shared.session.start(request()) as live:
        visitor = Visitor(shared.session, way)
        assert soon(lambda: len(shared.session._places) == 2 and bool(visitor.seen))
        visitor.leave()
        visitor.join()
        assert len(shared.session._places) == 1
        list(live)
    assert numbers(live.trace) == exact and stays_exact(shared, exact)


def test_fault_23_who_goes_away_while_the_pair_is_loaded_leaves_the_place_at_once(way, exact):
    shared = Shared()
    shared.gate = Gate()
    visitor = Visitor(shared.session, way)
    assert shared.gate.reached.wait(20)
    visitor.leave()
    visitor.join()
    assert len(shared.session._places) == 0
    shared.gate.opened.set()
    assert stays_exact(shared, exact)


@pytest.mark.parametrize("place", ["prefill", "baseline", "verify"])
def test_fault_23_who_goes_away_while_a_model_works_is_gone_when_it_is_done(way, exact, place):
    shared, gate = Shared(), Gate()
    shared.watch.before = lambda model, number: gate() if (model, number) == PLACES[place] else None
    visitor = Visitor(shared.session, way)
    assert gate.reached.wait(20)
    visitor.leave()
    time.sleep(0.3)  # a caller of the API is looked after ten times a second
    gate.opened.set()
    visitor.join()
    # What was held up is finished; the round it belongs to is the last.
    assert shared.watch.counts[VERIFIER] <= PLACES[place][1] + 1
    assert stays_exact(shared, exact)


def test_fault_23_who_goes_away_with_the_last_round_leaves_nothing_behind(way, exact):
    shared = Shared()
    visitor = Visitor(shared.session, way)
    visitor.join()
    assert visitor.seen and stays_exact(shared, exact)


def test_what_strangers_are_told_names_no_folder_and_no_secret():
    said = public("/home/ann/.cache/cactus/x/config.json: no token hf_abcdefghijkl, https://ann:pass@host/simple/p")
    assert said == "config.json: no token …, https://…@host/simple/p"


def test_faults_of_ours_are_logged_and_bad_input_is_told(caplog):
    assert in_words(CactusError("seed is -1")) == "seed is -1" and not caplog.records
    assert in_words(KeyError("x")) == "the run failed (KeyError); the server's log says more"
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("name", ["generate", "compare"])
def test_callers_are_told_in_words(name):
    shared = Shared()
    failing(shared, "verify", RuntimeError("/srv/secret/place"))
    with pytest.raises(gr.Error) as raised:
        list(getattr(Endpoints(shared.session), name)("the cat", seed=1))
    assert raised.value.message == "the run failed (RuntimeError); the server's log says more"
    failing(shared, "verify", MemoryError())
    with pytest.raises(gr.Error, match="out of memory: the run ended here"):
        list(getattr(Endpoints(shared.session), name)("the cat", seed=1))
