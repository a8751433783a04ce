"""What a server takes on, by flags; what it never does: run code that comes with a model, or unpickle weights."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import app
from cactus.errors import CactusError
from cactus.limits import MAX_NEW_TOKENS, MAX_PROMPT_CHARACTERS, MAX_UPLOAD_BYTES, Limits
from cactus.request import RunRequest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_runs": 0}, "max_runs is 0; whole numbers from 1 to 32"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"max_pairs": 17}, "max_pairs is 17"),
        ({"max_seconds": -1.0}, "max_seconds is -1.0; 0 or more"),
        ({"max_seconds": math.nan}, "max_seconds is nan"),
        ({"max_new_tokens": MAX_NEW_TOKENS + 1}, "max_new_tokens is 2049"),
        ({"max_prompt_characters": 0}, "max_prompt_characters is 0"),
    ],
)
def test_limits_out_of_range_are_named(changes, message):
    with pytest.raises(CactusError, match=message):
        Limits(**changes)


def test_flags_set_the_limits_and_a_bad_one_ends_the_start(capsys, monkeypatch):
    monkeypatch.setattr("cactus.ui.space.IS_SPACE", False)
    assert app.parse_args([]).limits == Limits()
    flags = ["--max-runs", "2", "--max-waiting", "5", "--max-seconds", "9.5", "--public"]
    assert app.parse_args(flags).limits == Limits(max_runs=2, max_waiting=5, max_seconds=9.5, public=True)
    with pytest.raises(SystemExit) as ended:
        app.parse_args(["--max-runs", "99"])
    assert ended.value.code == 2 and "max_runs is 99; whole numbers from 1 to 32 are allowed" in capsys.readouterr().err


def test_a_space_is_public_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr("cactus.ui.space.IS_SPACE", True)
    assert app.parse_args([]).limits.public
    assert not app.parse_args(["--no-public"]).limits.public


def test_in_public_no_file_gets_onto_the_disk():
    assert Limits().max_upload_bytes == MAX_UPLOAD_BYTES
    assert Limits(public=True).max_upload_bytes == 1


def test_a_request_within_the_bounds_of_all_may_be_beyond_those_of_a_server():
    request = RunRequest(prompt="x" * 50, max_new_tokens=100)
    request.check(Limits())
    with pytest.raises(CactusError, match="max_new_tokens is 100; up to 64 are allowed here"):
        request.check(Limits(max_new_tokens=64))
    with pytest.raises(CactusError, match="50 characters; at most 49 are allowed here"):
        request.check(Limits(max_prompt_characters=49))
    with pytest.raises(CactusError, match="at most 100,000"):
        RunRequest(prompt="x" * MAX_PROMPT_CHARACTERS, system="y")


def calls() -> Iterator[tuple[str, str, dict[str, ast.expr]]]:
    """Every call in the project's own code: where, what, and its named arguments."""
    for path in [ROOT / "app.py", *sorted((ROOT / "cactus").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                named = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
                yield f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.func), named


def test_code_that_comes_with_a_model_is_never_run():
    loads = [
        (where, named)
        for where, what, named in calls()
        if what.startswith("Auto") and what.endswith(".from_pretrained")
    ]
    assert len(loads) >= 4
    wrong = [where for where, named in loads if ast.unparse(named.get("trust_remote_code", ast.Name("?"))) != "False"]
    assert wrong == []
    assert [
        where for where, _, named in calls() if ast.unparse(named.get("trust_remote_code", ast.Name("?"))) == "True"
    ] == []


def test_weights_are_never_unpickled():
    """torch.load is for a training's own checkpoints, and takes tensors only."""
    loads = [(where, named) for where, what, named in calls() if what == "torch.load"]
    assert all(ast.unparse(named["weights_only"]) == "True" for _, named in loads)
    for path in (ROOT / "cactus").rglob("*.py"):
        imported = {name.name for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Import)
                    for name in node.names}  # fmt: skip
        assert not imported & {"pickle", "dill", "joblib", "marshal"}, path
