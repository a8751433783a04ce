"""A model as a person names it: a folder, a GGUF file, a hub id, or a GGUF file in a hub repository.

What is wrong with a name, a folder or a repository is said at once, by names and without folders. Models of the hub
are kept in the hub library's own cache: what other programs have downloaded is used, and offline too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cactus.errors import CactusError, UnavailableError
from cactus.places import place_name, without_folders
from cactus.weights import hub, hub_cache, snapshot
from cactus.weights.source import Progress, SourceError, silent
from cactus.weights.store import index_names

GGUF_MAGIC = b"GGUF"
SMALL = ["*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
LONGEST = 500
WAYS = "a hub id such as org/model, a folder, a .gguf file, or org/model:file.gguf"


class Files(NamedTuple):
    """Where a model lies on this machine: a folder, and its GGUF file if it is one."""

    folder: Path
    gguf: str = ""


@dataclass(frozen=True)
class Given:
    """One model. `repo_id` of the hub or `folder` here, the other one empty; `gguf`: the file, if it is one."""

    repo_id: str = ""
    folder: str = ""
    gguf: str = ""

    @property
    def name(self) -> str:
        """For people: without directories."""
        if self.repo_id:
            return f"{self.repo_id}:{self.gguf}" if self.gguf else self.repo_id
        return self.gguf or place_name(Path(self.folder))

    @property
    def size_bytes(self) -> int:
        """Of its weights, as far as they are here."""
        files = self.kept()
        return sum(file.stat().st_size for file in _weights(files)) if files else 0

    def kept(self) -> Files | None:
        """Where it is if all of it is on this machine."""
        files = self._small_kept()
        whole = files and _weights(files) and not _missing(files) and not self._faults(files, self._wanted(small=False))
        return files if whole else None

    def look(self, progress: Progress = silent) -> Files:
        """Its configuration and tokenizer, without the weights where that saves a download.

        `UnavailableError` within seconds where there is no such model, it is not in a format that is read, or the hub
        cannot be reached and has not been asked for it before.
        """
        if self.folder:
            files = Files(Path(self.folder), self.gguf)
            _check_local(files, self.name)
            return files
        kept = self.kept()
        if kept:
            return kept
        progress(None, f"looking for {self.repo_id} on the model hub")
        return self._named(lambda: self._download(self._info(), self._wanted(small=True), progress))

    def fetch(self, progress: Progress = silent) -> Files:
        """All of it, downloaded where it is not there yet."""
        kept = self.look(progress) if self.folder else self.kept()
        altered = self._altered(kept, progress) if kept else {}
        if kept and not altered:
            return kept
        try:
            return self._named(lambda: self._download(self._info(), self._wanted(small=False), progress))
        except UnavailableError as error:
            if not altered:
                raise
            raise UnavailableError(f"{hub_cache.in_words(altered)}: {error}") from error

    def _wanted(self, small: bool) -> list[str]:
        if self.gguf:
            return [self.gguf]  # configuration and tokenizer are in it
        return SMALL if small else hub.PATTERNS

    def _info(self) -> Any:
        info = hub.look_up(self.repo_id)
        _check_names([file.rfilename for file in info.siblings], self.gguf, self.name)
        return info

    def _altered(self, files: Files, progress: Progress) -> dict[str, str]:
        """What is no longer as the hub has given it."""
        if not self.repo_id:
            return {}
        return snapshot.altered(self.repo_id, files.folder, progress, self._wanted(small=False))

    def _download(self, info: Any, patterns: Sequence[str], progress: Progress) -> Files:
        there = self._small_kept()
        faults = self._faults(there, patterns) | self._altered(there, progress) if there else {}
        damaged = [name for name in faults if (there.folder / name).exists()]
        snapshot.download(self.repo_id, info, patterns, damaged, progress, f"downloading {self.name}")
        files = self._small_kept()
        left = self._faults(files, patterns) if files else {"its configuration": "is missing"}
        if files is None or left:
            raise SourceError(hub_cache.in_words(left))
        return files

    def _faults(self, files: Files, patterns: Sequence[str]) -> dict[str, str]:
        """What is wrong with its files in the hub library's cache."""
        return snapshot.faults(self.repo_id, files.folder, patterns) if self.repo_id else {}

    def _small_kept(self) -> Files | None:
        """The folder, or the newest snapshot in the hub library's cache."""
        if self.folder:
            return Files(Path(self.folder), self.gguf)
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(self.repo_id, self.gguf or "config.json")
        return Files(Path(file).parent, self.gguf) if isinstance(file, str) else None

    def _cure(self, error: SourceError) -> str:
        from huggingface_hub.errors import GatedRepoError

        if isinstance(error.__cause__, GatedRepoError):
            return hub_cache.how_to_get_gated(self.repo_id)
        return "check its spelling, or give a folder or a .gguf file on this machine"

    def _named(self, work: Callable[[], Files]) -> Files:
        try:
            return work()
        except SourceError as error:
            raise UnavailableError(
                f"{self.name} cannot be had from the model hub: {error}; {self._cure(error)}"
            ) from error
        except OSError as error:
            raise UnavailableError(f"{self.name} cannot be kept: {without_folders(str(error))}") from error


