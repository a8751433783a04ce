"""A repository in the hub library's own cache: whether all of it is there and whole, and how it gets there.

The library takes a file that is there for whole, and a file that a killed process was downloading for nobody's. Here
sizes are compared with the listing that the library keeps, files that differ are downloaded again, and what killed
processes left is removed. Respects huggingface_hub's settings (HF_HUB_OFFLINE, HF_ENDPOINT, HF_HOME, HF_TOKEN).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cactus.weights import hub
from cactus.weights.process import Growth, run_thread
from cactus.weights.source import Progress, part, require_space


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


def altered(folder: Path, progress: Progress) -> dict[str, str]:
    """Files whose bytes are not those that their names in the cache promise: a SHA-256, or git's SHA-1."""
    found = {}
    files = sorted(path for path in folder.iterdir() if path.is_file() and hub.wanted(path.name))
    for index, path in enumerate(files):
        part(progress, index / len(files), 1.0)(0.0, f"reading {path.name}")
        if not _as_named(path.resolve()):
            found[path.name] = "is damaged: its checksum differs"
    return found


def download(
    repo_id: str, info: Any, patterns: Sequence[str], damaged: Sequence[str], progress: Progress, message: str
) -> None:
    """The wanted files of the newest commit, `damaged` ones anew; the others that are there stay.

    info: what the hub has, as `hub.look_up` tells. `SourceError` or `OSError` where that cannot be had.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    clear_leftovers(repo_id)
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
    """Names and sizes of a commit's files, where the library has kept them."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return {
            file.path: file.size for file in get_cached_repo_tree(repo_id, revision=commit, cache_dir=cache_folder())
        }
    except (CachedRepoTreeNotFoundError, OSError, ValueError):
        return {}


def _as_named(blob: Path) -> bool:
    with blob.open("rb") as file:
        if len(blob.name) == 64:
            return hashlib.file_digest(file, "sha256").hexdigest() == blob.name
        if len(blob.name) == 40:
            data = file.read()
            return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == blob.name
    return True  # no link into the cache: nothing is promised
