"""Runs on a server, from what a real one answered: rounds, traces, and everything that can be wrong with a server."""

from __future__ import annotations

import csv
import io
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from browser import free_port
from served import MODEL, RECORDED, Played, as_lines, events, joined, playing

import app
from cactus.errors import CactusError
from cactus.limits import Limits
from cactus.pairs.added import ADDED
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.server import Server, ServerError, ServerSession
from cactus.server.rounds import Arrived, Counts, Teller, recount, spread
from cactus.trace import Trace
from cactus.ui import pair_list, render, tiles
from cactus.ui.layout import build
from cactus.ui.view import View

PAIR = f"server:{MODEL}"


@pytest.fixture
def played() -> Iterator[Played]:
    """The server, and a process in which no server's pair is known yet."""
    for spec in ADDED.all():
        ADDED.drop(spec.name)
    with playing() as server:
        yield server


def asked(session: ServerSession, **changes: Any) -> RunRequest:
    fields: dict[str, Any] = {
        "pair": session.states()[0].name, "prompt": "hello", "method": "cactus", "params": {"delta": 1.0},
        "max_new_tokens": 24, "seed": 5,
    }  # fmt: skip
    return RunRequest(**fields | changes)


def ran(played: Played, **changes: Any) -> Trace:
    session = ServerSession(Server(played.url))
    with session.start(asked(session, **changes)) as live:
        rounds = list(live)
    assert [round_.index for round_ in rounds] == list(range(len(rounds)))
    return live.trace


def tokens(lines: list[str]) -> list[int]:
    every = [event["choices"][0].get("token_ids") or [] for event in events(lines) if event["choices"]]
    return [token for ids in every for token in ids]


def text(lines: list[str]) -> str:
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events(lines) if event["choices"])


def accepted(lines: list[str]) -> list[int]:
    return events(lines)[-1]["metrics"]["speculative_decoding"]["per_step_accepted"]


@pytest.mark.parametrize("name", ["chat", "cut"])
def test_a_trace_holds_what_the_server_told_and_nothing_else(played: Played, name: str) -> None:
    played.answer = lines = RECORDED[name]
    trace = ran(played)
    assert [token.id for token in trace.tokens] == tokens(lines)
    assert trace.text == text(lines)
    assert trace.stop_reason == "length" and trace.prompt_tokens == len(events(lines)[0]["prompt_token_ids"])
    assert (trace.pair, trace.method, trace.params, trace.num_draft_tokens, trace.seed) == (
        PAIR, "cactus", {"delta": 1.0}, 4, 5,
    )  # fmt: skip
    assert trace.versions["vllm"] == "0.32.0" and trace.versions["model"] == MODEL
    assert trace.check() == [] and Trace.from_json(trace.to_json()) == trace
    for round_ in trace.rounds:
        assert (round_.draft_seconds, round_.verify_seconds, round_.judge_seconds) == (None, None, None)
        assert all(token.accept_prob is token.draft_prob is token.kl is None for token in round_.tokens)
    assert trace.baseline is None and trace.metrics().speedup is None and trace.metrics().mean_kl is None


def test_rounds_are_the_servers_own(played: Played) -> None:
    trace = ran(played)
    first, *rounds = trace.rounds
    assert first.of_prompt and first.tokens[0].status == "sampled"
    assert [round_.accepted_length for round_ in rounds] == accepted(RECORDED["chat"])
    assert {round_.num_draft_tokens for round_ in rounds} == {4}
    endings = [round_.tokens[-1].status for round_ in rounds]
    assert endings == ["bonus" if count == 4 else "recovered" for count in accepted(RECORDED["chat"])]
    metrics, counts = trace.metrics(), accepted(RECORDED["chat"])
    assert metrics.accepted_length == sum(counts) / len(counts)
    assert metrics.tokens_per_round == pytest.approx(metrics.accepted_length + 1)
    judged = sum(min(count + 1, 4) for count in counts)
    assert metrics.judged_tokens == judged == sum(place.judged for place in metrics.positions)


def test_an_end_in_the_midst_of_the_accepted_is_no_rejection(played: Played) -> None:
    played.answer = RECORDED["cut"]
    last = ran(played).rounds[-1]
    assert [token.status for token in last.tokens] == ["accepted"] * len(last.tokens)
    assert accepted(RECORDED["cut"])[-1] > len(last.tokens) - 1


