"""Runs in a process that has the GPU: a stand-in for the hosting library pickles whatever crosses over."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tiny
from test_ui_handlers import lines, request, row

from cactus.errors import CactusError, UnavailableError
from cactus.limits import Limits
from cactus.request import RunRequest
from cactus.session import Session
from cactus.trace import Trace
from cactus.ui.apart import ApartSession
from cactus.ui.api import Endpoints
from cactus.ui.desk import Desk, Loader
from cactus.ui.live import LiveHandlers

ROOT = Path(__file__).resolve().parents[1]
ASKED = RunRequest(prompt="the cat", max_new_tokens=24, seed=1)


def crossed(thing):
    return pickle.loads(pickle.dumps(thing))


def pickling(function):
    """As the hosting library does: arguments and yields go through pickle, and the generator lives elsewhere."""

    @functools.wraps(function)
    def elsewhere(*args):
        for record in function(*crossed(args)):
            yield crossed(record)

    return elsewhere


@pytest.fixture
def apart(monkeypatch) -> ApartSession:
    made = []

    def make() -> Session:
        made.append(Session(limits=Limits(max_new_tokens=200), load_pair=lambda spec, progress: load(spec)))
        return made[-1]

    def load(spec):
        if spec.name == "pocket":
            raise UnavailableError("pocket is damaged")
        return tiny.pair()

    monkeypatch.setattr("cactus.pairs.spec.PairSpec.fetch", lambda *args, **options: None)
    session = ApartSession(make, pickling)
    session.made = made
    return session


def test_a_run_apart_is_the_run_that_it_would_be_here(apart):
    with apart.start(ASKED) as live:
        assert isinstance(live.trace, Trace) and live.stop_reason is None
        rounds = list(live)
    with apart.made[0].start(ASKED) as here:
        list(here)
    assert live.trace.text == here.trace.text and len(live.trace.rounds) == len(rounds)
    assert live.stop_reason == here.stop_reason and live.trace.baseline is not None
    assert len(apart.made) == 2  # no lock of the first can be held in the other process


def test_stop_and_leaving_end_it_with_what_there_is(apart):
    stop = threading.Event()
    with apart.start(ASKED, stop=stop) as live:
        next(iter(live))
        stop.set()
    assert live.stop_reason == "cancelled" and len(live.trace.rounds) == 1


def test_errors_cross_over_as_what_they_are(apart):
    with pytest.raises(UnavailableError, match="pocket is damaged"):
        apart.start(RunRequest(pair="pocket", prompt="hello"))
    with pytest.raises(CactusError, match="token id"):
        apart.start(RunRequest(prompt=[10**6]))
    with pytest.raises(CactusError, match="max_new_tokens is 500"):
        apart.start(RunRequest(prompt="hello", max_new_tokens=500))


def test_a_fault_in_mid_run_reaches_whoever_reads(apart, monkeypatch):
    def fails(self):
        yield from ()
        raise KeyError("a fault")

    monkeypatch.setattr("cactus.session.LiveRun.__iter__", fails)
    with apart.start(ASKED) as live, pytest.raises(CactusError, match="the run failed \\(KeyError\\)"):
        list(live)


def test_page_and_api_work_on_it(apart):
    desk = Desk()
    live = LiveHandlers(apart, Loader(apart), desk)
    shown = list(live.run(request(), *row(prompt="the cat", max_new_tokens=16, seed=1)))
    assert "end" in lines(shown[-1][0])[-1] and desk.visit("one").show.trace.stop_reason in ("length", "stop")
    *_, (text, trace) = Endpoints(apart).generate("the cat", max_new_tokens=16, seed=1)
    assert text and trace["stop_reason"] in ("length", "stop")
    *_, (table, _) = Endpoints(apart).compare("the cat", lanes=["sps"], max_new_tokens=8, seed=1)
    assert len(table) == 2


SPACES = """
import sys
assert "torch" not in sys.modules, "spaces has to come first"
asked = []
def GPU(duration):
    return lambda function: asked.append((function.__name__, duration)) or function
"""
MAKE = """
import app
from cactus.ui import space
made = space.apart(lambda: "a session")
print(type(made).__name__, getattr(space.spaces, "asked", None))
"""


@pytest.mark.parametrize(
    ("zero_gpu", "installed", "kind"),
    [("true", True, "ApartSession [('_records', 120)]"), ("", True, "str []"), ("true", False, "str None")],
)
def test_the_same_app_runs_on_zero_gpu_on_a_plain_space_and_anywhere(zero_gpu, installed, kind, tmp_path):
    if installed:
        (tmp_path / "spaces.py").write_text(SPACES)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))), "SPACES_ZERO_GPU": zero_gpu}
    done = subprocess.run([sys.executable, "-c", MAKE], env=env, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == kind
