"""The Space's front matter, the Docker image and the package's metadata, as far as they can be checked without any."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from huggingface_hub import RepoCard, SpaceCardData

from cactus.versions import __version__

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8")
COLORS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}  # what a Space's page can have


def front_matter() -> SpaceCardData:
    return SpaceCardData(**RepoCard.load(ROOT / "README.md", ignore_metadata_errors=False).data.to_dict())


def test_the_front_matter_is_that_of_a_gradio_space():
    card = front_matter()
    assert card.sdk == "gradio" and (ROOT / card.app_file).is_file()
    assert {card.get("colorFrom"), card.get("colorTo")} <= COLORS
    assert len(card.title) <= 100 and len(card.get("short_description")) <= 60 and len(card.get("emoji")) == 1
    assert card.license == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"].lower()


def test_the_space_installs_what_the_requirements_say():
    """Gradio comes with the Space's own version: one that the requirements allow, so that it is installed once."""
    wanted = re.search(r"^gradio~=(\d+\.\d+)\.", REQUIREMENTS, re.MULTILINE)
    assert wanted and front_matter().sdk_version.startswith(wanted[1] + ".")
    lowest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    assert front_matter().get("python_version") == lowest
    assert f"FROM python:{lowest}-slim" in DOCKERFILE


def test_the_image_copies_what_there_is_and_runs_as_an_ordinary_user():
    for line in re.findall(r"^COPY --chown=\d+ (.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()), line
    assert re.search(r"^USER 1000$", DOCKERFILE, re.MULTILINE)
    assert DOCKERFILE.index("USER 1000") < DOCKERFILE.index("pip install")


def test_the_image_leaves_out_tests_and_keeps_all_that_the_page_needs():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", "tests"} <= set(ignored)
    assert not {"cactus", "assets", "app.py", "requirements.txt", "README.md"} & set(ignored)


def test_the_dockerfile_passes_its_linter():
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if not linter:
        pytest.skip("hadolint is not installed (pip install -r requirements-dev.txt)")
    command = [linter, "--failure-threshold", "style", "--no-color", "-"]
    for text, passes in ((DOCKERFILE, True), (DOCKERFILE.replace("WORKDIR /home/user/app", "WORKDIR app"), False)):
        found = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert (found.returncode == 0) == passes, found.stdout + found.stderr


def test_one_version():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__