@pytest.mark.parametrize(("first", "count"), [(1, 2), (2, 3), (3, 2), (5, 3)])
def test_rounds_that_came_together_are_told_apart_in_the_end(played: Played, first: int, count: int) -> None:
    alone = ran(played)
    played.answer = joined(RECORDED["chat"], first, count)
    together = ran(played)
    assert [[token.id for token in round_.tokens] for round_ in together.rounds] == [
        [token.id for token in round_.tokens] for round_ in alone.rounds
    ]
    assert [round_.accepted_length for round_ in together.rounds] == [r.accepted_length for r in alone.rounds]
    assert together.text == alone.text


def test_line_separators_within_a_text_are_text(played: Played) -> None:
    every = events(RECORDED["chat"])
    every[2]["choices"][0]["delta"]["content"] = mark = "a\u2028b\u0085c\u000bd"
    played.answer = as_lines(every)
    assert mark in ran(played).text


def test_settings_reach_the_server(played: Played) -> None:
    sampling = SamplingParams(temperature=0.4, top_p=0.9, top_k=7, repetition_penalty=1.1)
    ran(played, sampling=sampling, system="be brief", stop=("x",), method="interp", params={"alpha": 0.2})
    body = played.asked[-1]
    assert body["vllm_xargs"] == {"cactus_method": "interp", "cactus_alpha": 0.2}
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    expected = {"temperature": 0.4, "top_p": 0.9, "top_k": 7, "repetition_penalty": 1.1, "seed": 5, "stop": ["x"],
                "max_tokens": 24, "model": MODEL}  # fmt: skip
    assert {key: body[key] for key in expected} == expected


@pytest.mark.parametrize("prompt", ["once", [5, 6, 7]])
def test_raw_prompts_and_token_ids_are_completions(played: Played, prompt: Any) -> None:
    trace = ran(played, prompt=prompt, raw=isinstance(prompt, str))
    assert played.asked[-1]["prompt"] == prompt
    assert [token.id for token in trace.tokens] == tokens(RECORDED["completion"])


def test_conversations_are_messages(played: Played) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    ran(played, prompt=turns)
    assert played.asked[-1]["messages"] == turns


def test_without_a_seed_one_is_drawn_and_told(played: Played) -> None:
    trace = ran(played, seed=None)
    assert played.asked[-1]["seed"] == trace.seed


def test_many_run_at_once(played: Played) -> None:
    played.pause = 0.05
    session = ServerSession(Server(played.url))
    traces: list[Trace] = []

    def one() -> None:
        with session.start(asked(session)) as live:
            list(live)
        traces.append(live.trace)

    began = time.monotonic()
    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = played.pause * len(RECORDED["chat"])
    assert len(traces) == 12 and {trace.text for trace in traces} == {text(RECORDED["chat"])}
    assert time.monotonic() - began < 6 * alone


@pytest.mark.parametrize("pause", [0.1, 30.0])
def test_stop_is_heard_also_while_the_server_is_silent(played: Played, pause: float) -> None:
    played.pause = 0.0 if pause > 1 else pause
    session, stop = ServerSession(Server(played.url)), threading.Event()
    threading.Timer(0.3, stop.set).start()
    played.pause = pause
    began = time.monotonic()
    with session.start(asked(session), stop=stop) as live:
        list(live)
    assert time.monotonic() - began < 3
    assert live.trace.stop_reason == "cancelled" and live.trace.check() == []
    assert pause > 1 or played.left.wait(5)  # the server hears it with its next word


def test_a_run_that_is_left_ends_on_the_server(played: Played) -> None:
    played.pause = 0.05
    session = ServerSession(Server(played.url))
    with session.start(asked(session)) as live:
        next(iter(live))
    assert live.stop_reason == "cancelled"
    assert played.left.wait(5)


def test_a_run_ends_when_its_time_is_over(played: Played) -> None:
    played.pause = 0.05
    session = ServerSession(Server(played.url), limits=Limits(max_seconds=0.2))
    with session.start(asked(session)) as live:
        rounds = list(live)
    assert live.trace.stop_reason == "time" and 0 < len(rounds) < len(accepted(RECORDED["chat"]))


# --- what can be wrong with a server -------------------------------------------------------------


def test_a_server_that_is_down_is_named_and_found_when_it_is_up() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    session = ServerSession(Server(address))
    [state] = session.states()
    assert not state.available and f"{address} cannot be reached" in state.needs
    with pytest.raises(ServerError, match=r"cannot be reached \(ConnectError\): start it, or give another --url"):
        session.start(asked(session))
    with playing() as played:
        session._server = Server(played.url)
        with session.start(asked(session)) as live:
            assert list(live)
        assert session.states()[0].available


