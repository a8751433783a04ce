"""When the wished pair cannot be had, the page goes on with the one that needs nothing, and says so."""

from __future__ import annotations

import json
import threading

import pytest
from test_ui_handlers import lines, page, request, row
from ui_fakes import NO_NETWORK, FakeSession, Offline

from cactus.errors import UnavailableError
from cactus.request import RunRequest
from cactus.session import STAND_IN_PAIR
from cactus.ui import stand_in
from cactus.ui.desk import Desk, Loader
from cactus.ui.live import LiveHandlers

WISH = RunRequest.pair


def live(session: FakeSession) -> LiveHandlers:
    return LiveHandlers(session, Loader(session), Desk())


def test_a_run_goes_on_with_the_pair_that_stands_in_and_says_so():
    session = Offline(count=2)
    shown = lines(list(live(session).run(request(), *row(pair=WISH, prompt="A story.", seed=3)))[-1][0])
    (asked,) = session.requests
    assert asked.pair == STAND_IN_PAIR and asked.prompt == "A story." and asked.seed == 3
    end = next(record["end"] for record in shown if "end" in record)
    assert "cannot be had here, so Pocket stands in" in end


def test_a_run_of_a_pair_that_can_be_had_says_nothing():
    session = Offline(count=2)
    session.reachable = True
    shown = lines(list(live(session).run(request(), *row(pair=WISH)))[-1][0])
    assert session.requests[0].pair == WISH
    assert "stands in" not in json.dumps(shown)


def test_the_note_names_the_reason_and_the_choice_moves():
    session = Offline()
    handlers = page(session)
    handlers.loader.start(WISH)
    handlers.loader.wait(threading.Event(), lambda *_: None)
    assert session.loaded and handlers.loader.name == STAND_IN_PAIR
    note, timer, choice = handlers.watch(WISH)
    said = " ".join(json.loads(note)["lines"])
    assert NO_NETWORK in said and "To try again, choose it and press Run" in said
    assert choice["value"] == STAND_IN_PAIR and not timer.active


def test_the_wish_can_be_chosen_again_and_works_once_it_can_be_had():
    session = Offline(count=2)
    list(live(session).run(request(), *row(pair=WISH)))
    assert NO_NETWORK[1:] in page(session).pair_note(WISH)  # still to be chosen, with its reason
    session.reachable = True
    list(live(session).run(request(), *row(pair=WISH)))
    assert session.requests[-1].pair == WISH
    assert stand_in.substitute(WISH, session.states()) is None
    assert "stands in" not in page(session).pair_note(STAND_IN_PAIR)


def test_without_a_pair_to_stand_in_the_error_is_shown():
    session = Offline(count=2)
    session.load = lambda name, progress=None: (_ for _ in ()).throw(UnavailableError(f"{name} is damaged"))
    shown = lines(list(live(session).run(request(), *row(pair=WISH)))[-1][0])
    assert f"{STAND_IN_PAIR} is damaged" in json.dumps(shown)


def test_a_stopped_run_does_not_go_on_with_another_pair():
    stop = threading.Event()
    stop.set()
    session = Offline()
    with pytest.raises(UnavailableError, match="cannot be had"):
        stand_in.start(session, RunRequest(prompt="x"), stop, lambda *_: None)
    assert not session.requests
