"""The cache on disk: complete folders, each with a manifest, published in one step and checked when used.

Knows nothing of where weights come from. A folder is built in a hidden workspace beside its final place and renamed
when everything is on disk, so that a killed process or a full disk leaves either the old copy or none, never half.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from cactus.files import sync
from cactus.weights.source import Progress, Source, SourceError

if TYPE_CHECKING:
    from filelock import BaseFileLock

MANIFEST = "manifest.json"
LOCK_POLL_SECONDS = 1.0


def cache_folder() -> Path:
    """`$CACTUS_CACHE`, else `cactus` in `$XDG_CACHE_HOME`, else `~/.cache/cactus`. Not created here."""
    if own := os.environ.get("CACTUS_CACHE"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(shared).expanduser().absolute() / "cactus"


class FileRecord(BaseModel):
    """What a whole file looks like."""

    size: int
    mtime_ns: int
    sha256: str


class Manifest(BaseModel):
    """Written last into a folder: what is in it, from where, made with what."""

    layout: Literal["cactus-weights/1"] = "cactus-weights/1"
    key: str
    origin: str
    versions: dict[str, str]
    files: dict[str, FileRecord]
    digest: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it is as it was written, of which `digest` is the SHA-256; early ones had none."""
        return self.digest in ("", self._digest())

    def signed(self) -> Manifest:
        return self.model_copy(update={"digest": self._digest()})

    def _digest(self) -> str:
        return hashlib.sha256(self.model_dump_json(exclude={"digest"}).encode()).hexdigest()


class Store:
    """The place of the weights `name` below `root`."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.folder = root / name

    def manifest(self) -> Manifest:
        """OSError or ValueError if there is no usable one."""
        manifest = Manifest.model_validate_json((self.folder / MANIFEST).read_bytes())
        if not manifest.is_whole:
            raise ValueError(f"{MANIFEST} is damaged")
        return manifest

    def fault(self, keys: Sequence[str], verify: bool = False) -> str | None:
        """Why the kept copy cannot be used, or None. `verify` hashes every file whatever its size and time."""
        if not self.folder.exists():
            return "not in the cache yet"
        try:
            manifest = self.manifest()
        except (OSError, ValueError):
            return "the kept copy is damaged (manifest)"
        if manifest.key not in keys:
            return f"the kept copy is of another version ({manifest.origin})"
        for name, record in manifest.files.items():
            if not _is_whole(self.folder / name, record, verify):
                return f"the kept copy is damaged ({name})"
        return None

    @contextmanager
    def locked(self, progress: Progress) -> Iterator[None]:
        """One process (and thread) at a time; the lock goes with its process. Clears what killed ones left."""
        from filelock import Timeout

        self.root.mkdir(parents=True, exist_ok=True)
        lock = self._lock()
        while True:
            try:
                lock.acquire(timeout=LOCK_POLL_SECONDS)
                break
            except Timeout:
                progress(None, f"another process is fetching {self.name}; waiting for it")
        try:
            self._clear_leftovers()
            yield
        finally:
            lock.release()

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """An empty folder on the same disk, gone afterwards."""
        work = Path(tempfile.mkdtemp(prefix=f".{self.name}.partial-", dir=self.root))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def publish(self, folder: Path, source: Source) -> None:
        """Check `folder`, write its manifest and put it in place of what is kept. Needs the lock."""
        require_complete(folder)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        manifest = Manifest(
            key=source.key,
            origin=source.origin,
            versions=_versions(),
            files={path.name: _settle(path) for path in files},
        )
        path = folder / MANIFEST
        path.write_text(manifest.signed().model_dump_json(indent=2) + "\n")
        sync(path)
        folder.chmod(0o755)
        sync(folder)
        if self.folder.exists():
            self.folder.replace(folder.parent / "replaced")  # goes with the workspace
        folder.replace(self.folder)
        sync(self.root)

    def tidy(self) -> None:
        """Clear what a process left that was killed right after it published. Waits for nobody, and fails in silence:
        the cache may be read-only."""
        from filelock import Timeout

        if not self._leftovers():
            return
        try:
            with self._lock().acquire(timeout=0):
                self._clear_leftovers()
        except (Timeout, OSError):
            return

    def _lock(self) -> BaseFileLock:
        from filelock import FileLock

        return FileLock(self.root / f".{self.name}.lock")

    def _leftovers(self) -> list[Path]:
        return list(self.root.glob(f".{self.name}.partial-*"))

    def _clear_leftovers(self) -> None:
        for path in self._leftovers():
            shutil.rmtree(path, ignore_errors=True)


def require_complete(folder: Path) -> None:
    """`SourceError` unless the folder has a configuration, a tokenizer and readable safetensors."""
    require_files(folder)
    for name, why in unreadable(folder).items():
        raise SourceError(f"{name} is damaged: {why}")


def require_files(folder: Path) -> None:
    """`SourceError` unless all files that a model needs are there, whatever is in them."""
    names = {path.name for path in folder.iterdir()}
    if "config.json" not in names:
        raise SourceError("it has no config.json")
    if not names & {"tokenizer.json", "tokenizer.model", "vocab.json"}:
        raise SourceError("it has no tokenizer")
    if not any(name.endswith(".safetensors") for name in names) or not index_names(folder) <= names:
        raise SourceError("its safetensors are not complete")


def unreadable(folder: Path) -> dict[str, str]:
    """Files that are cut short or no longer what their names say, and why. Numbers that were altered are not seen."""
    from pydantic_core import from_json
    from safetensors import SafetensorError, safe_open

    found = {}
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        try:
            if path.suffix == ".json":
                from_json(path.read_bytes())
            else:
                with safe_open(path, framework="numpy"):
                    pass
        except (SafetensorError, OSError, ValueError) as error:
            found[path.name] = str(error)
    return found


def index_names(folder: Path) -> set[str]:
    """The shards that must be there."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return set()
    try:
        return set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{index.name} is damaged") from error


def _is_whole(path: Path, record: FileRecord, verify: bool) -> bool:
    """Size and time as recorded, else the bytes: an image layer or a copy keeps the bytes but not always the time."""
    try:
        stat = path.stat()
        if stat.st_size != record.size:
            return False
        return (stat.st_mtime_ns == record.mtime_ns and not verify) or _sha256(path) == record.sha256
    except OSError:
        return False


def _settle(path: Path) -> FileRecord:
    """Get the file onto the disk, readable for all (safetensors are written for their owner only)."""
    path.chmod(0o644)
    sync(path)
    stat = path.stat()
    return FileRecord(size=stat.st_size, mtime_ns=stat.st_mtime_ns, sha256=_sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _versions() -> dict[str, str]:
    versions = {}
    for package in ("torch", "transformers", "safetensors", "gguf", "huggingface_hub"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
