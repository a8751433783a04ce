"""Records, JSON, checks and metrics."""

from __future__ import annotations

import json
import math

import pytest
import tiny

from cactus import SamplingParams, Trace, decode, make_rule
from cactus.metrics import Tally, series
from cactus.trace import Round, Token, TraceError


def token(status: str, position: int, **numbers) -> Token:
    if status in ("accepted", "rejected"):
        numbers = {"accept_prob": 0.5, "uniform": 0.25 if status == "accepted" else 0.75, "kl": 0.1, **numbers}
    return Token(id=1, text="x", status=status, position=position, **numbers)


def round_of(index: int, statuses: list[str], start: int, seconds: float = 0.1) -> Round:
    tokens, position = [], start
    for status in statuses:
        tokens.append(token(status, position))
        position += 1
    if statuses[-1] == "recovered":
        tokens[-1] = token("recovered", start + statuses.count("accepted"))
    drafted = sum(status in ("accepted", "rejected", "discarded") for status in statuses)
    return Round(
        index=index,
        num_draft_tokens=drafted,
        accepted_length=statuses.count("accepted"),
        draft_seconds=seconds / 2,
        verify_seconds=seconds / 4,
        judge_seconds=seconds / 4,
        tokens=tuple(tokens),
    )


FULL = ["accepted"] * 5 + ["bonus"]
PARTIAL = ["accepted", "rejected", "discarded", "discarded", "discarded", "recovered"]
NONE = ["rejected", "discarded", "recovered"]


def rounds_551() -> list[Round]:
    return [round_of(0, FULL, 0), round_of(1, PARTIAL, 6), round_of(2, NONE, 8)]


def a_trace() -> Trace:
    made = decode(tiny.pair(), [5, 9, 30], make_rule("cactus", delta=1.0), 4, SamplingParams(), 20, 3, baseline_steps=3)
    list(made)
    return made.trace


def test_fault_20_drafted_5_5_2_with_5_1_0_accepted():
    tally = Tally(baseline_seconds=0.1)
    for round_ in rounds_551():
        tally.add(round_)
    metrics = tally.metrics()
    assert (metrics.accepted_tokens, metrics.drafted_tokens) == (6, 12)
    assert metrics.acceptance_rate == 0.5
    assert metrics.accepted_length == 2.0
    assert metrics.tokens_per_round == 3.0
    assert metrics.generated_tokens == 9 and metrics.verifier_passes_saved == 6
    assert metrics.judged_tokens == 5 + 2 + 1
    assert metrics.seconds == pytest.approx(0.3)
    assert metrics.speedup == pytest.approx(0.1 / (0.3 / 9))
    # draft step: 0.15 s ÷ 12; verifier step: 0.1 s; 9 tokens ÷ (3 + 12·c)
    assert metrics.ideal_speedup == pytest.approx(9 / (3 + 12 * 0.0125 / 0.1))
    assert [(p.drafted, p.judged, p.accepted) for p in metrics.positions[:3]] == [(3, 3, 2), (3, 2, 1), (2, 1, 1)]


def test_fault_20_accepted_tokens_behind_a_rejection_are_impossible():
    """[1, 0, 1, 1] is one accepted token, never three."""
    bad = round_of(0, ["accepted", "rejected", "accepted", "accepted", "recovered"], 0)
    trace = a_trace().model_copy(update={"rounds": (bad,)})
    assert any("impossible order" in fault for fault in trace.check())


def test_fault_20_a_round_cut_by_a_stop_counts_what_was_emitted():
    cut = round_of(0, ["accepted", "accepted", "discarded"], 0)
    tally = Tally()
    tally.add(cut)
    metrics = tally.metrics()
    assert metrics.generated_tokens == 2 and metrics.tokens_per_round == 2.0 and metrics.accepted_length == 2.0
    assert metrics.speedup is None and metrics.ideal_speedup is None


