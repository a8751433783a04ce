"""The Compare tab over a session without a model: lanes, one clock, table, figure, partings, export, stop."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import gradio as gr
import pytest
from test_ui_plots import drawn
from ui_fakes import FakeSession, make_trace

from cactus import compare
from cactus.trace import Trace
from cactus.ui import settings
from cactus.ui.api import Endpoints
from cactus.ui.compare import LANES, CompareHandlers, outcome, suggestions, trade
from cactus.ui.desk import Desk, Loader
from cactus.ui.lanes import LaneView
from cactus.ui.live import LiveHandlers

ASKED = SimpleNamespace(session_hash="a")


def handlers(session: FakeSession) -> CompareHandlers:
    desk = Desk()
    return CompareHandlers(LiveHandlers(session, Loader(session), desk), desk)


def asked(*lanes: str, **changes) -> list:
    values = settings.defaults() | {"prompt": "from the Playground", "seed": 4} | changes
    return [*lanes, *[""] * (compare.MOST - len(lanes)), *(values[key] for key in settings.control_keys())]


def lines(value: str) -> list[dict]:
    return [json.loads(line) for line in value.splitlines()]


def is_left(value) -> bool:
    return isinstance(value, dict) and "value" not in value


def test_the_lanes_run_one_after_another_the_verifier_alone_first():
    session = FakeSession(count=4)
    tab = handlers(session)
    seen = list(tab.run(ASKED, "", *asked("sps", "cactus:delta=0.2:m=3")))
    assert [(r.method, r.num_draft_tokens) for r in session.requests] == [("ar", 5), ("sps", 5), ("cactus", 3)]
    assert {(r.prompt, r.seed) for r in session.requests} == {("from the Playground", 4)}
    assert session.released == 3
    assert [trace.method for trace in tab.desk.visit("a").compared] == ["ar", "sps", "cactus"]
    changed = [[i for i in range(LANES) if not is_left(update[1 + LANES + i])] for update in seen[1:]]
    assert [lane for lane, *_ in changed] == sorted(lane for lane, *_ in changed) and {0, 1, 2} == {
        c[0] for c in changed
    }


def test_an_own_prompt_replaces_the_playground_s():
    session = FakeSession(count=2)
    list(handlers(session).run(ASKED, "own prompt", *asked("sps")))
    assert {r.prompt for r in session.requests} == {"own prompt"}


@pytest.mark.parametrize(
    ("lanes", "message"),
    [(("nonsense",), "method is 'nonsense'"), ((), "0 lanes were given"), (("sps", "sps"), "is there twice")],
)
def test_what_cannot_be_compared_is_said(lanes, message):
    session = FakeSession()
    said = list(handlers(session).run(ASKED, "", *asked(*lanes)))[-1][0]
    assert message in json.loads(said)["lines"][0] and json.loads(said)["bad"]
    assert session.runs == 0


def played(tab: CompareHandlers) -> list[list]:
    async def collect() -> list[list]:
        return [update async for update in tab.play(ASKED)]

    return asyncio.run(collect())


def some_traces() -> list[Trace]:
    traces = [make_trace(count=6, method="ar", drafted=0), make_trace(count=3, method="sps"), make_trace(count=4)]
    quick = [
        tuple(round_.model_copy(update={"verify_seconds": 0.004, "draft_seconds": 0.001}) for round_ in trace.rounds)
        for trace in traces
    ]
    return [trace.model_copy(update={"rounds": rounds}) for trace, rounds in zip(traces, quick, strict=True)]


def test_played_on_one_clock_every_lane_shows_its_whole_trace():
    tab, traces = handlers(FakeSession()), some_traces()
    tab.desk.visit("a").compared = traces
    seen = played(tab)
    assert "Side by side" in seen[0][0]
    *_, last = seen
    for lane, trace in enumerate(traces):
        records = lines(last[1 + LANES + lane])
        words = [token[0] for record in records if "round" in record for token in record["tokens"]]
        assert words == [token.text for round_ in trace.rounds for token in round_.tokens]
        assert compare.label(trace) in last[1 + lane] and "end" in records[-1]
    assert is_left(last[2 * LANES])  # the fourth lane did not run


def test_the_table_the_figure_and_the_partings_are_the_library_s():
    traces = some_traces()
    ends = outcome(traces, [LaneView() for _ in traces])[-3:]
    shown, figure, partings = json.loads(ends[0]), drawn(ends[1]), json.loads(ends[2])
    results = compare.results(traces)
    assert shown["head"] == list(compare.HEADINGS)
    assert shown["rows"] == [list(compare.cells(result)) for result in results]
    points = figure["data"][1:]
    assert [point["y"] for point in points] == [[result.speedup] for result in results]
    assert [point["x"] for point in points] == [[result.metrics.mean_output_kl or 0.0] for result in results]
    found = compare.partings(traces)
    assert [[row[0], row[1]["text"], row[2]] for row in partings["rows"]] == [
        [compare.label(traces[p.lane]), compare.label(traces[p.other]),
         "the same text" if p.same else f"after {p.tokens} tokens"]
        for p in found
    ]  # fmt: skip


def test_the_token_at_which_a_text_parts_is_marked():
    traces = some_traces()
    views = [LaneView() for _ in traces]
    outcome(traces, views)
    for parting in compare.partings(traces):
        end = lines(views[parting.lane].text)[-1]
        marked = not parting.same and parting.tokens < len(traces[parting.lane].tokens)
        assert end.get("parts") == (parting.tokens + 1 if marked else None)


def test_lanes_that_can_be_chosen_are_lanes():
    assert all(compare.parse_lane(lane) for lane in suggestions() if lane)
    assert set(compare.USUAL) <= set(suggestions())


def test_an_empty_figure_has_axes():
    assert trade([]).layout.xaxis.title.text and len(trade([]).data) == 1


def test_stopping_leaves_what_ran_to_be_played_and_saved():
    session = FakeSession(count=500, pause=0.001)
    tab = handlers(session)
    running = tab.run(ASKED, "", *asked("sps"))
    for _ in range(4):
        next(running)
    tab.stop(ASKED)
    *_, last = running
    assert "Stopped" in json.loads(last[0])["lines"][0]
    assert session.released == session.runs == 1
    saved, _ = tab.save(ASKED)
    kept = json.loads(json.loads(saved)["text"])
    assert kept["schema"] == "cactus-comparison/1" and len(kept["lanes"]) == 1 and kept["lanes"][0]["rounds"]


def test_a_closed_tab_frees_the_model():
    session = FakeSession(count=500, pause=0.001)
    tab = handlers(session)
    running = tab.run(ASKED, "", *asked("sps"))
    for _ in range(4):
        next(running)
    tab.desk.leave("a")
    list(running)
    assert session.released == session.runs == 1


def test_nothing_to_save_is_said():
    saved, said = handlers(FakeSession()).save(ASKED)
    assert is_left(saved) and "Nothing to save" in said


def test_the_endpoint_gives_the_same_table_and_all_traces():
    session = FakeSession(count=3)
    *_, (table, whole) = Endpoints(session).compare("x", ["sps", "cactus:delta=0.5"], seed=2)
    traces = [Trace.from_json(json.dumps(lane)) for lane in whole["lanes"]]
    assert table == json.loads(json.dumps([result.as_dict() for result in compare.results(traces)]))
    assert [request.seed for request in session.requests] == [2, 2, 2]
    with pytest.raises(gr.Error, match="no parameter"):
        list(Endpoints(session).compare("x", ["sps:delta=1"]))
