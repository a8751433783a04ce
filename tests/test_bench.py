"""The benchmark: order, resume, medians, and a report that says what the traces say."""

from __future__ import annotations

import csv
import json
import statistics
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import browser
import plotly.graph_objects as go
import pytest
import tiny
from PIL import Image

from cactus import cli, session
from cactus.bench import command, images
from cactus.bench.contest import OURS, Answer, Label
from cactus.bench.measurement import Measurement, Store, joint_metrics
from cactus.bench.methods import MethodSpec, parse_draft_lengths, parse_method, parse_methods
from cactus.bench.prompts import PROMPTS, BenchPrompt, pick, read_prompts
from cactus.bench.report import COLUMNS, equality
from cactus.bench.runner import Cell, Race, schedule
from cactus.bench.summary import Spread, against_peers, complete, spread, summarize, unequal_repeats
from cactus.errors import CactusError, PromptError, UnavailableError
from cactus.pairs import Pair
from cactus.trace import Trace

KINDS = {"multi_turn": 14, "translation": 13, "summarization": 13, "qa": 14, "math": 13, "rag": 13}
ASSETS = PROMPTS.parent
FIND_BROWSER = images.find_browser
FAST = ["--draft-lengths", "2", "--repeat", "2", "--max-new-tokens", "8", "--methods", "ar,sps,cactus:delta=1"]


@dataclass
class Fake:
    """Answers at once, and remembers what it was asked."""

    label: Label
    log: list[tuple[str, str]] = field(default_factory=list)
    error: Exception | None = None

    def answer(self, messages, seed: int, max_new_tokens: int | None = None) -> Answer:
        self.log.append((self.label.key, messages[-1]["content"]))
        if self.error is not None and max_new_tokens is None:
            raise self.error
        return Answer("yes", (seed, len(messages)), 3, 2, 0.5, 1.0, 0.1, 2, "length")


def fakes(*names: str) -> list[Fake]:
    log: list[tuple[str, str]] = []
    return [Fake(Label(OURS, name, "", 0 if name == "ar" else 2), log) for name in names]


def prompt(name: str, *turns: str, kind: str = "qa") -> BenchPrompt:
    return BenchPrompt(name, kind, turns or (name,))


@pytest.fixture(autouse=True)
def tiny_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(spec, progress) -> Pair:
        return replace(tiny.pair(), name=spec.name)

    def make(device: str, dtype: str, limits: object, static: bool) -> session.Session:
        return session.Session(device, dtype, limits, load_pair=load)

    monkeypatch.setattr(command, "Session", make)
    monkeypatch.setattr(images, "find_browser", no_browser)


