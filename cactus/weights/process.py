"""Runs work that takes a while (a command, a download) and reports on it meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cactus.weights import guard
from cactus.weights.source import Progress, SourceError, megabytes

TICK_SECONDS = 0.2

Tick = Callable[[], None]
"""Called every fifth of a second while the work goes on; what it raises ends the wait."""


def run_command(command: Sequence[str], tick: Tick, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The command's exit code and all that it wrote, kept in memory: a full disk has no room for it.

    It never outlives the call, nor this process, however that ends (`guard`).
    """
    # -P: the script's own folder holds modules of this package, which must not hide others of the same name.
    process = subprocess.Popen(
        [sys.executable, "-P", str(guard.__file__), *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
    )  # fmt: skip
    assert process.stdin and process.stdout
    output: list[bytes] = []
    reader = threading.Thread(target=lambda: output.extend(process.stdout), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            tick()
            time.sleep(TICK_SECONDS)
    finally:
        process.stdin.close()  # which ends the command, if it has not ended yet
        code = process.wait()
        reader.join()
        process.stdout.close()
    return code, b"".join(output).decode(errors="replace")


def run_thread(work: Callable[[], object], tick: Tick) -> None:
    """Run `work` in a thread that does not keep the interpreter alive; raise what it raises."""
    errors: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:  # handed to the waiting thread
            errors.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    while thread.is_alive():
        tick()
        thread.join(TICK_SECONDS)
    if errors:
        raise errors[0]


class Growth:
    """Watches the files below a folder grow towards `expected` bytes.

    `SourceError` once nothing has changed for `stall_seconds`.
    """

    def __init__(self, folder: Path, expected: int, stall_seconds: float) -> None:
        self.folder = folder
        self.expected = expected
        self.stall_seconds = stall_seconds
        self._seen = 0
        self._since = time.monotonic()

    def size(self) -> int:
        """Bytes that are there now; files that vanish meanwhile do not count."""
        return _folder_bytes(self.folder)

    def report(self, progress: Progress, message: str) -> None:
        """Tell `progress` how much is there now."""
        size = self.size()
        if size != self._seen:
            self._seen, self._since = size, time.monotonic()
        elif time.monotonic() - self._since > self.stall_seconds:
            raise SourceError(f"nothing arrived for {self.stall_seconds:.0f} seconds")
        done = min(size, self.expected)  # pip and the hub keep a second copy for a moment
        share = done / self.expected if self.expected else None
        progress(share, f"{message}: {megabytes(done)} of {megabytes(self.expected)}")


def _folder_bytes(folder: Path) -> int:
    """Size of all files below `folder`; files that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