def test_fault_21_a_run_slower_than_the_baseline_is_shown_as_slower():
    assert Tally(0.01).speedup is None
    tally = Tally(baseline_seconds=0.01)
    tally.add(round_of(0, NONE, 0, seconds=0.1))
    assert tally.speedup == pytest.approx(0.1)


def test_nothing_drafted_gives_undefined_not_zero():
    tally = Tally(0.1)
    tally.add(round_of(0, ["sampled"], 0))
    metrics = tally.metrics()
    assert metrics.accepted_length is None and metrics.acceptance_rate is None and metrics.mean_kl is None
    assert metrics.tokens_per_round == 1.0


def test_series_and_metrics_agree():
    trace = a_trace()
    points = series(trace.rounds, trace.baseline.seconds_per_token)
    metrics = trace.metrics()
    assert len(points) == metrics.rounds
    assert points[-1].speedup == metrics.speedup
    assert points[-1].mean_accepted_length == metrics.accepted_length
    assert points[-1].generated_tokens == metrics.generated_tokens == len(trace.tokens)


def test_json_round_trip_and_stable_keys():
    trace = a_trace()
    data = json.loads(trace.to_json())
    assert Trace.from_json(trace.to_json()) == trace
    assert list(data)[:9] == [
        "schema", "pair", "method", "params", "num_draft_tokens", "sampling", "max_new_tokens", "seed", "device",
    ]  # fmt: skip
    assert {
        "schema", "pair", "method", "params", "num_draft_tokens", "sampling", "seed", "device", "dtype", "versions",
        "prompt", "rounds", "stop_reason", "baseline", "timings",
    } <= data.keys()  # fmt: skip
    assert data["rounds"][0].keys() == {
        "index", "num_draft_tokens", "accepted_length", "draft_seconds", "verify_seconds", "judge_seconds",
        "record_seconds", "step_seconds", "tokens",
    }  # fmt: skip
    assert {
        "id", "text", "status", "position", "draft_prob", "verifier_prob", "boosted_prob", "accept_prob", "uniform",
        "entropy", "kl", "top_draft", "top_verifier",
    } <= data["rounds"][0]["tokens"][0].keys()  # fmt: skip


def test_infinite_divergence_survives_json():
    trace = a_trace()
    tokens = (token("rejected", 0, kl=math.inf), token("recovered", 0))
    bad = trace.rounds[0].model_copy(update={"tokens": tokens, "num_draft_tokens": 1, "accepted_length": 0})
    trace = trace.model_copy(update={"rounds": (bad,)})
    json.loads(trace.to_json(), parse_constant=pytest.fail)
    assert Trace.from_json(trace.to_json()).rounds[0].tokens[0].kl == math.inf


def edited(change) -> str:
    data = json.loads(a_trace().to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[]", "object"),
        ("null", "object"),
        ("[" * 100_000, "JSON"),
        (edited(lambda d: d.update(schema="other/2")), "schema"),
        (edited(lambda d: d.pop("pair")), "pair"),
        (edited(lambda d: d.update(seed="0")), "seed"),
        (edited(lambda d: d.update(rounds={"0": 1})), "rounds"),
        (
            edited(lambda d: d["rounds"][0]["tokens"][0].update(text=5)),
            r"rounds\[0\]\.tokens\[0\]\.text is 5; text is allowed",
        ),
        (edited(lambda d: d["rounds"][0]["tokens"][0].update(uniform=7.0)), "uniform"),
        (edited(lambda d: d["rounds"][0]["tokens"][0].update(status="<b>")), "status"),
        (edited(lambda d: d["rounds"][0].update(accepted_length=3, num_draft_tokens=3)), "accepted_length|drafted"),
        (edited(lambda d: d["rounds"][0]["tokens"][0].update(accept_prob=0.0)), "consistent|accept_prob"),
        (edited(lambda d: d["rounds"].reverse()), "consistent"),
    ],
)
def test_fault_29_a_hand_edited_trace_is_refused_naming_the_field(text, message):
    with pytest.raises(TraceError, match=message):
        Trace.from_json(text)
