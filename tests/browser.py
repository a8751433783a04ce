"""Chromium and servers for the tests that look at the page. Where there is no Chromium they skip; in CI they fail."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WAIT = 60_000  # milliseconds, for slow machines; nothing is timed


def chromium() -> str:
    """Path of the browser, or the reason for going without."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail("no Chromium found, and CI is set: install Debian's `chromium` package")
    pytest.skip("no Chromium found: install Debian's `chromium` package to run the browser tests")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def app_process(*args: str) -> Iterator[str]:
    """`python app.py` on a free port, until the block ends."""
    port = free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith("GRADIO_")}
    command = [sys.executable, "app.py", "--port", str(port), *args]
    process = subprocess.Popen(
        command, cwd=ROOT, env=env | {"GRADIO_ANALYTICS_ENABLED": "False"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(address, process)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_for(address: str, process: subprocess.Popen[str], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"app.py ended with {process.returncode}:\n{process.stdout.read() if process.stdout else ''}")
        try:
            with urllib.request.urlopen(address + "/config", timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail("app.py did not answer in time")
