"""Comparisons: what is asked for, the table, one clock, where texts part; the command on tiny models."""

from __future__ import annotations

import json

import pytest
from tiny import pair
from ui_fakes import make_rounds, make_trace, token

from cactus import cli, compare
from cactus.errors import CactusError
from cactus.request import VERIFIER_ONLY, RunRequest
from cactus.sampling import SamplingParams
from cactus.session import Session
from cactus.trace import Trace

BASE = RunRequest(
    prompt="the cat", seed=5, num_draft_tokens=3, max_new_tokens=12, sampling=SamplingParams(temperature=1.0)
)


def tiny_session() -> Session:
    return Session(load_pair=lambda spec, progress: pair(draft="other"))


def test_a_lane_is_a_method_its_parameters_and_m():
    lane = compare.parse_lane("cactus_exact:delta=0.5:divergence=js:m=8")
    assert (lane.method.name, lane.method.params) == ("cactus_exact", {"delta": 0.5, "divergence": "js"})
    assert lane.num_draft_tokens == 8
    assert compare.parse_lane(" sps ") == compare.parse_lane("sps")
    assert compare.parse_lane("sps").num_draft_tokens is None
    assert compare.parse_lane("sps:m=auto").num_draft_tokens == "auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "method is ''"),
        ("nonsense", "method is 'nonsense'"),
        ("cactus:delta", "it takes delta="),
        ("cactus:delta=-1", "between 0 and 10"),
        ("sps:delta=1", "no parameters"),
        ("sps:m=0", "num_draft_tokens is 0"),
        ("sps:m=17", "num_draft_tokens is 17"),
        ("sps:m=2:m=3", "m is given twice"),
    ],
)
def test_a_bad_lane_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        compare.parse_lane(text)


def test_the_verifier_alone_runs_first_and_all_share_prompt_and_seed():
    asked = compare.lane_requests(BASE, ["sps", "cactus:delta=0.5:m=7"])
    assert [request.method for request in asked] == [VERIFIER_ONLY, "sps", "cactus"]
    assert {(request.prompt, request.seed, request.sampling) for request in asked} == {("the cat", 5, BASE.sampling)}
    assert [request.num_draft_tokens for request in asked[1:]] == [3, 7]
    fresh = compare.lane_requests(RunRequest(prompt="x"), ["sps", "tas"])
    assert len({request.seed for request in fresh}) == 1 and fresh[0].seed is not None


@pytest.mark.parametrize(
    ("lanes", "message"),
    [
        ([], "0 lanes were given; 1 to 3"),
        (["sps", "tas", "block", "topk"], "4 lanes were given"),
        (["sps", "sps"], "is there twice"),
        (["ar"], "is there twice"),
    ],
)
def test_a_bad_set_of_lanes_is_named(lanes, message):
    with pytest.raises(CactusError, match=message):
        compare.lane_requests(BASE, lanes)


def test_a_race_runs_every_lane_to_its_end():
    traces: dict[int, Trace] = {}
    for lane, trace in compare.race(tiny_session(), compare.lane_requests(BASE, ["sps", "cactus:delta=2"])):
        assert lane in traces or lane == len(traces)
        traces[lane] = trace
    assert [trace.method for trace in traces.values()] == ["ar", "sps", "cactus"]
    assert all(trace.stop_reason in ("length", "stop") for trace in traces.values())
    table = compare.results(list(traces.values()))
    alone = traces[0].metrics()
    assert table[0].speedup == pytest.approx(1.0)
    for result, trace in zip(table, traces.values(), strict=True):
        metrics = trace.metrics()
        assert result.metrics.accepted_length == metrics.accepted_length
        per_token = alone.seconds / alone.generated_tokens
        assert result.speedup == pytest.approx(per_token / (metrics.seconds / metrics.generated_tokens))
        assert result.seconds == metrics.seconds
    assert json.loads(json.dumps(table[1].as_dict()))["lane"] == "Speculative sampling, m = 3"


def test_greedy_lossless_lanes_write_the_same_text():
    greedy = RunRequest(prompt="the cat", seed=5, max_new_tokens=12, sampling=SamplingParams(temperature=0.0))
    traces = dict(compare.race(tiny_session(), compare.lane_requests(greedy, ["sps", "block"])))
    partings = compare.partings(list(traces.values()))
    assert [(parting.lane, parting.same) for parting in partings] == [(1, True), (2, True)]


def test_all_lanes_go_by_one_clock():
    traces = [make_trace(count=5, drafted=0, method="ar"), make_trace(count=4), make_trace(count=6, drafted=2)]
    due = compare.timeline(traces)
    assert len(due) == 15 and [each.seconds for each in due] == sorted(each.seconds for each in due)
    for lane, trace in enumerate(traces):
        own = [each for each in due if each.lane == lane]
        assert [each.round for each in own] == list(trace.rounds)
        assert own[-1].seconds == pytest.approx(sum(round_.seconds for round_ in trace.rounds))


def worded(*words: str) -> Trace:
    rounds = make_rounds(len(words), 0)
    texts = [
        round_.model_copy(update={"tokens": (token(word, "sampled", i).model_copy(update={"id": ord(word)}),)})
        for i, (word, round_) in enumerate(zip(words, rounds, strict=True))
    ]
    return make_trace(method="ar", drafted=0, rounds=tuple(texts))


def test_texts_part_where_their_tokens_do():
    found = compare.partings([worded(*"abcd"), worded(*"abx"), worded(*"abxy"), worded(*"abcd"), worded(*"q")])
    assert [(p.lane, p.other, p.tokens, p.same) for p in found] == [
        (1, 0, 2, False), (2, 1, 3, False), (3, 0, 4, True), (4, 0, 0, False),
    ]  # fmt: skip


def test_everything_is_one_json():
    whole = compare.Comparison(lanes=(make_trace(count=2), make_trace(count=3)))
    loaded = json.loads(whole.to_json())
    assert loaded["schema"] == "cactus-comparison/1"
    assert [Trace.from_json(json.dumps(lane)) for lane in loaded["lanes"]] == list(whole.lanes)


@pytest.fixture
def tiny_command(monkeypatch):
    from cactus.commands import compare as command

    monkeypatch.setattr(command, "Session", lambda *_, **__: tiny_session())


def test_the_command_prints_the_table_and_writes_all_traces(tiny_command, tmp_path, capsys):
    path = tmp_path / "all.json"
    flags = ["--max-new-tokens", "10", "--seed", "4", "--temperature", "1", "--draft-length", "3"]
    argv = ["compare", "the cat", "--lane", "sps", "--lane", "cactus:delta=2:m=4", *flags]
    assert cli.main([*argv, "--json", str(path), "--texts"]) == 0
    printed = capsys.readouterr().out
    lanes = [Trace.from_json(json.dumps(lane)) for lane in json.loads(path.read_text(encoding="utf-8"))["lanes"]]
    assert [lane.method for lane in lanes] == ["ar", "sps", "cactus"]
    for result in compare.results(lanes):
        line = next(line for line in printed.splitlines() if line.startswith(result.label))
        assert f"{result.speedup:.2f}×" in line and str(result.metrics.generated_tokens) in line.split()
    assert "after" in printed or "the same text" in printed
    assert "seed 4" in printed


def test_the_command_names_a_bad_lane(tiny_command, capsys):
    assert cli.main(["compare", "x", "--lane", "cactus:delta=99"]) == cli.BAD_INPUT
    assert "delta must be a number between 0 and 10" in capsys.readouterr().err
