"""What the page's events do, without a browser and without a model."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from ui_fakes import FakeSession, make_trace

from cactus.limits import Limits
from cactus.trace import Trace
from cactus.ui import replay, settings
from cactus.ui.api import Endpoints
from cactus.ui.desk import Desk, Loader
from cactus.ui.layout import build
from cactus.ui.live import LiveHandlers
from cactus.ui.page import PageHandlers, new_seed
from cactus.ui.replay import ReplayHandlers, read_trace
from cactus.ui.view import blank
from cactus.ui.waiting import told


def request(name: str = "one", **query: str) -> Any:
    return SimpleNamespace(session_hash=name, query_params=query)


def row(**changes: Any) -> list[Any]:
    values = settings.defaults() | {"prompt": "hello"} | changes
    return [values[key] for key in settings.control_keys()]


def ignore(*_: Any, **__: Any) -> None:
    """Progress that nobody watches."""


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def place(session: FakeSession) -> tuple[LiveHandlers, Desk]:
    desk = Desk()
    return LiveHandlers(session, Loader(session), desk), desk


def play(handler: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [shown async for shown in handler]

    return asyncio.run(collect())


def test_run_shows_every_round_and_keeps_the_trace():
    session = FakeSession(count=12)
    live, desk = place(session)
    shown = list(live.run(request(), *row()))
    records = lines(shown[-1][0])
    assert "run" in records[0] and records[1]["wait"] == "starting" and "end" in records[-1]
    assert [record["round"] for record in records[3:-1]] == list(range(1, 13))
    trace = desk.visit("one").show.trace
    assert len(trace.rounds) == 12 and trace.stop_reason == "length"
    assert (session.runs, session.released) == (1, 1)
    assert json.loads(shown[-1][1])[1]["value"] == f"{trace.metrics().speedup:.2f}"


def test_run_asks_for_what_the_controls_say():
    session = FakeSession(count=1)
    live, _ = place(session)
    list(live.run(request(), *row(method="tas", **{"tas.epsilon": 0.2}, draft_length=3, seed=5)))
    asked = session.requests[0]
    assert (asked.method, asked.params["epsilon"], asked.num_draft_tokens, asked.seed) == ("tas", 0.2, 3, 5)


@pytest.mark.parametrize("changes", [{"prompt": ""}, {"cactus.delta": -1}, {"draft_length": 50}, {"pair": "nope"}])
def test_a_bad_setting_is_said_and_starts_nothing(changes):
    session = FakeSession()
    live, _ = place(session)
    (shown,) = live.run(request(), *row(**changes))
    assert lines(shown[0])[-1]["failed"] is True
    assert lines(shown[0])[-1]["end"]
    assert session.runs == 0


def test_the_check_speaks_at_the_right_control():
    live, _ = place(FakeSession())
    answers = dict(zip(settings.control_keys(), live.check(*row(prompt="", draft_length=-1)), strict=True))
    wrong = {key: answer["message"] for key, answer in answers.items() if not answer["is_valid"]}
    assert list(wrong) == ["draft_length", "prompt"]
    assert "0 and 16" in wrong["draft_length"]


def test_the_check_escapes_what_it_quotes():
    live, _ = place(FakeSession())
    answers = live.check(*row(pair="<img src=x>"))
    assert "<" not in answers[0]["message"] and "&lt;img" in answers[0]["message"]


def test_an_error_of_the_session_is_shown_and_the_next_run_works():
    session = FakeSession(error="the weights <b>cannot</b> be had: no network")
    live, desk = place(session)
    *_, shown = live.run(request(), *row())
    assert lines(shown[0])[-1] == {"end": session.error, "failed": True}
    assert "<b>" not in shown[0]
    session.error = ""
    assert "failed" in lines(list(live.run(request(), *row()))[-1][0])[-1]
    assert desk.visit("one").show.over.is_set()


def test_a_fault_in_mid_run_frees_the_model_and_keeps_what_was_shown(caplog):
    session = FakeSession(count=6, fail_at=3)
    live, _ = place(session)
    records = lines(list(live.run(request(), *row()))[-1][0])
    assert [record["round"] for record in records if "round" in record] == [1, 2, 3]
    assert records[-1]["failed"] and "RuntimeError" in records[-1]["end"]
    assert session.released == 1
    assert "a run failed" in caplog.text


def test_closing_the_generator_frees_the_model():
    session = FakeSession(count=50)
    live, desk = place(session)
    running = live.run(request(), *row())
    next(running)
    next(running)
    running.close()
    show = desk.visit("one").show
    assert session.released == 1
    assert show.over.is_set() and show.stop.is_set()
    assert show.trace.stop_reason == "cancelled"
    assert "stopped" in lines(live.stop(request())[0])[-1]["end"]


def test_stop_ends_a_run_in_another_thread():
    session = FakeSession(count=400, pause=0.05)
    live, desk = place(session)
    started = threading.Event()

    def go() -> None:
        for _ in live.run(request(), *row()):
            started.set()

    thread = threading.Thread(target=go)
    thread.start()
    assert started.wait(20)
    shown = live.stop(request())
    thread.join(20)
    assert not thread.is_alive()
    assert session.released == 1
    assert "stopped" in lines(shown[0])[-1]["end"]
    assert desk.visit("one").show.trace.stop_reason == "cancelled"


def test_stop_before_a_run_changes_nothing():
    live, _ = place(FakeSession())
    assert live.stop(request()) == blank()


def test_clear_forgets_a_run_that_is_still_going():
    session = FakeSession(count=30)
    live, desk = place(session)
    running = live.run(request(), *row())
    next(running)
    assert live.clear(request())[0] == ""
    list(running)
    assert session.released == 1
    assert desk.visit("one").show.trace is None


def test_a_closed_tab_stops_its_run_and_is_forgotten():
    session = FakeSession(count=30)
    live, desk = place(session)
    running = live.run(request(), *row())
    next(running)
    live.leave(request())
    assert len(desk) == 0
    rounds = [record for record in lines(list(running)[-1][0]) if "round" in record]
    assert len(rounds) < 30
    assert session.released == 1


def test_fault_23_what_a_closed_tab_had_just_asked_for_does_not_begin():
    session = FakeSession(count=30)
    live, desk = place(session)
    live.leave(request())
    shown = list(live.run(request(), *row()))
    assert "end" in lines(shown[-1][0])[-1] and len(desk) == 0
    assert sum("round" in record for record in lines(shown[-1][0])) == 0
    assert session.released == session.runs


def test_a_tab_that_was_out_of_reach_for_a_while_can_run_again(monkeypatch):
    session = FakeSession(count=3)
    live, desk = place(session)
    live.leave(request())
    monkeypatch.setattr("cactus.ui.desk.GONE_SECONDS", 0.0)
    list(live.run(request(), *row()))
    assert len(desk.visit("one").show.trace.rounds) == 3 and len(desk) == 1


def test_two_visitors_do_not_mix():
    live, desk = place(FakeSession(count=3))
    first = live.run(request("one"), *row(seed=1))
    second = live.run(request("two"), *row(method="ar"))
    next(first), next(second)
    list(first), list(second)
    assert desk.visit("one").show.trace.method == "cactus"
    assert desk.visit("two").show.trace.method == "ar"


def test_a_run_waits_for_the_pair_being_loaded_and_says_so():
    session = FakeSession(load_seconds=0.6, count=1)
    loader = Loader(session)
    live = LiveHandlers(session, loader, Desk())
    loader.start("smollm2-135m")
    records = lines(list(live.run(request(), *row()))[-1][0])
    assert session.loaded
    waits = [record["wait"] for record in records if record.get("wait", "starting") != "starting"]
    assert waits and all("loading smollm2-135m" in wait for wait in waits)


def test_progress_of_a_start_is_shown_while_it_lasts():
    session = FakeSession(load_seconds=0.6, count=1)
    live, _ = place(session)
    records = lines(list(live.run(request(), *row()))[-1][0])
    nothing_yet, *waits = [record["share"] for record in records if "wait" in record]
    assert nothing_yet is None and len(waits) > 1 and waits == sorted(waits)


def test_leaving_while_a_run_is_prepared_frees_the_model():
    session = FakeSession(load_seconds=0.6, count=1)
    live, desk = place(session)
    running = live.run(request(), *row())
    assert "starting" in lines(next(running)[0])[-1]["wait"]
    assert "reading" in lines(next(running)[0])[-1]["wait"]
    running.close()
    assert (session.runs, session.released) == (1, 1)
    assert desk.visit("one").show.over.is_set()


def test_what_fails_in_the_thread_fails_here():
    with pytest.raises(ZeroDivisionError):
        list(told(lambda report: 1 / 0, threading.Event()))


def test_a_failed_load_is_logged_and_ends_the_waiting(caplog):
    session = FakeSession()
    session.load = lambda name, progress=None: (_ for _ in ()).throw(ValueError("no network"))
    loader = Loader(session)
    loader.start("smollm2-135m")
    loader.wait(threading.Event(), ignore)
    assert not loader.busy
    assert "no network" in caplog.text


def write(tmp_path: Any, text: str) -> str:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_replay_of_a_file_shows_what_the_run_showed(tmp_path):
    trace = make_trace(count=5)
    handlers = ReplayHandlers(Desk())
    shown = play(handlers.open(request(), write(tmp_path, trace.to_json()), "4×"))
    records = lines(shown[-1][0])
    assert [record["round"] for record in records if "round" in record] == [1, 2, 3, 4, 5]
    assert handlers.desk.visit("one").show.trace == trace
    again = play(handlers.again(request(), "4×"))
    assert lines(again[-1][0])[1:] == records[1:]
    assert lines(again[-1][0])[0]["run"] != records[0]["run"]


def test_replay_round_by_round():
    desk = Desk()
    handlers = ReplayHandlers(desk)
    desk.visit("one").begin().trace = make_trace(count=3)
    play(handlers.again(request(), "round by round"))
    counts = []
    for _ in range(3):
        records = lines(handlers.step(request())[0])
        counts.append(sum("round" in record for record in records))
    assert counts == [1, 2, 3]
    assert "end" in records[-1]


def test_replay_stops_when_asked():
    desk = Desk()
    handlers = ReplayHandlers(desk)
    desk.visit("one").begin().trace = make_trace(count=200)

    async def watch() -> None:
        async for _ in handlers.again(request(), "½×"):
            desk.visit("one").show.stop.set()

    asyncio.run(watch())
    show = desk.visit("one").show
    assert show.over.is_set()
    assert lines(show.view.shown()[0])[-1]["end"] == "Replay stopped."


def spoil(**changes: Any) -> str:
    return json.dumps(json.loads(make_trace(count=3).to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not a usable trace"),
        ("<html>", "not a usable trace"),
        ("[1, 2]", "not a usable trace"),
        (make_trace(count=3).to_json()[:500], "not a usable trace"),
        (spoil(schema="other/9"), "schema"),
        (spoil(rounds=[{"index": "x"}]), "rounds"),
        (spoil(seed="7"), "seed"),
        (spoil(rounds=json.loads(make_trace(count=3).to_json())["rounds"][1:]), "consistent"),
        (json.dumps([[]] * 10)[:-1] + "[" * 100_000, "not a usable trace"),
    ],
)
def test_a_broken_file_gets_a_named_message(tmp_path, text, word):
    handlers = ReplayHandlers(Desk())
    (shown,) = play(handlers.open(request(), write(tmp_path, text), "true speed"))
    end = lines(shown[0])[-1]
    assert end["failed"] and word in end["end"]


def test_a_file_too_large_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "MAX_UPLOAD_BYTES", 100)
    monkeypatch.setattr(Trace, "from_json", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ValueError, match="the page reads traces up to"):
        read_trace(write(tmp_path, make_trace().to_json()))


def test_a_trace_too_long_for_the_page_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "MAX_SHOWN_TOKENS", 10)
    with pytest.raises(ValueError, match="the page shows up to 10"):
        read_trace(write(tmp_path, make_trace().to_json()))


def page(session: FakeSession | None = None) -> PageHandlers:
    session = session or FakeSession()
    return PageHandlers(session, Loader(session), Desk())


def test_a_link_sets_controls_and_names_what_it_ignores():
    *updates, note = page().restore(request(method="tas", epsilon="0.2", draft_length="99", pair="<img>"))
    changed = dict(zip(settings.control_keys(), updates, strict=True))
    assert changed["method"]["value"] == "tas" and changed["tas.epsilon"]["value"] == 0.2
    assert "value" not in changed["draft_length"]
    said = json.loads(note)["note"]
    assert "draft_length" in said and "pair" in said
    assert "<" not in note


def test_a_good_link_says_nothing():
    assert page().restore(request(top_k="5"))[-1] == gr.skip()


def test_runs_may_begin_once_the_link_s_settings_are_there():
    run, note, timer, pair = page().ready("smollm2-135m")
    assert run["interactive"] is True and "MB" in note and timer.active is False and pair == gr.skip()


def test_share_gives_the_query():
    errand = json.loads(page().share(*row(draft_length=3)))
    assert errand["kind"] == "link"
    assert errand["query"] == "draft_length=3&prompt=hello"
    assert errand["note"] == ""
    assert "prompt" in json.loads(page().share(*row(prompt="x" * 5000)))["note"]


def test_downloads_are_the_trace_itself():
    handlers = page()
    handlers.desk.visit("one").begin().trace = trace = make_trace(count=4)
    saved = json.loads(handlers.trace_file(request()))
    assert Trace.from_json(saved["text"]) == trace
    table = json.loads(handlers.table_file(request()))
    assert table["name"].endswith(".csv") and table["text"].startswith("round,position,status")


def test_what_needs_a_run_says_so_before_there_is_one():
    for answer in (page().trace_file(request()), page().table_file(request())):
        assert json.loads(answer)["note"] == "Nothing to save yet: run something first."
    handlers = ReplayHandlers(Desk())
    assert "Nothing to replay" in json.loads(play(handlers.again(request(), "4×"))[-1][-1])["note"]
    assert "No further round" in json.loads(handlers.step(request())[-1])["note"]


def test_the_pair_is_looked_at_again_only_while_it_is_loading():
    session = FakeSession(load_seconds=0.4)
    handlers = page(session)
    handlers.loader.start("smollm2-135m")
    note, timer, _ = handlers.watch("smollm2-135m")
    assert json.loads(note)["busy"] and timer.active
    handlers.loader.wait(threading.Event(), ignore)
    note, timer, _ = handlers.watch("smollm2-135m")
    assert not json.loads(note)["busy"] and not timer.active


def test_choosing_a_method_shows_its_controls_alone():
    note, *groups = page().choose("tas")
    assert "lines" in json.loads(note)
    shown = [method.name for method in settings.methods().values() if method.parameters]
    assert [name for name, group in zip(shown, groups, strict=True) if group["visible"]] == ["tas"]
    assert not any(group["visible"] for group in page().choose(settings.VERIFIER_ONLY)[1:])


def test_pair_note_says_what_is_missing():
    session = FakeSession()
    assert "not loaded" in page(session).pair_note("smollm2-135m")
    session.loaded = True
    assert "loaded on cpu, bfloat16" in page(session).pair_note("smollm2-135m")
    assert json.loads(page(session).pair_note("nope"))["bad"] is True


def test_dice_gives_a_valid_seed():
    assert settings.read_seed(new_seed()) is not None


def test_api_generates_and_refuses():
    session = FakeSession(count=4)
    endpoints = Endpoints(session)
    *_, (text, trace) = endpoints.generate("hello", method="sps", draft_length=3, seed=1)
    assert Trace.from_json(json.dumps(trace)).text == text
    assert session.released == 1
    for bad in ({"prompt": ""}, {"pair": "nope"}, {"params": {"delta": -1}}, {"draft_length": 0}, {"temperature": -1}):
        with pytest.raises(gr.Error):
            list(endpoints.generate(**{"prompt": "hello", **bad}))
    assert [pair["name"] for pair in endpoints.pairs()] == [state.name for state in session.states()]


def test_a_caller_that_goes_away_frees_the_model():
    session = FakeSession(count=50)
    calling = Endpoints(session).generate("hello")
    assert ("", {"round": 1}) in calling
    calling.close()
    assert session.released == 1


HOOKS = (
    "pair method delta draft-length temperature top-p top-k max-new-tokens seed prompt run stop clear tokens tiles "
    "plot-accepted plot-speedup plot-positions plot-divergence"
).split()


def test_the_page_has_its_hooks_and_private_events():
    config = build(FakeSession()).get_config_file()
    ids = [component["props"].get("elem_id") for component in config["components"]]
    assert [hook for hook in HOOKS if ids.count(hook) != 1] == []
    public = {item["api_name"] for item in config["dependencies"] if item["api_visibility"] == "public"}
    assert public == {"generate", "compare", "pairs"}


def test_the_api_documents_two_values():
    api = build(FakeSession()).get_api_info()
    assert [len(api["named_endpoints"][name]["returns"]) for name in ("/generate", "/compare")] == [2, 2]


def test_everything_that_uses_the_model_shares_one_place():
    session = FakeSession()
    session.limits = Limits(max_runs=3, max_waiting=7)
    demo = build(session)
    users = [fn for fn in demo.fns.values() if fn.concurrency_id == "models"]
    assert sorted(fn.name for fn in users) == ["compare", "generate", "reply", "rerun", "run", "run"]
    assert {fn.concurrency_limit for fn in users} == {3}
    assert demo._queue.max_size == 7


def test_labels_are_one_line_of_help():
    config = build(FakeSession()).get_config_file()
    for component in config["components"]:
        if component["type"] in ("slider", "dropdown", "number", "textbox") and component["props"].get("show_label"):
            assert component["props"]["info"], component["props"]["label"]
