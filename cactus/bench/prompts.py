"""Benchmark prompts: reading a JSONL file of them, and choosing some evenly over their kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from cactus.errors import CactusError
from cactus.paths import ASSETS
from cactus.settings import check_text

PROMPTS = ASSETS / "prompts.jsonl"
FIELDS = "an object with id, kind (text) and turns (a list of texts)"


@dataclass(frozen=True)
class BenchPrompt:
    """A conversation to be had: each turn of the user's is asked after the answer to the one before."""

    id: str
    kind: str
    turns: tuple[str, ...]


def read_prompts(path: Path) -> list[BenchPrompt]:
    """All prompts of a file, one JSON object a line; `CactusError` names the file and the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CactusError(f"prompts cannot be read from {path}: {error}") from None
    prompts = [_prompt(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise CactusError(f"{path} has no prompts; one JSON object a line is needed")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise CactusError(f"{path}: two prompts have the id {prompt.id!r}")
        seen.add(prompt.id)
    return prompts


def _prompt(line: str, where: str) -> BenchPrompt:
    try:
        record: Any = json.loads(line)
        prompt = BenchPrompt(record["id"], record["kind"], tuple(record["turns"]))
    except (ValueError, KeyError, TypeError):
        raise CactusError(f"{where}: not a prompt; {FIELDS} is needed") from None
    if not all(isinstance(text, str) and text.strip() for text in (prompt.id, prompt.kind, *prompt.turns)):
        raise CactusError(f"{where}: an empty or wrong field; {FIELDS} is needed")
    if not prompt.turns or isinstance(record["turns"], str):
        raise CactusError(f"{where}: turns is {record['turns']!r:.60}; a list with at least one text is needed")
    for turn in prompt.turns:
        check_text(turn)
    return prompt


def pick(prompts: Sequence[BenchPrompt], limit: int | None) -> list[BenchPrompt]:
    """The first `limit` prompts, taking one of each kind in turn; all in their own order without a limit."""
    if limit is None:
        return list(prompts)
    by_kind: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    rows = chain.from_iterable(zip_longest(*by_kind.values()))
    return [prompt for prompt in rows if prompt is not None][:limit]
