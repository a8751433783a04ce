"""Runs work that takes a while (a command, a download) and reports on it meanwhile."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cactus.weights.source import Progress, SourceError, megabytes

TICK_SECONDS = 0.2

Tick = Callable[[], None]
"""Called every fifth of a second while the work goes on; what it raises ends the wait."""


def run_command(command: Sequence[str], log: Path, tick: Tick, env: Mapping[str, str] | None = None) -> int:
    """The command's exit code; its output goes to `log`. It never outlives the call."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env
        )
        try:
            while process.poll() is None:
                tick()
                time.sleep(TICK_SECONDS)
            return process.returncode
        finally:
            process.kill()
            process.wait()


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