def test_another_model_is_named(played: Played) -> None:
    with pytest.raises(ServerError, match=f"serves {MODEL}, not 'other'"):
        Server(played.url, "other").look()


def test_a_server_without_the_plugin_is_told_how_to_get_it(played: Played) -> None:
    played.plugin = False
    with pytest.raises(ServerError, match="does not know the arguments of cactus: install this project there"):
        Server(played.url).look()


def test_a_server_that_does_not_count_is_told_the_flag(played: Played) -> None:
    played.counts = False
    with pytest.raises(ServerError, match="start it with --per-request-spec-decode-metrics detailed"):
        Server(played.url).look()


def test_another_kind_of_server_is_refused(played: Played) -> None:
    with pytest.raises(ServerError, match="HTTP 404 for /docs/v1/models: not an answer of vLLM"):
        Server(played.url + "/docs").look()


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "javascript:alert(1)"])
def test_an_address_is_http(url: str) -> None:
    with pytest.raises(ServerError, match="only http://… or https://… is allowed"):
        Server(url)


def test_what_the_server_refuses_is_said_in_its_words(played: Played) -> None:
    played.refusal = {"error": {"message": "max_tokens=300 cannot be greater than max_model_len=256", "code": 400}}
    with pytest.raises(ServerError, match="refused: max_tokens=300 cannot be greater"):
        ran(played)


def test_a_server_that_dies_in_the_midst_is_an_error(played: Played) -> None:
    session = ServerSession(Server(played.url))
    played.answer = [*RECORDED["chat"][:4], 'data: {"error": {"message": "EngineCore encountered an issue"}}']
    with pytest.raises(ServerError, match="EngineCore encountered an issue"), session.start(asked(session)) as live:
        list(live)
    assert live.trace.stop_reason == "error" and live.trace.check() == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"method": "block", "params": {}}, "block cannot run on a server: it judges the drafted tokens"),
        ({"method": "cactus_budget", "params": {}}, "cactus_budget cannot run on a server: what it has spent"),
        (
            {"method": "ar", "params": {}},
            r"always speculates: the verifier alone needs a second server.*--baseline-url",
        ),
        ({"pair": "pocket"}, f"pair is 'pocket'; only '{PAIR}'"),
    ],
)
def test_what_a_server_cannot_do_is_refused(played: Played, changes: Any, told: str) -> None:
    session = ServerSession(Server(played.url))
    with pytest.raises(CactusError, match=told):
        session.start(replace(asked(session), **changes))


def test_a_second_server_gives_the_baseline_and_the_verifier_alone(played: Played) -> None:
    with playing() as alone:
        alone.plugin = alone.counts = False
        alone.pause = 0.01
        every = [
            event for event in events(RECORDED["chat"]) if not event["choices"] or event["choices"][0].get("token_ids")
        ]
        alone.answer = as_lines(
            [events(RECORDED["chat"])[0], *[_one_token(e) for e in every[:-1]], every[-1] | {"metrics": None}]
        )
        session = ServerSession(Server(played.url), Server(alone.url))
        with session.start(asked(session)) as live:
            list(live)
        baseline = live.trace.baseline
        assert baseline is not None and 0.005 < baseline.seconds_per_token < 0.2 and alone.url in baseline.how
        assert live.trace.metrics().speedup is not None and live.trace.metrics().ideal_speedup is None
        assert "vllm_xargs" not in alone.asked[-1]
        with session.seat() as seat, seat.start(asked(session, method="ar", params={})) as live:
            list(live)
        assert live.trace.method == "ar" and live.trace.num_draft_tokens == 0
        assert {token.status for token in live.trace.tokens} == {"sampled"} and live.trace.check() == []


def _one_token(event: dict[str, Any]) -> dict[str, Any]:
    one = json.loads(json.dumps(event))
    one["choices"][0]["token_ids"] = one["choices"][0]["token_ids"][:1]
    return one


# --- rounds alone --------------------------------------------------------------------------------


def arrived(count: int) -> list[Arrived]:
    return [Arrived(id=place, text=f"{place} ", seconds=0.5) for place in range(count)]


