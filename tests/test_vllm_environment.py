"""The plugin against vLLM itself, in vLLM's own environment."""

from __future__ import annotations

import re
import subprocess

from vllm_python import ROOT, vllm_environ, vllm_python


def test_the_plugin_holds_in_vllm() -> None:
    command = [vllm_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/in_vllm"]
    told = subprocess.run(command, cwd=ROOT, env=vllm_environ(), capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stdout + told.stderr
    assert int(re.search(r"(\d+) passed", told.stdout).group(1)) > 20  # type: ignore[union-attr]


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    code = (
        "from importlib.metadata import entry_points\n"
        "[plugin] = [one for one in entry_points(group='vllm.general_plugins') if one.name == 'cactus']\n"
        "print(plugin.load().__module__)"
    )
    told = subprocess.run([vllm_python(), "-c", code], capture_output=True, text=True, env=vllm_environ())
    assert told.stdout.strip() == "cactus.vllm", told.stderr
