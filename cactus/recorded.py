"""Runs recorded for showing without a model: compact trace files and an index of them.

Knows traces and files; nothing of models or pages. A recorded trace is an ordinary one, packed with gzip, its numbers
rounded to six digits; every verdict in it still follows from its own numbers.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cactus.documents import MAX_BYTES, TraceError
from cactus.errors import CactusError
from cactus.files import disk_faults, write_whole
from cactus.paths import ASSETS
from cactus.settings import DraftLength
from cactus.trace import Trace

RUNS = ASSETS / "runs"
INDEX = "index.json"
DIGITS = 6


@dataclass(frozen=True)
class RecordedRun:
    """One entry of the index. method: for people; key: method with parameters, as on the command line."""

    file: str
    title: str
    prompt: str
    method: str
    key: str
    num_draft_tokens: DraftLength
    seed: int
    tokens: int


def compact(trace: Trace) -> Trace:
    """The same trace with shorter numbers; where that would turn a verdict, its two numbers stay as they are."""
    record = trace.model_dump(by_alias=True)
    short = _rounded(record)
    for old, new in zip(record["rounds"], short["rounds"], strict=True):
        for token, other in zip(old["tokens"], new["tokens"], strict=True):
            if token["uniform"] is not None and (other["uniform"] < other["accept_prob"]) != (
                token["uniform"] < token["accept_prob"]
            ):
                other |= {"uniform": token["uniform"], "accept_prob": token["accept_prob"]}
    return Trace.model_validate(short)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return tuple(map(_rounded, value)) if isinstance(value, list | tuple) else value


def write(folder: Path, runs: Sequence[tuple[RecordedRun, Trace]], command: str) -> int:
    """All files, then the index, then those of an earlier recording are removed. Bytes in all."""
    with disk_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for run, trace in runs:
        text = compact(trace).model_dump_json(by_alias=True, exclude_none=True)
        write_whole(folder / run.file, gzip.compress(text.encode(), 9, mtime=0))
    index = {"command": command, "runs": [asdict(run) for run, _ in runs]}
    write_whole(folder / INDEX, json.dumps(index, ensure_ascii=False, indent=1) + "\n")
    for old in {path.name for path in folder.glob("*.json.gz")} - {run.file for run, _ in runs}:
        (folder / old).unlink()
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def index(folder: Path | None = None) -> list[RecordedRun]:
    """What there is to show; nothing where nothing was recorded. `CactusError` for a damaged index."""
    path = (folder or RUNS) / INDEX
    if not path.exists():
        return []
    try:
        return [RecordedRun(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))["runs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CactusError(f"{path} is no index of recorded runs ({error})") from None


def read(file: str, folder: Path | None = None) -> Trace:
    """The trace of one entry of the index; `CactusError` for any other name and for damaged files."""
    names = [run.file for run in index(folder)]
    if file not in names:
        raise CactusError(f"recorded run is {file!r:.60}; {', '.join(names) or 'none was recorded'}")
    try:
        return Trace.from_json(unpacked((folder or RUNS) / file))
    except (OSError, EOFError, zlib.error, TraceError) as error:
        raise CactusError(f"the recorded run {file} cannot be read: {error}") from None


def unpacked(path: Path) -> bytes:
    """A file's content, gunzipped where its name says so; of a very long one only the beginning, too long for a trace.

    `OSError`, `EOFError` or `zlib.error` for damaged files.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
