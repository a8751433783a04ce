"""A repository in the hub library's own cache: whether all of it is there and whole, and how it gets there.

The library takes a file that is there for whole, and a file that a killed process was downloading for nobody's. Here
sizes and bytes are compared with what the hub has told, files that differ are downloaded again, and what killed
processes left is removed. Respects huggingface_hub's settings (HF_HUB_OFFLINE, HF_ENDPOINT, HF_HOME, HF_TOKEN).
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cactus.errors import UnavailableError
from cactus.files import write_whole
from cactus.weights import hub, store
from cactus.weights.process import Growth, run_thread
from cactus.weights.source import Progress, part, require_space

_SHA1, _SHA256 = 40, 64  # digits


def cache_folder() -> Path:
    """Where the hub's library keeps models."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def faults(repo_id: str, folder: Path, patterns: Sequence[str] = hub.PATTERNS) -> dict[str, str]:
    """Wanted files of a snapshot that are missing or of another size than the hub listed, and which of the two.

    Empty where all are whole, and where another program has left no listing.
    """
    found = {}
    for name, size in _listed(repo_id, folder.name).items():
        if hub.wanted(name, patterns):
            path = folder / name
            if not path.is_file():
                found[name] = "is missing"
            elif path.stat().st_size != size:
                found[name] = "is damaged: its size differs"
    return found


def altered(
    repo_id: str, folder: Path, progress: Progress, patterns: Sequence[str] = hub.PATTERNS, verify: bool = False
) -> dict[str, str]:
    """Files whose bytes are not those that their names in the cache promise: a SHA-256, or git's SHA-1.

    One that was read before is read again if its size or time is another since, or to `verify`.
    """
    found, seen = {}, _seen(repo_id)
    files = sorted(path for path in folder.iterdir() if path.is_file() and hub.wanted(path.name, patterns))
    for index, path in enumerate(files):
        blob = path.resolve()
        if len(blob.name) not in (_SHA1, _SHA256):  # no link into the cache: nothing is promised
            continue
        if not verify and seen.get(blob.name) == _stamp(blob):
            continue
        part(progress, index / len(files), 1.0)(0.0, f"reading {path.name}")
        if _as_named(blob):
            seen[blob.name] = _stamp(blob)
        else:
            found[path.name] = "is damaged: its checksum differs"
    _remember(repo_id, seen)
    return found


def _stamp(blob: Path) -> list[int]:
    stat = blob.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _seen(repo_id: str) -> dict[str, list[int]]:
    try:
        return dict(json.loads(_record(repo_id).read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def _remember(repo_id: str, seen: dict[str, list[int]]) -> None:
    """If that cannot be, they are read again the next time."""
    if seen != _seen(repo_id):
        with suppress(OSError, UnavailableError):
            _record(repo_id).parent.mkdir(parents=True, exist_ok=True)
            write_whole(_record(repo_id), json.dumps(seen))


def _record(repo_id: str) -> Path:
    return store.cache_folder() / "read" / f"{_repository(repo_id).name}.json"


def download(
    repo_id: str, info: Any, patterns: Sequence[str], damaged: Sequence[str], progress: Progress, message: str
) -> None:
    """The wanted files of the newest commit, `damaged` ones anew; the others that are there stay.

    info: what the hub has, as `hub.look_up` tells. `SourceError` or `OSError` where that cannot be had.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    clear_leftovers(repo_id)
    _make_way(repo_id, info.sha)
    size = hub.wanted_bytes(info, patterns)
    growth = Growth(_repository(repo_id) / "blobs", size, hub.STALL_SECONDS)
    require_space(cache, size - growth.size())

    def tick() -> None:
        growth.report(progress, message)

    if damaged:
        run_thread(functools.partial(hub.download, repo_id, patterns=damaged, again=True), tick)
    run_thread(functools.partial(hub.download, repo_id, patterns=patterns), tick)


def clear_leftovers(repo_id: str) -> None:
    """Remove the beginnings of downloads whose process is gone: nothing goes on with them."""
    from filelock import FileLock, Timeout

    locks = cache_folder() / ".locks" / _repository(repo_id).name
    for path in _repository(repo_id).glob("blobs/*.incomplete"):
        lock = locks / f"{path.name.partition('.')[0]}.lock"
        with suppress(Timeout, OSError):
            if not lock.exists():
                path.unlink()
                continue
            with FileLock(lock).acquire(timeout=0):  # nobody holds it, so nobody writes there
                path.unlink()


def _repository(repo_id: str) -> Path:
    return cache_folder() / f"models--{repo_id.replace('/', '--')}"


def _listed(repo_id: str, commit: str) -> dict[str, int]:
    """Names and sizes of a commit's files, where the library has kept them. (Its own reader never reads them again,
    so that what is damaged would stay so until the process ends.)"""
    try:
        files = json.loads(_listing(repo_id, commit).read_bytes())["files"]
        return {str(name): int(file["size"]) for name, file in files.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _listing(repo_id: str, commit: str) -> Path:
    return _repository(repo_id) / "trees" / f"{commit}.json"


def _make_way(repo_id: str, commit: str) -> None:
    """The listing is asked for again, and nothing but files is where files belong."""
    repository = _repository(repo_id)
    snapshot = repository / "snapshots" / commit
    names = [path for path in snapshot.glob("*") if hub.wanted(path.name) or path.suffix == ".gguf"]
    for path in (*names, repository / "refs" / "main", *repository.glob("blobs/*")):
        if path.is_dir():
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
    shutil.rmtree(_listing(repo_id, commit), ignore_errors=True)
    _listing(repo_id, commit).unlink(missing_ok=True)


def _as_named(blob: Path) -> bool:
    with blob.open("rb") as file:
        if len(blob.name) == _SHA256:
            return hashlib.file_digest(file, "sha256").hexdigest() == blob.name
        data = file.read()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == blob.name
