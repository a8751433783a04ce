"""Waiting that can be watched: what is yielded when, and what is left behind by who does not wait for the end."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from cactus.ui.waiting import STARTING, told


def test_fault_23_nothing_is_begun_before_the_first_yield():
    """Gradio never closes an event that is cancelled in its first step."""
    begun, stop = threading.Event(), threading.Event()
    waits = told(lambda report: begun.set(), stop)
    assert next(waits) == STARTING and not begun.is_set()
    waits.close()
    assert stop.is_set() and not begun.is_set()


def test_what_is_reported_comes_and_then_the_result():
    go_on = threading.Event()

    def work(report):
        report(0.5, "half")
        go_on.wait(10)
        return 7

    waits = told(work, threading.Event())
    assert [next(waits), next(waits)] == [STARTING, (0.5, "half")]
    go_on.set()
    with pytest.raises(StopIteration) as end:
        next(waits)
    assert end.value.value == 7


def test_a_result_that_nobody_waits_for_is_left():
    stop, left = threading.Event(), []

    @contextmanager
    def place():
        yield
        left.append(True)

    def work(report):
        report(None, "in line")
        stop.wait(10)
        return place()

    waits = told(work, stop)
    assert [next(waits), next(waits)] == [STARTING, (None, "in line")]
    waits.close()
    assert left == [True]
