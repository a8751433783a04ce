"""A model on the model hub, where it can be reached.

Only safetensors, JSON and tokenizer files are taken: no pickles, no code. Respects huggingface_hub's settings
(HF_HUB_OFFLINE, HF_ENDPOINT, HF_HOME, a token).
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cactus.weights.process import Growth, run_thread
from cactus.weights.reach import HubProbe
from cactus.weights.source import Progress, SourceError, require_space

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
REACH_SECONDS = 2.0  # for a sign of life,
LOOK_SECONDS = 10.0  # and for what a repository holds: a slow hub is better than none
STALL_SECONDS = 60.0


class _NoBar(tqdm):  # type: ignore[type-arg]
    """The hub library's bar, not shown: our own progress is."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "disable": True})


@dataclass(frozen=True)
class HubSource:
    """One repository; `revision` is a commit, tag or branch, None the default branch as it is when fetched."""

    repo_id: str
    licence: str
    revision: str | None = None

    @property
    def key(self) -> str:
        return f"hub:{self.repo_id}@{self.revision or 'main'}"

    @property
    def origin(self) -> str:
        return f"{self.repo_id} (model hub, {self.licence})"

    @property
    def where(self) -> str:
        return f"the model hub ({self.repo_id})"

    def fetch(self, work: Path, progress: Progress) -> Path:
        """Ask what there is, with a short time limit, then download that commit."""
        progress(None, f"looking for {self.repo_id} on the model hub")
        info = look_up(self.repo_id, self.revision)
        size = wanted_bytes(info)
        require_space(work, size)
        folder = work / "snapshot"
        growth = Growth(work, size, STALL_SECONDS)

        def tick() -> None:
            growth.report(progress, f"downloading {self.repo_id}")

        run_thread(functools.partial(download, self.repo_id, info.sha, folder), tick)
        check_sums(info, folder)
        return folder


def look_up(repo_id: str, revision: str | None = None) -> Any:
    """What the repository holds, with sizes and commit. `SourceError` within `REACH_SECONDS` if the hub is silent."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        raise SourceError("switched off (HF_HUB_OFFLINE)")
    if HubProbe().state(REACH_SECONDS) != "reachable":
        raise SourceError("not reachable")
    found: list[Any] = []
    deadline = time.monotonic() + LOOK_SECONDS

    def ask() -> None:
        found.append(HfApi().model_info(repo_id, revision=revision, timeout=LOOK_SECONDS, files_metadata=True))

    def tick() -> None:
        if time.monotonic() > deadline:
            raise SourceError(f"not reachable (no answer within {LOOK_SECONDS:.0f} seconds)")

    try:
        run_thread(ask, tick)
    except SourceError:
        raise
    except Exception as error:  # a dozen types: names, certificates, gates, time limits
        raise SourceError(_reason(error)) from error
    return found[0]


def check_sums(info: Any, folder: Path) -> None:
    """`SourceError` naming a file that is not what the hub says it is; it says so of large ones only."""
    for listed in info.siblings:
        path, large = folder / listed.rfilename, listed.lfs
        if large is None or not path.is_file():
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != large.sha256:
                raise SourceError(f"{path.name} arrived damaged")


def wanted_bytes(info: Any, patterns: Sequence[str] = PATTERNS) -> int:
    """Size of the files that `download` would take."""
    return sum(file.size or 0 for file in info.siblings if wanted(file.rfilename, patterns))


def download(
    repo_id: str,
    commit: str | None = None,
    folder: Path | None = None,
    patterns: Sequence[str] = PATTERNS,
    again: bool = False,
) -> None:
    """The wanted files of a commit, by default the newest, into `folder` or into the hub library's cache.

    again: also those that are there already.
    """
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            repo_id,
            revision=commit,
            local_dir=folder,
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],
            tqdm_class=_NoBar,
            force_download=again,
        )
    except OSError as error:
        if error.errno is not None:  # the disk, not the hub
            raise
        raise SourceError(_reason(error)) from error
    except Exception as error:
        raise SourceError(_reason(error)) from error


def wanted(name: str, patterns: Sequence[str] = PATTERNS) -> bool:
    """Whether `download` would take this file."""
    return "/" not in name and any(fnmatch(name, pattern) for pattern in patterns)


def _reason(error: Exception) -> str:
    """The hub's errors in a few words; the rest of them is addresses and advice."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return "its owner lets only approved accounts download it"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision"
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or it is private"
    return f"not reachable ({type(error).__name__})"
