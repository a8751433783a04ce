"""A model on the model hub, where it can be reached.

Only safetensors, JSON and tokenizer files are taken: no pickles, no code. Respects huggingface_hub's settings
(HF_HUB_OFFLINE, HF_ENDPOINT, HF_HOME, a token).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cactus.weights.process import Growth, run_thread
from cactus.weights.source import Progress, SourceError, require_space

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
REACH_SECONDS = 4.0
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
        info = self._look_up()
        size = sum(file.size or 0 for file in info.siblings if _wanted(file.rfilename))
        require_space(work, size)
        folder = work / "snapshot"
        growth = Growth(work, size, STALL_SECONDS)

        def tick() -> None:
            growth.report(progress, f"downloading {self.repo_id}")

        run_thread(functools.partial(self._download, folder, info.sha), tick)
        return folder

    def _look_up(self) -> Any:
        from huggingface_hub import HfApi, constants

        if constants.HF_HUB_OFFLINE:
            raise SourceError("switched off (HF_HUB_OFFLINE)")
        try:
            return HfApi().model_info(self.repo_id, revision=self.revision, timeout=REACH_SECONDS, files_metadata=True)
        except Exception as error:  # a dozen types: names, certificates, gates, time limits
            raise SourceError(_reason(error)) from error

    def _download(self, folder: Path, commit: str | None) -> None:
        from huggingface_hub import snapshot_download

        try:
            snapshot_download(
                self.repo_id,
                revision=commit,
                local_dir=folder,
                allow_patterns=PATTERNS,
                ignore_patterns=["*/*"],
                tqdm_class=_NoBar,
            )
        except OSError as error:
            if error.errno is not None:  # the disk, not the hub
                raise
            raise SourceError(_reason(error)) from error
        except Exception as error:
            raise SourceError(_reason(error)) from error


def _wanted(name: str) -> bool:
    return "/" not in name and any(fnmatch(name, pattern) for pattern in PATTERNS)


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