def parse_model(text: str | Path, what: str = "model") -> Given:
    """What a text means, called `what` in messages; `CactusError` or `UnavailableError` says why it can be no model."""
    text = str(text).strip()
    if not text or len(text) > LONGEST or any(ord(letter) < 32 for letter in text):
        raise CactusError(f"the {what} is {text[:40]!r}; {WAYS} is needed")
    path = Path(text).expanduser()
    try:
        if path.is_dir():
            return Given(folder=str(path.resolve()))
        if path.is_file():
            return _file(path)
    except OSError as error:
        raise UnavailableError(f"{place_name(path)} cannot be read: {error.strerror}") from error
    if path.is_absolute() or text.startswith((".", "~")) or text.count("/") > 1 or "\\" in text:
        raise UnavailableError(f"there is no file or folder {path.name!r} here; {WAYS} is needed")
    return _hub_id(text)


def _file(path: Path) -> Given:
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != GGUF_MAGIC:
        raise UnavailableError(
            f"{path.name} is not a GGUF file; of single files only these are read (safetensors come in a folder with "
            "their config.json and tokenizer)"
        )
    path = path.resolve()
    return Given(folder=str(path.parent), gguf=path.name)


def _hub_id(text: str) -> Given:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    repo_id, _, file = text.partition(":")
    if repo_id.endswith(".gguf"):
        raise UnavailableError(f"there is no file {repo_id!r} here; {WAYS} is needed")
    if ":" in text and (not file.endswith(".gguf") or "/" in file):
        raise CactusError(f"{text!r} names no GGUF file behind the colon; {WAYS} is needed")
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        raise CactusError(f"{text!r} is no model; {WAYS} is needed") from None
    return Given(repo_id=repo_id, gguf=file)


def _check_local(files: Files, name: str) -> None:
    try:
        _check_names([file.name for file in files.folder.iterdir() if file.is_file()], files.gguf, name)
        missing = _missing(files)
    except SourceError as error:
        raise UnavailableError(f"{name} cannot be loaded: {error}") from error
    except OSError as error:
        raise UnavailableError(f"{name} cannot be read: {error.strerror}") from error
    if missing:
        raise UnavailableError(f"{name} cannot be loaded: {missing[0]} is missing; download it again")


def _check_names(names: Collection[str], gguf: str, name: str) -> None:
    """`SourceError` if these files are no model that is read here."""
    packed = sorted(file for file in names if file.endswith(".gguf"))
    if gguf:
        if gguf not in names:
            raise SourceError(f"there is no {gguf} in it" + (f"; it has {_listed(packed)}" if packed else ""))
    elif "adapter_config.json" in names and "config.json" not in names:
        raise SourceError("it is an adapter (PEFT), which needs its base model: merge the two and save them")
    elif "config.json" not in names and packed:
        raise SourceError(f"it holds GGUF files; name one of them: {_listed(packed)}")
    elif "config.json" not in names:
        raise SourceError("it has no config.json, so it is no model in transformers' format")
    elif not any(file.endswith(".safetensors") for file in names):
        other = sorted(file for file in names if file.endswith((".bin", ".pt", ".pth", ".h5", ".msgpack")))
        found = f" ({other[0]} is not read: it can carry code)" if other else ""
        raise SourceError(f"it has no safetensors{found}; convert it, or take a copy that has them")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _weights(files: Files) -> list[Path]:
    if files.gguf:
        return [file] if (file := files.folder / files.gguf).is_file() else []
    return sorted(files.folder.glob("*.safetensors"))


def _missing(files: Files) -> list[str]:
    """Shards that the index names and that are not there."""
    if files.gguf:
        return []
    try:
        return sorted(name for name in index_names(files.folder) if not (files.folder / name).exists())
    except SourceError:
        return ["model.safetensors.index.json, whole,"]
