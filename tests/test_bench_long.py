"""Rounds early and late in a long text: what is compared, and that the page's traffic does not grow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny

from cactus import cli, session
from cactus.bench import command, growth, long
from cactus.bench.growth import Growth, Place
from cactus.bench.long_rounds import RoundCost, update_bytes
from cactus.bench.methods import parse_method
from cactus.errors import CactusError

SPS = parse_method("sps")


@pytest.fixture(autouse=True)
def tiny_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(device: str, dtype: str, limits: object, static: bool) -> session.Session:
        return session.Session(device, dtype, limits, load_pair=lambda spec, progress: tiny.pair())

    monkeypatch.setattr(command, "Session", make)
    monkeypatch.setattr(long, "PLACES", (60, 240))
    monkeypatch.setattr(growth, "WINDOW", 20)
    monkeypatch.setattr(growth, "PASSES", 3)


def test_what_an_update_sends() -> None:
    assert update_bytes(["ab", "{1}"], ["abcd", "{2}"]) == 2 + 3
    assert update_bytes(["a"], ["aé"]) == 2


def test_the_rounds_around_both_places_are_compared(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--methods", "ar,cactus:delta=1", "--draft-lengths", "3", "--out", str(tmp_path)]
    assert cli.main(["bench", "--long", *flags]) == 0
    record = json.loads((tmp_path / "long.json").read_text())
    assert [item["method"] for item in record["methods"]] == ["ar", "cactus:delta=1"]
    for item in record["methods"]:
        early, late = item["early"], item["late"]
        assert (early["tokens"], late["tokens"]) == (60, 240)
        assert min(early["rounds"], late["rounds"]) > 5  # no end token stopped the text
        parts = [late[f"{part}_seconds"] for part in ("draft", "verify", "judge", "other")]
        assert sum(parts) == pytest.approx(late["round_seconds"], rel=0.5)
        assert late["page_bytes"] < 1.3 * early["page_bytes"]  # what a round sends does not grow with the text
    assert "60 → 240" in (tmp_path / "long.md").read_text() and "60 → 240" in capsys.readouterr().out


def test_ctrl_c_keeps_the_methods_that_are_finished(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = long.round_costs

    def interrupted(plan, method, *rest):
        if method.name == "sps":
            raise KeyboardInterrupt
        return real(plan, method, *rest)

    monkeypatch.setattr(long, "round_costs", interrupted)
    assert cli.main(["bench", "--long", "--methods", "ar,sps", "--out", str(tmp_path)]) == 130
    assert [item["method"] for item in json.loads((tmp_path / "long.json").read_text())["methods"]] == ["ar"]
    monkeypatch.setattr(long, "round_costs", lambda *rest: interrupted(*rest[:1], SPS, *rest[2:]))
    assert cli.main(["bench", "--long", "--methods", "ar", "--out", str(tmp_path / "none")]) == 130


def test_rounds_belong_to_the_place_they_begin_near(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [RoundCost(begins, 3, 0.1 * begins, 0.02, 0.03, 0.01, 500, 0.001) for begins in (10, 50, 60, 70, 220, 240)]
    costs.append(RoundCost(65, 1, 99.0, 0.02, 0.03, 0.01, 500, 0.001))  # cut short, so left out
    found = growth.growth("sps", 3, costs, (60, 240), tiny.pair())
    assert (found.early.rounds, found.late.rounds) == (3, 2)
    assert found.early.round_seconds == pytest.approx(6.0)
    with pytest.raises(CactusError, match="the text ended before 240"):
        growth.growth("sps", 3, costs[:4], (60, 240), tiny.pair())


def test_the_share_that_the_models_passes_explain() -> None:
    early = Place(150, 9, 0.100, 0.02, 0.07, 0.001, 0.009, 0.06, 900, 0.001)
    late = replace(early, tokens=1500, round_seconds=0.130, draft_seconds=0.025, verify_seconds=0.090)
    assert Growth("sps", 5, early, late).explained == pytest.approx(0.025 / 0.030)
    assert Growth("sps", 5, early, replace(early, round_seconds=0.101)).explained is None


def test_a_context_too_short_for_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long, "PLACES", (150, 1500))
    monkeypatch.setattr(growth, "WINDOW", 50)
    assert long.choose_places(tiny.pair())[1] < 512
    with pytest.raises(CactusError, match="reads 192 tokens in all"):
        long.choose_places(tiny.pair(max_position_embeddings=192))
