"""Prompts for training: templates filled with topics, all of our own writing, one JSON file a set.

The slot `word` holds frequent pieces of a vocabulary, most of them whole words: prompts about
odd combinations keep a draft model from learning the topics by heart. A seeded stream yields
as many prompts as are wanted; the held-out ones are worded otherwise. A set may show a model
what is wanted by a system prompt and a few examples (`messages`). Knows nothing of models
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
# Before a vowel sound, as far as spelling tells it: not before "one", "once", "u..." and "eu...".
_ARTICLE = re.compile(r"\b([Aa]) (?=[ai]|e(?!u)|o(?!ne\b|nce\b))")
DEFAULT_SET = "prompts"

Message = dict[str, str]


@cache
def _data(name: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(f"{name}.json").read_text("utf-8"))


def held_out_prompts(name: str = DEFAULT_SET) -> list[str]:
    """The evaluation prompts; no training prompt is one of them."""
    return list(_data(name)["held_out"])


def training_prompts(seed: int = 0, name: str = DEFAULT_SET) -> Iterator[str]:
    """Endless, distinct, and the same for the same seed."""
    rng, data = random.Random(seed), _data(name)
    seen = set(held_out_prompts(name))
    while True:
        prompt = with_articles(_fill(rng.choice(data["templates"]), rng, data["slots"]))
        if prompt not in seen:
            seen.add(prompt)
            yield prompt


def with_articles(text: str) -> str:
    """ "a owl" becomes "an owl"."""
    return _ARTICLE.sub(r"\1n ", text)


def num_introductions(name: str) -> int:
    """How many different introductions `messages` knows."""
    examples = _data(name)["examples"]
    return len(examples["stories"]) * len(examples["explanations"])


def messages(prompt: str, introduction: int, name: str) -> list[Message]:
    """A chat that shows one story and one explanation, then asks `prompt`.

    introduction: which two, and (by turns) which comes first.
    """
    data = _data(name)
    stories, explanations = data["examples"]["stories"], data["examples"]["explanations"]
    i, j = divmod(introduction, len(explanations))
    shown = [stories[i], explanations[j]] if (i + j) % 2 else [explanations[j], stories[i]]
    chat = [{"role": "system", "content": data["system"]}]
    for question, answer in shown:
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return [*chat, {"role": "user", "content": prompt}]


def _fill(template: str, rng: random.Random, slots: dict[str, list[str]]) -> str:
    while match := _SLOT.search(template):
        template = template[: match.start()] + _value(match[1], rng, slots) + template[match.end() :]
    return template


def _value(slot: str, rng: random.Random, slots: dict[str, list[str]]) -> str:
    if slot == "number":
        return str(rng.randint(12, 999))
    if slot == "small":
        return str(rng.randint(2, 20))
    if slot == "problem_cap":
        problem = _value("problem", rng, slots)
        return problem[0].upper() + problem[1:]
    return rng.choice(slots[slot])
