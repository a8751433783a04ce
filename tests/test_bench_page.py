"""What the page costs a run: that both ways run the same, and that each is timed as what it is."""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

import pytest
import tiny

from cactus import cli, session
from cactus.bench import command, page, watched
from cactus.bench.methods import parse_method
from cactus.bench.page import Cost, Turn
from cactus.bench.visitor import Traffic
from cactus.bench.watched import Passage, Watched
from cactus.errors import CactusError
from cactus.request import RunRequest
from cactus.ui import settings
from cactus.ui.layout import QUEUE_SECONDS, build


@pytest.fixture(autouse=True)
def tiny_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(device: str, dtype: str, limits: object, static: bool) -> session.Session:
        return session.Session(device, dtype, limits, load_pair=lambda spec, progress: tiny.pair())

    monkeypatch.setattr(command, "Session", make)


def bench(out: Path, *flags: str) -> int:
    return cli.main(
        ["bench", "--page", "--draft-lengths", "3", "--max-new-tokens", "16", "--out", str(out), *flags]
    )  # fmt: skip


def test_both_ways_take_turns_and_the_report_says_what_each_took(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    assert bench(tmp_path, "--methods", "ar,cactus:delta=1", "--repeat", "2") == 0
    record = json.loads((tmp_path / "page.json").read_text())
    assert [(item["method"], item["num_draft_tokens"]) for item in record["methods"]] == [
        ("ar", 0), ("cactus:delta=1", 3),
    ]  # fmt: skip
    for item in record["methods"]:
        assert len(item["turns"]) == 2  # without the warm-up
        for turn in item["turns"]:
            assert turn["alone"]["tokens"] == turn["paged"]["tokens"] and len(turn["alone"]["tokens"]) == item["tokens"]
            assert turn["traffic"]["updates"] >= 2 and turn["traffic"]["bytes"] > 1000
        assert item["page_seconds_per_token"] > 0 and item["alone_seconds_per_token"] > 0
    assert "--page" in record["command"] and record["machine"]["cores"]
    shown = capsys.readouterr().out
    assert "page costs" in shown and "page costs" in (tmp_path / "page.md").read_text()
    assert threading.active_count() <= before + 1  # the server is gone whenever the session runs alone


def test_the_figures_by_hand() -> None:
    tokens = [1, 2, 3, 4]

    def turn(alone: float, paged: float, updates: int) -> Turn:
        return Turn(Passage(alone, 0.1, tokens), Passage(paged, 0.1 + 0.02 * alone, tokens), Traffic(updates, 900))

    own = Cost("sps", 5, (turn(1.0, 1.01, 8), turn(2.0, 2.08, 10), turn(4.0, 4.08, 9))).figures
    assert own["wall_cost"] == pytest.approx(0.02)
    assert own["wall_cost_quartiles"] == pytest.approx((0.015, 0.03))
    assert own["processor_cost"] == pytest.approx(0.02)
    assert (own["alone_seconds_per_token"], own["updates"], own["bytes"]) == (0.5, 9, 900)


def test_a_run_that_writes_something_else_is_not_compared(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(page, "_alone", lambda row, seen: Passage(1.0, 0.0, [7]))
    assert bench(tmp_path, "--methods", "ar", "--repeat", "1") == 2
    assert "wrote other tokens" in capsys.readouterr().err


def test_the_controls_hold_what_the_command_line_says(tmp_path) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    flags = ["--page", "--temperature", "0.5", "--seed", "4", "--max-new-tokens", "9", "--out", str(tmp_path)]
    plan = command._asked(parser.parse_args([*flags, "--pair", "pocket"])).plan
    for text, length, shown in (("cactus:delta=0.2", 4, 4), ("sps", "auto", "auto")):
        asked = settings.to_request(settings.as_values(page.row_of(plan, parse_method(text), length)), {plan.pair: ""})
        assert (asked.method, asked.num_draft_tokens, asked.seed, asked.max_new_tokens) == (
            text.partition(":")[0], shown, 4, 9,
        )  # fmt: skip
        assert asked.sampling.temperature == 0.5
    assert page.row_of(plan, parse_method("ar"), 0)


def test_ctrl_c_keeps_the_methods_that_are_finished(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Turn(Passage(1.0, 0.0, [1]), Passage(1.0, 0.0, [1]), Traffic(3, 900))

    def turn(row, *rest, **options):
        if "sps" in row:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(page, "_turn", turn)
    assert bench(tmp_path, "--methods", "ar,sps") == 130
    assert [item["method"] for item in json.loads((tmp_path / "page.json").read_text())["methods"]] == ["ar"]
    assert bench(tmp_path / "none", "--methods", "sps") == 130 and not (tmp_path / "none").exists()


def test_the_processor_time_of_other_threads_is_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Watched(session.Session("cpu", "auto", load_pair=lambda spec, progress: tiny.pair()))
    clock = iter(range(1000))
    monkeypatch.setattr(
        watched, "time",
        type("Clock", (), {
            "perf_counter": lambda: 10.0 * next(clock), "process_time": lambda: 5.0 * next(clock),
            "thread_time": lambda: 0.0,
        }),
    )  # fmt: skip
    with seen.start(RunRequest(method="ar", prompt="a frog", max_new_tokens=3, seed=1)) as live:
        rounds = list(live)
    assert seen.passage.tokens == [token.id for round_ in rounds for token in round_.emitted]
    assert seen.passage.seconds > 0 and seen.passage.beside_seconds > 0


def test_gradio_looks_into_its_queue_seldom_enough() -> None:
    """By itself it wakes a thousand times a second, and takes the interpreter from the models each time."""
    queue = build(session.Session("cpu", "auto", load_pair=lambda spec, progress: tiny.pair()))._queue
    assert queue.sleep_when_free == queue.progress_update_sleep_when_free == QUEUE_SECONDS >= 0.01


def test_a_stream_that_breaks_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = build(Watched(session.Session("cpu", "auto", load_pair=lambda spec, progress: tiny.pair())))
    monkeypatch.setattr("cactus.bench.visitor.LAST", b"never sent")
    with pytest.raises(CactusError, match="broke off"), page.visited(demo) as visitor:
        visitor.run([(settings.defaults() | {"prompt": "a frog"})[key] for key in settings.control_keys()])
