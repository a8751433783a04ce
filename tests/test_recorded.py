"""Recorded runs: made by a command, small, consistent, and played by the page without a model."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import ui_fakes

from cactus import cli, recorded, session
from cactus.commands import record
from cactus.errors import CactusError
from cactus.trace import Trace
from cactus.ui.desk import Desk
from cactus.ui.replay import NO_RECORD, ReplayHandlers, recordings

FLAGS = ["--methods", "ar,cactus:delta=0.2", "--prompt", "the cat", "--prompt", "a dog", "--max-new-tokens", "12"]


def tiny_session(device: str, dtype: str, limits: object) -> session.Session:
    return session.Session(device, dtype, limits, load_pair=lambda spec, progress: tiny.pair())


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording that all tests start from."""
    folder = tmp_path_factory.mktemp("recording") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "Session", tiny_session)
        assert cli.main(["record", *FLAGS, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def folder(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in the place where the page looks."""
    monkeypatch.setattr(record, "Session", tiny_session)
    monkeypatch.setattr(recorded, "RUNS", tmp_path / "runs")
    return Path(shutil.copytree(recording, tmp_path / "runs"))


def test_every_method_on_every_prompt_with_one_seed(folder: Path) -> None:
    runs = recorded.index()
    assert [(run.key, run.prompt) for run in runs] == [
        ("ar", "the cat"), ("cactus:delta=0.2", "the cat"), ("ar", "a dog"), ("cactus:delta=0.2", "a dog"),
    ]  # fmt: skip
    assert runs[1].title == "Cactus, delta = 0.2 · the cat"
    for run in runs:
        trace = recorded.read(run.file)
        assert (trace.prompt, trace.seed, len(trace.tokens)) == (run.prompt, 0, run.tokens)
        assert trace.num_draft_tokens == run.num_draft_tokens and trace.metrics().speedup is not None
    command = json.loads((folder / "index.json").read_text())["command"]
    assert command.startswith("python -m cactus record --pair") and str(folder) not in command


def test_recording_again_gives_the_same_tokens_and_leaves_no_old_file(folder: Path) -> None:
    def texts() -> list[str]:
        return [recorded.read(run.file).text for run in recorded.index()]

    before = texts()
    (folder / "9-old.json.gz").write_bytes(b"")
    assert cli.main(["record", *FLAGS, "--out", str(folder)]) == 0
    assert texts() == before and not (folder / "9-old.json.gz").exists()


def test_a_compact_trace_is_smaller_and_keeps_every_verdict(folder: Path) -> None:
    trace = ui_fakes.make_trace(20)
    place, old = next((i, r) for i, r in enumerate(trace.rounds) if r.tokens[0].status == "accepted")
    near = old.tokens[0].model_copy(update={"accept_prob": 0.12345678, "uniform": 0.12345671})  # equal once rounded
    changed = old.model_copy(update={"tokens": (near, *old.tokens[1:])})
    trace = trace.model_copy(update={"rounds": (*trace.rounds[:place], changed, *trace.rounds[place + 1 :])})
    assert trace.check() == []
    short = recorded.compact(trace)
    assert short.check() == [] and short.rounds[place].tokens[0].uniform == 0.12345671
    assert short.text == trace.text and len(short.to_json()) < len(trace.to_json())
    assert short.metrics().speedup == pytest.approx(trace.metrics().speedup, rel=1e-4)
    path = next(folder.glob("*.gz"))
    assert Trace.from_json(gzip.decompress(path.read_bytes())).schema_ == "cactus-trace/1"


def test_other_files_are_not_read(folder: Path) -> None:
    with pytest.raises(CactusError, match="recorded run is '../x'; 1-ar"):
        recorded.read("../x")
    (folder / recorded.index()[0].file).write_bytes(b"no gzip")
    with pytest.raises(CactusError, match="cannot be read"):
        recorded.read(recorded.index()[0].file)


def test_without_an_index_there_is_no_menu(folder: Path) -> None:
    assert len(recordings()) == 4
    (folder / "index.json").write_text("[]")
    assert recordings() == []
    (folder / "index.json").unlink()
    assert recorded.index() == [] and recordings() == []
    with pytest.raises(CactusError, match="none was recorded"):
        recorded.read("1-ar.json.gz")


def play(file: str) -> list[tuple[str, ...]]:
    async def collect() -> list[tuple[str, ...]]:
        replay = ReplayHandlers(Desk())
        request = SimpleNamespace(session_hash="tab")
        return [shown async for shown in replay.recorded(request, file, "4×")]

    return asyncio.run(collect())


def test_the_page_plays_a_recorded_run_without_a_model(folder: Path) -> None:
    run = recorded.index()[1]
    trace = recorded.read(run.file)
    lines = [json.loads(line) for line in play(run.file)[-1][0].splitlines()]
    assert [line["round"] for line in lines if "round" in line] == list(range(1, len(trace.rounds) + 1))
    assert f"{run.tokens} tokens in {len(trace.rounds)} rounds" in lines[-1]["end"]


def test_the_page_says_what_is_wrong_with_a_recorded_run(folder: Path) -> None:
    (line,) = [json.loads(line) for line in play("x")[-1][0].splitlines() if "end" in line]
    assert line["failed"] and "recorded run is 'x'" in line["end"]
    assert len(play(NO_RECORD)) == 1  # the menu's first line leaves everything as it is


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--methods nope", "method is 'nope'"),
        ("--pair nope", "pair is 'nope'"),
        ("--draft-length 0", "num_draft_tokens is 0"),
        ("--max-new-tokens 0", "max_new_tokens is 0"),
        ("--temperature -1", "temperature must be"),
        ("--out setup.cfg", "a folder is needed"),
    ],
)
def test_bad_input_is_one_line(
    flags: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup.cfg").touch()
    assert cli.main(["record", *flags.split()]) == 2
    assert message in (error := capsys.readouterr().err) and error.count("\n") == 1
