"""Lines are first come, first served; who is asked to stop leaves; a forked process starts anew."""

from __future__ import annotations

import os
import threading
import time

import pytest

from cactus.errors import CactusError
from cactus.turns import Line, apart, ordinal


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def join_line(line: Line, number: int, order: list[int], **options) -> threading.Thread:
    """A thread that stands in line, behind all who did before."""

    def work() -> None:
        with line.turn(**options) as mine:
            order.append(number if mine else -number)

    before = len(line)
    thread = in_thread(work)
    while len(line) == before and thread.is_alive():
        time.sleep(0.001)
    return thread


def test_first_come_first_served():
    line, order = Line(), []
    with line.turn() as mine:
        threads = [join_line(line, number, order) for number in range(1, 6)]
        assert mine and order == []
    for thread in threads:
        thread.join(10)
    assert order == [1, 2, 3, 4, 5] and len(line) == 0


def test_several_places():
    line, order = Line(2), []
    with line.turn(), line.turn():
        waits = join_line(line, 3, order)
        assert waits.is_alive() and order == []
    waits.join(10)
    assert order == [3]


def test_those_who_ask_again_and_again_take_turns():
    line, order, ready = Line(), [], threading.Barrier(3)

    def work(name: str) -> None:
        ready.wait(10)
        for _ in range(30):
            with line.turn():
                order.append(name)
                time.sleep(0.002)

    threads = [in_thread(lambda name=name: work(name)) for name in "abc"]
    for thread in threads:
        thread.join(20)
    middle = order[6:-6]
    assert len(order) == 90
    assert all(len(set(middle[i : i + 3])) == 3 for i in range(len(middle) - 2))


def test_the_place_in_line_is_told_as_it_changes():
    line, told, order = Line(), [], []
    with line.turn():
        first = join_line(line, 1, order)
        second = join_line(line, 2, order, tell=told.append)
        time.sleep(0.05)
        assert told == [2]
    for thread in (first, second):
        thread.join(10)
    assert told in ([2], [2, 1]) and order == [1, 2]


def test_who_is_asked_to_stop_leaves_and_the_next_moves_up():
    line, order, stop = Line(), [], threading.Event()
    with line.turn():
        gone = join_line(line, 1, order, stopped=stop)
        stays = join_line(line, 2, order)
        stop.set()
        gone.join(10)
        assert order == [-1] and len(line) == 2
    stays.join(10)
    assert order == [-1, 2]


def test_an_error_in_a_turn_ends_it():
    line = Line()
    with pytest.raises(ZeroDivisionError), line.turn():
        raise ZeroDivisionError
    with line.turn() as mine:
        assert mine


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_does_not_wait_for_threads_of_its_parent():
    line, stop = Line(), threading.Event()
    with line.turn():
        child = os.fork()
        if child == 0:
            threading.Timer(5, stop.set).start()
            with line.turn(stop) as mine:
                os._exit(0 if mine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_line_has_a_place():
    with pytest.raises(CactusError, match="places is 0"):
        Line(0)


def test_work_apart_gives_its_result_or_its_error():
    stop = threading.Event()
    assert apart(lambda: 5, stop, lambda result: None) == 5
    with pytest.raises(TimeoutError):
        apart(lambda: (_ for _ in ()).throw(TimeoutError()), stop, lambda result: None)


def test_work_apart_is_left_behind_and_its_result_discarded():
    stop, go, discarded = threading.Event(), threading.Event(), []

    def work() -> int:
        assert go.wait(10)
        return 7

    stop.set()
    with pytest.raises(CactusError, match="stopped"):
        apart(work, stop, discarded.append)
    assert discarded == []
    go.set()
    for _ in range(1000):
        if discarded:
            break
        time.sleep(0.01)
    assert discarded == [7]


def test_ordinals():
    said = [ordinal(place) for place in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)]
    assert said == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]
