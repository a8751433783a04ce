"""Files and folders written whole or not at all.

What is new is written beside its place, put onto the disk, and renamed over what was there: a killed process or a full
disk leaves the old or the new, never half, and at most one `.partial` that the next write takes over. What is wrong
with a disk is named with the folder and the cure. Knows nothing of what is written.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cactus.errors import UnavailableError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PARTIAL = ".partial"


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace the file, or write into what is none (a pipe, a terminal). `UnavailableError` names a disk's fault."""
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))  # of a link, what it leads to
    with disk_faults(target, len(data)):
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)


def append_line(path: Path, line: str) -> None:
    """Add a line at once. One that a full disk or a kill cuts short has no line break at its end."""
    data = line.encode() + b"\n"
    with disk_faults(path, len(data)), path.open("ab") as file:
        file.write(data)


def _replace(target: Path, data: bytes) -> None:
    partial = target.with_name(target.name + _PARTIAL)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
        sync(target.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def filling(folder: Path, last: str, old: str = "") -> Iterator[Path]:
    """An empty place whose files replace those of `folder` in the end, and those there that the pattern `old` names.

    Until then the folder stays as it was. While files change places it lacks `last`, without which nobody takes it
    for whole. `UnavailableError` names a disk's fault.
    """
    place = folder / _PARTIAL
    with disk_faults(folder):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            yield place
            _move(place, folder, last, old)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _move(place: Path, folder: Path, last: str, old: str) -> None:
    made = sorted(place.iterdir(), key=lambda path: path.name == last)
    for path in made:
        path.chmod(0o644)  # libraries write for the owner alone; that would not survive a copy into an image
        sync(path)
    (folder / last).unlink(missing_ok=True)
    for path in folder.glob(old) if old else ():
        path.unlink()
    for path in made:
        path.replace(folder / path.name)
    sync(folder)


@contextmanager
def disk_faults(path: Path, needed: int = 0) -> Iterator[None]:
    """`UnavailableError` for what the disk refuses at `path`, of which `needed` bytes are to be written."""
    try:
        yield
    except Exception as error:
        if is_full(error):
            raise UnavailableError(_no_room(path, needed)) from error
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise UnavailableError(f"{path.name} cannot be written in {path.parent}: {reason}") from error
        raise


def is_full(error: Exception) -> bool:
    """Whether it says that a disk is full; libraries in other languages say it in words of their own."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return os.strerror(errno.ENOSPC) in str(error)


def _no_room(path: Path, needed: int) -> str:
    figures = []
    if needed:
        figures.append(f"{needed / 1e6:,.2f} MB needed")
    with suppress(OSError):
        figures.append(f"{shutil.disk_usage(path.parent).free / 1e6:,.2f} MB free")
    return (
        f"no room on the disk for {path.name} in {path.parent} ({', '.join(figures)}): free some, or choose a folder "
        "on another disk"
    )


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    if os.name != "posix":  # elsewhere folders cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
