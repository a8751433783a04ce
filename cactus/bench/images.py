"""Figures as PNG files, drawn by a Chromium or Chrome that is on this machine; nothing is downloaded for it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

from cactus.bench.plots import HEIGHT, PLOTLY_JS, WIDTH, page
from cactus.errors import UnavailableError
from cactus.files import write_whole

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
SECONDS = 60
HELP = f"for PNG files, install Chromium or Chrome so that one of {', '.join(BROWSERS)} can be found"


def find_browser() -> str:
    """The browser's path; `UnavailableError` says how to get one."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise UnavailableError(f"no browser that could draw the plots; {HELP}")


def write(made: Mapping[str, go.Figure], folder: Path) -> list[str]:
    """One PNG for each figure; the names of the files. `UnavailableError` where there is no browser that can."""
    browser = find_browser()
    return [_shoot(browser, name, figure, folder) for name, figure in made.items()]


def _shoot(browser: str, name: str, figure: go.Figure, folder: Path) -> str:
    size = f"{figure.layout.width or WIDTH},{figure.layout.height or HEIGHT}"
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "figure.html", Path(scratch) / f"{name}.png"
        source.write_text(page({name: figure}, name, PLOTLY_JS.as_uri(), buttons=False), encoding="utf-8")
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--allow-file-access-from-files", "--virtual-time-budget=4000", f"--window-size={size}",
            f"--user-data-dir={scratch}/profile", f"--screenshot={target}", source.as_uri(),
        ]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"{browser} did not draw {name}: {error}; {HELP}") from None
        if not target.exists():
            raise UnavailableError(f"{browser} did not draw {name}; {HELP}")
        write_whole(folder / target.name, target.read_bytes())
    return target.name
