"""Prompts for training a draft model: templates filled with topics, all of our own writing.

The slot `word` holds frequent pieces of a vocabulary, most of them whole words: prompts about
odd combinations keep a draft model from learning the topics by heart. A seeded stream yields
as many prompts as are wanted; the held-out ones are worded otherwise. Knows nothing of models
or tokenizers.
"""

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_SLOT = re.compile(r"\{(\w+)\}")


@cache
def _data() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("prompts.json").read_text("utf-8"))


def held_out_prompts() -> list[str]:
    """The evaluation prompts; no training prompt is one of them."""
    return list(_data()["held_out"])


def training_prompts(seed: int = 0) -> Iterator[str]:
    """Endless, distinct, and the same for the same seed."""
    rng = random.Random(seed)
    seen = set(held_out_prompts())
    while True:
        prompt = _fill(rng.choice(_data()["templates"]), rng)
        if prompt not in seen:
            seen.add(prompt)
            yield prompt


def _fill(template: str, rng: random.Random) -> str:
    while match := _SLOT.search(template):
        template = template[: match.start()] + _value(match[1], rng) + template[match.end() :]
    return template


def _value(slot: str, rng: random.Random) -> str:
    if slot == "number":
        return str(rng.randint(12, 999))
    if slot == "small":
        return str(rng.randint(2, 20))
    if slot == "problem_cap":
        problem = _value("problem", rng)
        return problem[0].upper() + problem[1:]
    return rng.choice(_data()["slots"][slot])
