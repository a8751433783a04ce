"""Methods at equal divergence: pooled points, interpolation, the error over prompts; the command on tiny models."""

from __future__ import annotations

import json
import math

import pytest
from tiny import pair
from ui_fakes import make_trace

from cactus import cli, trade
from cactus.session import Session
from cactus.trade import TradePoint


def spot(output_kl: float, accepted_length: float, method: str = "x") -> TradePoint:
    return TradePoint(method, accepted_length, output_kl, 0.0, 1, 1)


def test_a_point_pools_its_runs():
    traces = [make_trace(count=3), make_trace(count=9, drafted=2)]
    point, metrics = trade.trade_point("x", traces), [trace.metrics() for trace in traces]
    assert point.rounds == 12 and point.tokens == sum(m.generated_tokens for m in metrics)
    assert point.accepted_length == sum(m.accepted_tokens for m in metrics) / 12
    judged = [token for trace in traces for round_ in trace.rounds for token in round_.tokens if token.judged]
    assert point.output_kl == pytest.approx(sum(token.output_kl for token in judged) / point.tokens)
    assert point.adjusted_kl == pytest.approx(sum(token.kl for token in judged) / point.tokens)


def test_between_two_points_the_length_is_on_their_line():
    points = [spot(0.0, 1.0), spot(0.2, 2.0), spot(0.6, 3.0)]
    assert trade.length_at(points, 0.1) == pytest.approx(1.5)
    assert trade.length_at(points, 0.5) == pytest.approx(2.75)
    assert trade.length_at(points, 0.6) == 3.0
    assert trade.length_at(points, 0.61) is None and trade.length_at(points, -0.1) is None


def test_a_method_against_itself_gains_nothing_and_the_error_is_the_jackknife_s():
    runs = {
        f"x:{count}": {prompt: [make_trace(count=count + extra)] for prompt, extra in (("a", 0), ("b", 5), ("c", 9))}
        for count in (4, 12, 30)
    }
    for gain in trade.gains(runs, runs):
        assert gain.gain == pytest.approx(0.0, abs=1e-12) and gain.error == pytest.approx(0.0, abs=1e-12)
    assert trade._jackknife([1.0, 2.0, 4.0]) == pytest.approx(
        math.sqrt(2 / 3 * sum((value - 7 / 3) ** 2 for value in (1.0, 2.0, 4.0)))
    )
    assert trade._jackknife([1.0, None]) is None


def test_runs_are_interleaved():
    order = []
    trade.collect(["s", "t"], ["a", "b"], [0, 1], lambda *run: order.append(run) or make_trace(count=1))
    assert order[:4] == [("s", "a", 0), ("t", "a", 0), ("s", "a", 1), ("t", "a", 1)] and len(order) == 8


def test_the_command_gives_the_same_numbers_twice(monkeypatch, tmp_path, capsys):
    from cactus.commands import trade as command

    monkeypatch.setattr(
        command, "Session", lambda *_, **__: Session(load_pair=lambda spec, progress: pair(draft="other"))
    )
    argv = [
        "trade",
        "--values",
        "0.05,2",
        "--prompts",
        "2",
        "--seeds",
        "1",
        "--max-new-tokens",
        "8",
        "--temperature",
        "1",
    ]
    printed = []
    for name in ("one.json", "two.json"):
        assert cli.main([*argv, "--json", str(tmp_path / name)]) == 0
        printed.append(capsys.readouterr().out)
    one, two = (json.loads((tmp_path / name).read_text(encoding="utf-8")) for name in ("one.json", "two.json"))
    assert printed[0] == printed[1] and one["gains"] == two["gains"]
    assert {point["method"] for point in one["reference"]} == {"cactus:delta=0.05", "cactus:delta=2"}
    assert [gain["point"]["method"].split(":")[0] for gain in one["gains"]] == ["cactus_adaptive"] * 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--values", "1"], "at least two"),
        (["--values", "1,99"], "between 0 and 10"),
        (["--parameter", "x"], "no parameter"),
        (["--prompts", "99"], "prompts is 99"),
        (["--seeds", "0"], "seeds is 0"),
    ],
)
def test_bad_flags_are_named(flags, message, capsys):
    assert cli.main(["trade", *flags]) == cli.BAD_INPUT
    assert message in capsys.readouterr().err
