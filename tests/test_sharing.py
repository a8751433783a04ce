"""Several runs on one session: the texts of each as if it were alone, fair turns, own seconds, pairs that change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from watched import VERIFIER, Gate, Watch, WatchedPair, watched_pair

from cactus.errors import CactusError
from cactus.limits import Limits
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.session import Session
from cactus.trace import Trace

FIRST, SECOND, THIRD = "smollm2-135m", "smollm2-135m-lookup", "pocket"


class Shared:
    """A session over watched pairs; `loads` are the names in the order of loading, `gate` may hold a load up."""

    def __init__(self, limits: Limits | None = None, static: bool = False) -> None:
        self.watch, self.loads, self.gate = Watch(), [], None
        self.static = static
        self.session = Session(limits=limits, load_pair=self._load)

    def _load(self, spec: Any, progress: Any) -> WatchedPair:
        self.loads.append(spec.name)
        if self.gate:
            self.gate()
        return watched_pair(spec.name, self.watch, self.static)

    def run(self, asked: RunRequest, **options: Any) -> Trace:
        with self.session.start(asked, **options) as live:
            for _ in live:
                pass
        return live.trace

    def is_idle(self) -> bool:
        own = self.session
        return len(own._places) == len(own._models) == len(own._door) == 0


def request(**changes: Any) -> RunRequest:
    return RunRequest(**{"prompt": [5, 9, 30, 7], "max_new_tokens": 24, "seed": 1, **changes})


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def soon(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def numbers(trace: Trace) -> list[dict[str, Any]]:
    """All that a trace says of its tokens."""
    return [token.model_dump() for round_ in trace.rounds for token in round_.tokens]


MIXED = [
    request(method="cactus", params={"delta": 0.5}, seed=3),
    request(method="sps", seed=4, num_draft_tokens="auto", prompt=[8, 9, 40]),
    request(method="ar", seed=3, sampling=SamplingParams(temperature=1.3, top_p=0.9)),
    request(method="block", seed=9, num_draft_tokens=3, sampling=SamplingParams(repetition_penalty=1.2)),
]


@pytest.mark.parametrize("static", [False, True])
def test_fault_24_texts_grow_together_and_are_the_same_as_alone(static):
    shared = Shared(static=static)
    alone = [numbers(shared.run(asked)) for asked in MIXED]
    order: list[int] = []
    together: dict[int, Trace] = {}
    start = threading.Barrier(len(MIXED))

    def go(number: int) -> None:
        with shared.session.start(MIXED[number]) as live:
            start.wait(30)
            for _ in live:
                order.append(number)
        together[number] = live.trace

    for thread in [in_thread(lambda number=number: go(number)) for number in range(len(MIXED))]:
        thread.join(60)
    assert [numbers(together[number]) for number in range(len(MIXED))] == alone
    fewest = min(order.count(number) for number in range(len(MIXED)))
    shared_part = order[: fewest * len(MIXED) // 2]
    assert all(shared_part.count(number) >= fewest // 4 for number in range(len(MIXED))), order
    assert shared.is_idle()


def test_waiting_for_turns_is_no_part_of_a_runs_own_seconds():
    shared = Shared()
    with shared.session.start(request()) as live:
        rounds = iter(live)
        next(rounds)
        with shared.session._models.turn():
            behind = in_thread(lambda: next(rounds))
            behind.join(0.5)
            assert behind.is_alive()
        behind.join(20)
        list(rounds)
    timings = live.trace.timings
    own = sum(round_.seconds + round_.record_seconds for round_ in live.trace.rounds)
    assert timings.waiting_seconds >= 0.4
    assert own + timings.prefill_seconds + timings.baseline_seconds < timings.total_seconds - 0.4
    assert max(round_.seconds for round_ in live.trace.rounds) < 0.4


def test_others_come_between_the_chunks_of_a_long_prompt_and_the_steps_of_the_baseline(monkeypatch):
    monkeypatch.setattr("cactus.loop.PREFILL_CHUNK", 16)
    shared, turns = Shared(), []
    line = shared.session._models
    taken = line.turn

    def counted(*args: Any, **options: Any) -> Any:
        turns.append(len(line))
        return taken(*args, **options)

    monkeypatch.setattr(line, "turn", counted)
    trace = shared.run(request(prompt=[7] * 100, method="ar", max_new_tokens=5, seed=1))
    chunks, baseline, made = 7, 2 * (1 + 10), 1
    # One more turn would have been the one in which the limit is noticed; the writer says it with the last token.
    assert len(turns) == 1 + made + chunks + baseline + len(trace.rounds)


def test_a_run_ends_at_its_own_time_limit_whatever_others_take():
    shared = Shared(Limits(max_seconds=5.0))
    with shared.session.start(request(max_new_tokens=8)) as live:
        live._run._waited += 1000.0  # as if others had had their turns for so long
        live._run._began -= 1000.0
        list(live)
    assert live.stop_reason in ("length", "stop")


def test_a_pair_that_needs_room_gets_its_time_before_later_runs_of_the_loaded_one():
    shared, order = Shared(Limits(max_pairs=1)), []

    def go(name: str, pair: str) -> threading.Thread:
        def work() -> None:
            with shared.session.start(request(pair=pair, max_new_tokens=4)) as live:
                order.append(name)
                list(live)

        asked = len(shared.session._places)
        thread = in_thread(work)
        assert soon(lambda: len(shared.session._places) > asked)
        return thread

    with shared.session.start(request(pair=FIRST)) as live:
        switch = go("switch", SECOND)
        assert soon(lambda: len(shared.session._door) == 1)
        late = go("late", FIRST)
        time.sleep(0.3)
        assert order == []
        list(live)
    for thread in (switch, late):
        thread.join(30)
    assert order == ["switch", "late"] and shared.loads == [FIRST, SECOND, FIRST]
    assert shared.is_idle()


def test_runs_on_two_loaded_pairs_go_on_at_once():
    shared = Shared(Limits(max_pairs=2))
    with shared.session.start(request(pair=FIRST)) as one, shared.session.start(request(pair=SECOND)) as two:
        first, second = iter(one), iter(two)
        for _ in range(2):
            next(first), next(second)
        assert shared.loads == [FIRST, SECOND]
        list(first), list(second)
    assert numbers(one.trace) == numbers(two.trace)


def test_no_round_is_made_while_a_pair_is_loaded():
    shared = Shared()
    with shared.session.start(request(pair=FIRST)) as live:
        rounds = iter(live)
        next(rounds)
        shared.gate = Gate()
        loading = in_thread(lambda: shared.session.load(SECOND))
        assert shared.gate.reached.wait(20)
        behind = in_thread(lambda: next(rounds))
        behind.join(0.3)
        assert behind.is_alive()
        shared.gate.opened.set()
        behind.join(20)
        loading.join(20)
        assert not behind.is_alive()


def test_who_leaves_while_a_pair_is_loaded_is_gone_at_once_and_the_pair_stays():
    shared, stop, said = Shared(Limits(max_runs=1)), threading.Event(), []
    shared.gate = Gate()

    def go() -> None:
        try:
            shared.session.start(request(), stop=stop)
        except CactusError as error:
            said.append(str(error))

    leaving = in_thread(go)
    assert shared.gate.reached.wait(20)
    stop.set()
    leaving.join(5)
    assert said == ["stopped while waiting"] and len(shared.session._places) == 0
    shared.gate.opened.set()
    assert soon(lambda: shared.session._residents.names == [FIRST])
    assert shared.run(request()).stop_reason in ("length", "stop")
    assert shared.loads == [FIRST] and shared.is_idle()


def test_a_download_holds_up_nobody_else():
    shared = Shared()
    fetching = Gate()
    shared.session._fetch = lambda spec, progress: fetching() if spec.name == SECOND else None
    waits = in_thread(lambda: shared.run(request(pair=SECOND)))
    assert fetching.reached.wait(20)
    assert shared.run(request(pair=FIRST)).stop_reason in ("length", "stop")
    fetching.opened.set()
    waits.join(30)
    assert shared.loads == [FIRST, SECOND]


def test_lanes_keep_one_place_and_others_take_turns_with_them():
    shared, order = Shared(Limits(max_runs=2)), []
    with shared.session.seat() as seat:
        with seat.start(request(max_new_tokens=4)) as live:
            list(live)
        assert len(shared.session._places) == 1
        other = shared.session.start(request(seed=5))
        waits = in_thread(lambda: order.append(shared.run(request(seed=6, max_new_tokens=2)).seed))
        assert soon(lambda: len(shared.session._places) == 3)
        with seat.start(request(seed=2)) as lane:  # though another waits in line
            first, second = iter(lane), iter(other)
            for _ in range(2):
                next(first), next(second)
        assert order == []
        other.__exit__(None, None, None)
        waits.join(30)
        assert order == [6]
    assert shared.is_idle()


def test_a_run_without_a_place_leaves_none_behind():
    shared, stop = Shared(Limits(max_runs=1)), threading.Event()
    with shared.session.start(request()):
        stop.set()
        for _ in range(3):
            with pytest.raises(CactusError, match="in line"):
                shared.session.start(request(), stop=stop)
    assert shared.is_idle()


def test_limits_of_the_server_are_named_before_anything_is_waited_for():
    shared = Shared(Limits(max_new_tokens=16, max_prompt_characters=20))
    with pytest.raises(CactusError, match="max_new_tokens is 17; up to 16 are allowed here"):
        shared.session.start(request(max_new_tokens=17))
    with pytest.raises(CactusError, match="21 characters; at most 20"):
        shared.session.start(request(prompt="x" * 21, max_new_tokens=4))
    assert shared.loads == [] and shared.is_idle()


def test_costs_of_a_pair_are_measured_in_a_turn():
    shared, held = Shared(), []
    shared.watch.before = lambda model, number: held.append(len(shared.session._models) > 0)
    shared.run(request(num_draft_tokens="auto", max_new_tokens=4))
    assert held and all(held) and shared.watch.counts[VERIFIER] > 10