def no_browser() -> str:
    raise UnavailableError("no browser that could draw the plots")


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    lines = [
        {"id": "talk", "kind": "multi_turn", "turns": ["the cat sat", "and the dog"]},
        {"id": "once", "kind": "qa", "turns": ["once upon a time"]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def bench(prompts: Path, out: Path, *flags: str) -> int:
    return cli.main(["bench", "--prompts", str(prompts), "--out", str(out), *FAST, *flags])


def test_bundled_prompts_cover_the_six_kinds_evenly() -> None:
    prompts = read_prompts(PROMPTS)
    assert Counter(item.kind for item in prompts) == KINDS
    assert all(len(item.turns) == (2 if item.kind == "multi_turn" else 1) for item in prompts)
    assert max(sum(map(len, item.turns)) for item in prompts) < 3000
    pocket = read_prompts(ASSETS / "prompts-pocket.jsonl")
    assert len(pocket) == 24 and max(len(item.turns[0]) for item in pocket) < 100


def test_bundled_prompts_are_not_those_of_the_page_or_of_training() -> None:
    """No six words in a row are shared with what a draft model was trained on, or with the page's examples."""
    training = Path(command.__file__).parents[1] / "training"
    sources = [ASSETS / "examples.json", *training.glob("*prompts.json")]
    seen = " ".join(_words(path.read_text(encoding="utf-8")) for path in sources)
    prompts = [*read_prompts(PROMPTS), *read_prompts(ASSETS / "prompts-pocket.jsonl")]
    for turn in (turn for item in prompts for turn in item.turns):
        words = _words(turn).split()
        shared = [run for i in range(len(words) - 5) if (run := " ".join(words[i : i + 6])) in seen]
        assert not shared, turn


def _words(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def test_a_limit_takes_one_of_each_kind_in_turn() -> None:
    prompts = [prompt("a1", kind="a"), prompt("a2", kind="a"), prompt("b1", kind="b"), prompt("c1", kind="c")]
    assert [item.id for item in pick(prompts, 3)] == ["a1", "b1", "c1"]
    assert [item.id for item in pick(prompts, 9)] == ["a1", "b1", "c1", "a2"]
    assert pick(prompts, None) == prompts


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: not a prompt"),
        ('{"id": "x", "kind": "qa"}', "line 2: not a prompt"),
        ('{"id": "x", "kind": "qa", "turns": []}', "at least one text"),
        ('{"id": "x", "kind": "qa", "turns": "hello"}', "at least one text"),
        ('{"id": "x", "kind": "qa", "turns": ["  "]}', "an empty or wrong field"),
        ('{"id": "x", "kind": 3, "turns": ["a"]}', "an empty or wrong field"),
        ('{"id": "a", "kind": "qa", "turns": ["b"]}', "two prompts have the id 'a'"),
    ],
)
def test_a_bad_prompts_file_is_named_with_its_line(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "kind": "qa", "turns": ["b"]}\n' + line + "\n")
    with pytest.raises(CactusError, match=message):
        read_prompts(path)


def test_methods_with_parameters() -> None:
    methods = parse_methods("ar, sps,cactus:delta=1,cactus_exact:delta=0.5:divergence=js")
    assert [str(method) for method in methods] == [
        "ar", "sps", "cactus:delta=1", "cactus_exact:delta=0.5:divergence=js",
    ]  # fmt: skip
    assert methods[3] == MethodSpec("cactus_exact", {"delta": 0.5, "divergence": "js"})
    assert not methods[0].drafts and methods[2].label == "Cactus, delta = 1"
    assert [parse_method(str(method)) for method in methods] == methods


BAD = {
    "--methods nope": "method is 'nope'; ar, sps, cactus",
    "--methods cactus:epsilon=1": "'epsilon=1' is no parameter of cactus; it takes delta=…",
    "--methods cactus:delta": "'delta' is no parameter of cactus",
    "--methods cactus:delta=99": "delta must be a number between 0 and 10, got '99'",
    "--methods cactus:delta=1:delta=2": "delta is given twice",
    "--methods ar:delta=1": "it takes no parameters",
    "--methods sps,sps": "methods: sps is given twice",
    "--methods sps,,ar": "methods is 'sps,,ar'",
    "--draft-lengths 0": "num_draft_tokens is 0; whole numbers from 1 to 16",
    "--draft-lengths 2,x": "num_draft_tokens is 'x'",
    "--draft-lengths 2,2": "draft lengths: 2 is given twice",
    "--pair nope": "pair is 'nope'",
    "--peer vllm": "peer is 'vllm'; transformers are allowed",
    "--limit 0": "limit is 0",
    "--repeat 0": "repeat is 0",
    "--max-new-tokens 0": "max_new_tokens is 0",
    "--temperature -1": "temperature must be",
    "--seed -1": "seed is -1",
    "--prompts /no/such/file": "prompts cannot be read from /no/such/file",
}


@pytest.mark.parametrize(("flags", "message"), BAD.items(), ids=BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["bench", "--out", str(out), *flags.split()]) == 2
    assert message in (error := capsys.readouterr().err)
    assert error.count("\n") == 1 and not out.exists()


def test_an_out_that_is_a_file(prompts_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(prompts_file, prompts_file) == 2
    assert "a folder is needed" in capsys.readouterr().err


def test_contestants_take_turns_and_the_first_one_changes() -> None:
    made = fakes("ar", "sps", "tas")
    cells = list(schedule(made, [prompt("p"), prompt("q")], 2, seed=5))
    order = [(cell.repeat, cell.prompt.id, cell.contestant.label.key) for cell in cells]
    assert [name for *_, name in order] == [
        "ar", "sps", "tas", "sps", "tas", "ar", "tas", "ar", "sps", "ar", "sps", "tas",
    ]  # fmt: skip
    assert [place[:2] for place in order[::3]] == [(0, "p"), (0, "q"), (1, "p"), (1, "q")]
    seeds = {(cell.prompt.id, cell.seed) for cell in cells}
    assert seeds == {("p", 5), ("q", 6)}  # every contestant and repeat of a prompt has the same seed


def test_warm_up_comes_once_and_does_not_count(tmp_path: Path) -> None:
    made = fakes("ar", "sps")
    race = Race(Store(tmp_path / "m.jsonl"))
    for cell in schedule(made, [prompt("p"), prompt("q")], 1, 0):
        race.run(cell)
    assert Counter(made[0].log)["ar", "p"] == 2 and Counter(made[0].log)["ar", "q"] == 1
    assert len(race.store.read()) == 4


def test_the_second_turn_is_asked_after_the_first_answer(tmp_path: Path) -> None:
    made = fakes("ar")
    race = Race(Store(tmp_path / "m.jsonl"))
    race.run(Cell(made[0], prompt("p", "first", "second"), 0, 7))
    (found,) = race.store.read()
    assert [text for _, text in made[0].log] == ["first", "first", "second"]  # warm-up, then the two turns
    assert (found.generated_tokens, found.timed_seconds, found.wall_seconds) == (4, 1.0, 2.0)
    assert found.tokens_per_second == 4.0 and found.wall_tokens_per_second == 2.0


def test_a_stopped_race_goes_on_where_it_was(tmp_path: Path) -> None:
    made = fakes("ar", "sps")
    cells = list(schedule(made, [prompt("p"), prompt("q")], 2, 0))
    race = Race(Store(tmp_path / "m.jsonl"))
    for cell in cells[:3]:
        race.run(cell)
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"contestant": "cut off in the mid')  # as when the process was killed
    again = Race(Store(tmp_path / "m.jsonl"))
    assert again.waiting(cells) == cells[3:]
    for cell in again.waiting(cells):
        again.run(cell)
    assert again.waiting(cells) == [] and len(again.store.read()) == len(cells)


def test_a_damaged_store_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("{}\n")
    with pytest.raises(CactusError, match="line 1 is no measurement"):
        Store(tmp_path / "m.jsonl").read()


def test_a_prompt_that_fails_is_kept_with_its_reason(tmp_path: Path) -> None:
    made = fakes("ar", "sps")
    made[1].error = PromptError("the prompt has 9,999 tokens")
    race = Race(Store(tmp_path / "m.jsonl"))
    for cell in schedule(made, [prompt("p")], 1, 0):
        race.run(cell)
    found = race.store.read()
    assert [item.error for item in found] == ["", "the prompt has 9,999 tokens"]
    labels = [item.label for item in made]
    assert complete(found, labels) == found[:1]  # who answers nothing at all is not waited for
    assert complete([*found, measurement("sps", "q", 1)], labels) == []


def test_quartiles_by_hand() -> None:
    assert spread([4.0, None, 1.0, 3.0, 2.0]) == Spread(2.5, 1.75, 3.25, 4)
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert spread([None]) is None


def measurement(contestant: str, prompt_id: str, rate: float, repeat: int = 0, **fields) -> Measurement:
    base = {"kind": "qa", "seed": 0, "digest": "same", "generated_tokens": 10, "timed_tokens": 10, "rounds": 5}
    seconds = {"timed_seconds": 10 / rate, "wall_seconds": 10 / rate}
    return Measurement(contestant, prompt_id, repeat=repeat, **(base | seconds | fields))


def with_speedup(contestant: str, prompt_id: str, speedup: float, **fields) -> Measurement:
    metrics = {"speedup": speedup, "ideal_speedup": 2 * speedup, "positions": []}
    metrics |= {f"{part}_seconds": 0.1 for part in ("draft", "verify", "judge")}
    return measurement(contestant, prompt_id, 10 * speedup, metrics=metrics, **fields)


def test_medians_are_over_prompts_after_repeats_and_the_best_length_is_marked() -> None:
    labels = [Label(OURS, "ar", "", 0), Label(OURS, "sps", "m=2", 2), Label(OURS, "sps", "m=4", 4)]
    found = []
    for place, (two, four) in enumerate([(1.0, 2.0), (1.2, 1.0), (1.4, 3.0)]):
        for repeat, noise in enumerate((0.9, 1.0, 5.0)):
            where = {"prompt_id": f"p{place}", "repeat": repeat}
            found.append(with_speedup("ar", speedup=1.0, **where))
            found.append(with_speedup("sps m=2", speedup=two * noise, **where))
            found.append(with_speedup("sps m=4", speedup=four * noise, **where))
    rows = summarize(found, labels)
    assert [row.speedup.median for row in rows] == [1.0, 1.2, 2.0]  # the 5-fold outlier of one repeat is not seen
    assert [row.best for row in rows] == [True, False, True]
    assert rows[2].closeness.median == 0.5 and rows[2].prompts == 3 and rows[2].runs == 9
    assert rows[2].race_speedup.median == pytest.approx(2.0)
    assert sum(rows[1].shares.values()) == pytest.approx(1.0)


def test_only_prompts_that_all_have_answered_are_compared() -> None:
    labels = [Label(OURS, "ar", "", 0), Label(OURS, "sps", "m=2", 2)]
    found = [measurement("ar", "p", 10), measurement("sps m=2", "p", 20), measurement("ar", "q", 10)]
    assert [item.prompt for item in complete(found, labels)] == ["p", "p"]


def test_a_peer_is_compared_prompt_by_prompt_at_its_best() -> None:
    labels = [
        Label(OURS, "ar", "", 0),
        Label("lib", "plain", "", 0),
        Label("lib", "assisted", "slow"),
        Label("lib", "assisted", "fast"),
    ]
    rates = {"ar": (10, 30), "lib plain": (5, 10), "lib assisted slow": (1, 1), "lib assisted fast": (20, 15)}
    found = [measurement(key, name, pair[i]) for key, pair in rates.items() for i, name in enumerate("pq")]
    rows = summarize(found, labels)
    assert {row.label.key for row in rows if row.best} == {"ar", "lib plain", "lib assisted fast"}
    ratios = {item.peer: item.ratio.median for item in against_peers(found, rows)}
    assert ratios == {"lib plain": pytest.approx(2.5), "lib assisted fast": pytest.approx(1.25)}
    assert rows[3].race_speedup.median == pytest.approx((4.0 + 1.5) / 2)  # over its own library's plain decoding


def test_repeats_that_differ_are_named() -> None:
    found = [measurement("sps", "p", 1, repeat=repeat, digest=str(repeat)) for repeat in range(2)]
    found += [measurement("sps", "q", 1, repeat=repeat) for repeat in range(2)]
    labels = [Label(OURS, "sps")]
    assert unequal_repeats(found, labels) == [("sps", "p")]
    assert unequal_repeats(found, [Label(OURS, "sps", "", "auto")]) == []  # goes by measured times


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole benchmark of the tiny pair, with its traces."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        tiny_pair.__wrapped__(patch)  # type: ignore[attr-defined]
        prompts = prompts_file.__wrapped__(folder)  # type: ignore[attr-defined]
        assert bench(prompts, folder / "out", "--save-traces") == 0
    return folder / "out"


def test_the_report_says_what_the_traces_say(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    assert [row["key"] for row in report["rows"]] == ["ar", "sps m=2", "cactus:delta=1 m=2"]
    assert (report["done"], report["planned"], report["finished"]) == (12, 12, True)
    row = report["rows"][2]
    values, lengths, judged = [], [], 0
    for name in ("talk", "once"):
        runs = []
        for repeat in range(2):
            files = sorted((finished / "traces").glob(f"{name}-cactus_delta=1_m=2-r{repeat}-t*.json"))
            traces = [Trace.from_json(file.read_bytes()) for file in files]
            assert len(traces) == (2 if name == "talk" else 1)
            alone = sum(len(t.tokens) * t.baseline.seconds_per_token for t in traces)
            took = sum(round_.seconds for trace in traces for round_ in trace.rounds)
            runs.append(alone / took)
            tokens = [token for trace in traces for round_ in trace.rounds for token in round_.tokens]
            judged += sum(token.judged for token in tokens) if repeat == 0 else 0
        rounds = [round_ for trace in traces for round_ in trace.rounds]
        values.append(statistics.median(runs))
        lengths.append(sum(round_.accepted_length for round_ in rounds) / len(rounds))
    assert row["speedup"]["median"] == pytest.approx(statistics.median(values))
    assert row["accepted_length"]["median"] == pytest.approx(statistics.median(lengths))
    assert sum(count["judged"] for count in row["positions"]) == judged
    assert sum(row["shares"].values()) == pytest.approx(1.0)


def test_the_reports_agree_with_each_other_and_tell_the_circumstances(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    lines = list(csv.DictReader((finished / "report.csv").open()))
    text = (finished / "report.md").read_text()
    for row, line in zip(report["rows"], lines, strict=True):
        speedup = row["speedup"]
        assert float(line["speedup"]) == speedup["median"]
        assert float(line["speedup low quartile"]) == speedup["low"]
        assert f"{speedup['median']:.2f}× ({speedup['low']:.2f}×–{speedup['high']:.2f}×)" in text
    assert report["machine"]["processor"] in text and report["versions"]["torch"] in text
    assert "python -m cactus bench --pair smollm2-135m" in text and "--draft-lengths 2" in text
    assert "equal seeds gave equal tokens in every repeat" in text
    assert all(column.name in text for column in COLUMNS)
    assert "plotly.min.js" in (finished / "plots.html").read_text() and (finished / "plotly.min.js").exists()


def test_a_finished_benchmark_is_not_overwritten_and_resuming_it_runs_nothing(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, before = finished.parent / "prompts.jsonl", (finished / "measurements.jsonl").read_text()
    assert bench(prompts, finished, "--save-traces") == 2
    assert "add --resume to go on with it" in capsys.readouterr().err
    assert bench(prompts, finished, "--save-traces", "--resume", "--seed", "3") == 2
    assert "seed 0, asked for is 3" in capsys.readouterr().err
    plan = json.loads((finished / "plan.json").read_text())
    (finished / "plan.json").write_text(json.dumps(plan | {"loaded": "int8"}))  # a drafter held in another form
    assert bench(prompts, finished, "--save-traces", "--resume") == 2
    assert "holds a benchmark with loaded 'int8'" in capsys.readouterr().err
    (finished / "plan.json").write_text(json.dumps(plan))
    monkeypatch.setattr(Race, "run", lambda self, cell: pytest.fail("ran again"))
    assert bench(prompts, finished, "--save-traces", "--resume") == 0
    assert (finished / "measurements.jsonl").read_text() == before


def test_ctrl_c_keeps_what_is_finished_and_resume_completes_it(
    prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, runs = Race.run, []

    def interrupted(self: Race, cell: Cell) -> None:
        runs.append(cell)
        if len(runs) == 5:
            raise KeyboardInterrupt
        real(self, cell)

    monkeypatch.setattr(Race, "run", interrupted)
    out = tmp_path / "out"
    assert bench(prompts_file, out) == 130
    assert "stopped after 4 of 12 conversations" in capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    assert not report["finished"] and not report["partial"]
    assert {row["prompts"] for row in report["rows"]} == {1}  # the prompt that all three have answered
    assert "**stopped**" in (out / "report.md").read_text()
    monkeypatch.setattr(Race, "run", real)
    assert bench(prompts_file, out, "--resume") == 0
    assert json.loads((out / "report.json").read_text())["done"] == 12


def test_prompts_that_do_not_fit_are_left_out_and_named(
    tmp_path: Path, prompts_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = {"id": "long", "kind": "qa", "turns": ["word " * 600]}
    prompts_file.write_text(prompts_file.read_text() + json.dumps(long) + "\n")
    assert bench(prompts_file, tmp_path / "out") == 0
    assert "left out: long (the prompt has" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["rows"][0]["prompts"] == 2 and "long" in report["skipped"]
    prompts_file.write_text(json.dumps(long) + "\n")
    assert bench(prompts_file, tmp_path / "other") == 2
    assert "no prompt could be answered: the prompt has" in capsys.readouterr().err


def test_plots_say_what_the_rows_say(finished: Path) -> None:
    text = (finished / "plots.html").read_text()
    report = json.loads((finished / "report.json").read_text())
    assert all(f'id="{name}"' in text for name in ("speedup", "accepted-length", "positions", "time", "kinds"))
    assert f"{report['rows'][1]['speedup']['median']}"[:8] in text


def test_png_files_without_a_browser_say_how_to_get_them(
    prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(prompts_file, tmp_path / "out", "--limit", "1", "--repeat", "1") == 0
    out = capsys.readouterr().out
    assert "no PNG files: no browser that could draw the plots" in out
    assert "one repeat only" in out
    assert not list((tmp_path / "out").glob("*.png"))


def test_png_files_are_drawn_by_the_browser_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_browser", browser.chromium)
    figure = go.Figure(go.Bar(x=[1, 2], y=[3, 4])).update_layout(width=300, height=200)
    assert images.write({"bars": figure}, tmp_path) == ["bars.png"]
    with Image.open(tmp_path / "bars.png") as image:
        assert image.size == (300, 200)
        assert len(image.convert("RGB").getcolors(100_000) or ()) > 5  # bars and text, not an empty page


def test_a_browser_that_does_not_draw_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_browser", lambda: "/bin/false")
    with pytest.raises(UnavailableError, match="/bin/false did not draw bars; for PNG files, install Chromium"):
        images.write({"bars": go.Figure()}, tmp_path)


def test_no_browser_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images.shutil, "which", lambda name: None)
    with pytest.raises(UnavailableError, match="install Chromium or Chrome"):
        FIND_BROWSER()


def test_draft_lengths() -> None:
    assert parse_draft_lengths("2, 4,16,auto") == [2, 4, 16, "auto"]


def test_an_automatic_draft_length_is_compared_with_the_best_fixed_one(
    prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert bench(prompts_file, out, "--draft-lengths", "2,4,auto", "--methods", "ar,sps", "--repeat", "1") == 0
    report = json.loads((out / "report.json").read_text())
    assert [row["key"] for row in report["rows"]] == ["ar", "sps m=2", "sps m=4", "sps m=auto"]
    fixed = {row["key"]: row["speedup"]["median"] for row in report["rows"][1:3]}
    (found,) = report["automatic"]
    assert (found["ours"], found["peer"]) == ("sps m=auto", max(fixed, key=fixed.get))
    assert "## Automatic draft length" in (out / "report.md").read_text()
    assert "wall tokens/s" in capsys.readouterr().out


def test_joint_metrics_weigh_the_baseline_by_tokens(finished: Path) -> None:
    traces = [Trace.from_json(f.read_bytes()) for f in sorted((finished / "traces").glob("talk-sps*-r0-*.json"))]
    alone = sum(len(trace.tokens) * trace.baseline.seconds_per_token for trace in traces)
    joint = joint_metrics(traces)
    assert joint["speedup"] == pytest.approx(alone / joint["seconds"])
    assert joint["generated_tokens"] == sum(len(trace.tokens) for trace in traces)


def test_equality_in_words(finished: Path) -> None:
    @dataclass
    class Some:
        repeats: int
        unequal: list[tuple[str, str]]
        rows: tuple[()] = ()

    assert "not checked" in equality(Some(1, []))  # type: ignore[arg-type]
    assert "did not give equal tokens** in 1 cases: sps on p" in equality(Some(2, [("sps", "p")]))  # type: ignore[arg-type]
    automatic = Some(2, [])
    automatic.rows = (SimpleNamespace(label=Label(OURS, "sps", "m=auto", "auto")),)  # type: ignore[assignment]
    assert equality(automatic).endswith("(auto left out: it goes by measured times, so its drafts may differ)")  # type: ignore[arg-type]