def test_texts_of_tokens_add_up_to_the_text_of_the_piece() -> None:
    parts = spread([1, 2, 3], ["", "b", "c"], "\ufffdbc", 0.3)
    assert "".join(part.text for part in parts) == "\ufffdbc"
    assert [part.text for part in spread([1, 2], ["a", " b"], "a b", 0.2)] == ["a", " b"]
    assert spread([], [], "", 0.1) == []


def test_more_than_one_round_can_bring_is_more_than_one_round() -> None:
    rounds = list(Teller(4).piece(arrived(9)))
    assert [len(round_.tokens) for round_ in rounds] == [1, 5, 3]
    assert sum(round_.seconds for round_ in rounds) == pytest.approx(4.5)


def test_counts_that_do_not_bring_these_tokens_are_not_used() -> None:
    assert recount(arrived(9), Counts([4, 4], [1, 1])) is None
    whole = recount(arrived(9), Counts([4, 4, 4], [1, 1, 4]))
    assert whole is not None and [len(round_.tokens) for round_ in whole] == [1, 2, 2, 4]
    assert whole[-1].tokens[-1].status == "accepted"


def test_an_answer_cut_by_the_context_says_so(played: Played) -> None:
    assert ran(played, max_new_tokens=60).stop_reason == "context"  # 24 came, and the server says "length"


# --- on the page ---------------------------------------------------------------------------------


def test_rounds_told_anew_are_shown_anew(played: Played) -> None:
    """What was shown while it streamed was one round too few; its line says so in the end."""
    alone = ran(played)
    played.answer = joined(RECORDED["chat"], 2, 3)
    session = ServerSession(Server(played.url))
    view = View()
    with session.start(asked(session)) as live:
        view.begin(live.trace)
        for round_ in live:
            view.add(round_)
            streamed = view.shown()[0]
    view.finish(live.trace)
    lines = [json.loads(line) for line in view.shown()[0].splitlines()]
    assert json.loads(streamed.splitlines()[0])["run"] != lines[0]["run"]
    assert [len(line["tokens"]) for line in lines if "tokens" in line] == [len(r.tokens) for r in alone.rounds]
    assert view.metrics.accepted_length == alone.metrics().accepted_length


def test_the_page_says_what_is_not_known(played: Played) -> None:
    trace = ran(played)
    drawn, taken = (next(t for t in trace.tokens if t.status == status) for status in ("recovered", "accepted"))
    of = {token: next(r for r in trace.rounds if token in r.tokens) for token in (drawn, taken)}
    assert "which the server does not tell" in render.explanation(drawn, of[drawn], 0)
    assert "draft" not in render.explanation(drawn, of[drawn], 0).split(":")[0]
    assert "does not tell the numbers it compared" in render.explanation(taken, of[taken], 0)
    shown = {tile.label: tile for tile in tiles.tiles(trace.metrics(), drafts=True)}
    assert shown["Divergence"].note == "not known of this run"
    assert shown["Speedup"].note == "the verifier alone was not measured"
    rows = list(csv.reader(io.StringIO(render.to_csv(trace))))
    assert len(rows) == len(trace.tokens) + 1 and set(map(tuple, (row[5:] for row in rows[1:]))) == {("",) * 8}


@pytest.mark.parametrize(
    ("args", "runs"),
    [([], 4), (["--engine", "vllm", "--url", "http://x"], 32),
     (["--engine", "vllm", "--url", "http://x", "--max-runs", "4"], 4)],
)  # fmt: skip
def test_a_servers_page_takes_many_at_once(args: list[str], runs: int) -> None:
    assert app.parse_args(args).limits.max_runs == runs


@pytest.mark.parametrize("args", [["--engine", "vllm"], ["--url", "http://x"], ["--engine", "other"]])
def test_an_engine_and_its_address_go_together(args: list[str]) -> None:
    with pytest.raises(SystemExit):
        app.parse_args(args)


def test_the_page_is_built_for_the_pair_there_is(played: Played) -> None:
    session = app.new_session(app.parse_args(["--engine", "vllm", "--url", played.url]))
    assert [state.name for state in session.states()] == [PAIR]
    assert pair_list.first(session.states()) == PAIR
    demo = build(session)
    [pair] = [block for block in demo.blocks.values() if getattr(block, "elem_id", None) == "pair"]
    assert pair.value == PAIR and [value for _, value in pair.choices] == [PAIR]
    with pytest.raises(CactusError, match="only 'server:tiny'"):
        session.load("pocket")
