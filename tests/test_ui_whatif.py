"""The what-if tab: its figures and words are those of `whatif` and `sequence`; a real run is laid over them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from test_ui_plots import drawn
from ui_fakes import FakeSession, make_trace

from cactus import sequence, whatif
from cactus.acceptance import RULES, make_rule
from cactus.request import RunRequest
from cactus.ui import whatif_figures
from cactus.ui.desk import Desk, Loader
from cactus.ui.live import LiveHandlers
from cactus.ui.whatif import NO_RUN, WhatIfHandlers, _own, chosen_rule, request_again

ASKED = SimpleNamespace(session_hash="a")


def row(rule: str = "cactus", **changes) -> list:
    """What the controls hold; changes by "rule.parameter" with a dot as two underscores."""
    values = {f"{name}__{parameter.name}": parameter.default for name, parameter in _own()}
    return [rule, *(values | changes).values()]


def handlers(trace=None, session=None) -> WhatIfHandlers:
    session, desk = session or FakeSession(count=5), Desk()
    desk.visit("a").show.trace = trace
    return WhatIfHandlers(LiveHandlers(session, Loader(session), desk), desk)


def lines(value: str) -> list[str]:
    return json.loads(value)["lines"]


def test_the_figures_show_what_is_expected_of_the_run():
    trace, rule = make_trace(count=9), make_rule("cactus", delta=0.4)
    about, told, length, places, spent = handlers(trace).look(ASKED, *row(cactus__delta=0.4))
    assert "smollm2-135m" in about
    outlook = whatif.outlook(trace, rule)
    assert lines(told)[0] == (
        f"Expected accepted length {outlook.accepted_length:.2f}; recorded {trace.metrics().accepted_length:.2f}."
    )
    data = drawn(length)["data"]
    curve = data[whatif.SCALAR_RULES.index("cactus_exact")]
    deltas = list(whatif_figures.GRID)
    assert curve["x"] == deltas and curve["y"] == whatif.sweep(trace, "cactus_exact", "delta", deltas, {})
    flat = data[whatif.SCALAR_RULES.index("lenience")]["y"]
    assert flat == whatif.accepted_lengths(trace, [make_rule("lenience")]) * 2
    recorded, choice, real = data[-3:]
    assert (recorded["x"], recorded["y"]) == ([1.0], [trace.metrics().accepted_length])
    assert (choice["x"], choice["y"]) == ([0.4], [outlook.accepted_length]) and real["y"] == []
    bars = drawn(places)["data"]
    assert bars[0]["y"] == [count.acceptance_rate for count in trace.metrics().positions]
    assert bars[1]["y"] == [place.acceptance_rate for place in outlook.places]
    assert drawn(spent)["data"][0]["y"] == [point.output for point in sequence.spending(trace)]


def test_it_says_how_far_it_holds():
    trace = make_trace(count=9)
    told = lines(handlers(trace).choose(ASKED, *row("sps"))[0])
    change = whatif.outlook(trace, make_rule("sps")).change
    assert f"first changed verdict: round {change.round_index + 1}, draft {change.place + 1}" in told[1]


def test_a_budget_is_drawn_for_a_method_that_has_one():
    trace = make_trace(method="cactus_budget", params={"delta": 1.0, "budget": 7.5})
    assert drawn(whatif_figures.spent(trace))["data"][2]["y"] == [7.5, 7.5]
    assert drawn(whatif_figures.spent(make_trace()))["data"][2]["y"] == []


def test_without_a_run_it_asks_for_one():
    about, _, *figures = handlers().look(ASKED, *row())
    assert lines(about) == [NO_RUN] and all(json.loads(figure.splitlines()[1]) for figure in figures)
    assert NO_RUN in handlers().choose(ASKED, *row())[0]


def test_a_run_that_drafted_nothing_is_said():
    told = json.loads(handlers(make_trace(method="ar", drafted=0)).choose(ASKED, *row())[0])
    assert told["bad"] and "drafted nothing" in told["lines"][0]


def test_a_real_run_is_asked_for_with_the_same_settings_and_laid_over():
    session, trace = FakeSession(count=5), make_trace(count=9, seed=11)
    tab = handlers(trace, session)
    shown = list(tab.rerun(ASKED, *row("cactus_exact", cactus_exact__delta=0.3)))
    asked = session.requests[0]
    assert (asked.method, asked.params["delta"], asked.seed, asked.prompt) == ("cactus_exact", 0.3, 11, trace.prompt)
    assert (asked.num_draft_tokens, asked.max_new_tokens) == (trace.num_draft_tokens, trace.max_new_tokens)
    real = tab.desk.visit("a").show.rerun
    assert real is not None and real.metrics().accepted_length is not None
    told, length, places = shown[-1]
    assert lines(told)[2].startswith("For real: accepted length")
    assert drawn(length)["data"][-1]["y"] == [real.metrics().accepted_length]
    assert drawn(places)["data"][2]["y"] == [count.acceptance_rate for count in real.metrics().positions]
    assert session.released == 1
    other = tab.choose(ASKED, *row("cactus_exact", cactus_exact__delta=0.4))
    assert drawn(other[1])["data"][-1]["y"] == []  # it belongs to another setting


def test_a_real_run_is_stopped_when_the_tab_is_closed():
    session = FakeSession(count=500, pause=0.001)
    tab = handlers(make_trace(count=3), session)
    running = tab.rerun(ASKED, *row())
    next(running), next(running)
    tab.desk.leave("a")
    list(running)
    assert session.released == 1


def test_a_system_prompt_of_the_page_goes_along():
    desk = Desk()
    show = desk.visit("a").show
    show.trace, show.wanted = make_trace(), RunRequest(prompt="x", system="Be brief.")
    assert request_again(show, make_rule("sps")).system == "Be brief."
    show.wanted = None
    assert request_again(show, make_rule("sps")).system == ""


@pytest.mark.parametrize(("given", "message"), [(row("tas"), "rule must be one of"), (row(cactus__delta=-1), "delta")])
def test_a_bad_choice_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        chosen_rule(given)
    assert json.loads(handlers(make_trace()).choose(ASKED, *given)[0])["bad"]


def test_every_scalar_rule_can_be_chosen():
    for name in whatif.SCALAR_RULES:
        assert chosen_rule(row(name)) == RULES[name]()
