"""Very short texts sampled from a large model, kept as text: a corpus for models with another vocabulary.

The model is shown a story and an explanation first (`prompts.messages`). Each file holds one batch, written
whole or not at all; a stopped run continues at the first missing one. Knows nothing of what is done with the texts.
"""

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import TypeAdapter
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from cactus.errors import CactusError
from cactus.files import write_whole
from cactus.training.cleaning import clean
from cactus.training.prompts import messages, num_introductions, training_prompts
from cactus.training.sampler import Samples, sample

_COLDEST, _WARMEST = 0.65, 0.95


class Questions(NamedTuple):
    """A batch to be sampled: prompts whose chats have the same introduction and the same length."""

    prompts: tuple[str, ...]
    ids: Tensor  # int64 [batch, prompt_length]
    seed: int


class Text(NamedTuple):
    """tokens: how many of the large model's tokens it took."""

    prompt: str
    text: str
    tokens: int


_TEXTS = TypeAdapter(list[Text])


def plan(
    tokenizer: PreTrainedTokenizerBase, prompt_set: str, num_prompts: int, batch_size: int, seed: int
) -> list[Questions]:
    """All batches of a corpus, shuffled; remainders are left out."""
    groups: defaultdict[tuple[int, int], list[tuple[str, list[int]]]] = defaultdict(list)
    count = num_introductions(prompt_set)
    for number, prompt in enumerate(islice(training_prompts(seed, prompt_set), num_prompts)):
        chat = messages(prompt, number % count, prompt_set)
        ids = list(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
        groups[number % count, len(ids)].append((prompt, ids))
    rows = [
        group[start : start + batch_size]
        for _, group in sorted(groups.items())
        for start in range(0, len(group) - batch_size + 1, batch_size)
    ]
    random.Random(seed).shuffle(rows)
    return [
        Questions(tuple(prompt for prompt, _ in row), torch.tensor([ids for _, ids in row]), seed * 1_000_003 + number)
        for number, row in enumerate(rows)
    ]


def grow(
    folder: Path,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batches: Sequence[Questions],
    eos_ids: Sequence[int],
    seconds: float,
    max_new_tokens: int,
    on_file: Callable[[int], None] = lambda tokens: None,
) -> None:
    """Samples missing or damaged files in order until `seconds` have passed or all exist.

    `on_file` hears the tokens of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stop = time.monotonic() + seconds
    for number, batch in enumerate(batches):
        path = folder / f"texts-{number:05d}.json"
        if not _is_whole(path):
            if time.monotonic() >= stop:
                return
            _write(path, _answer(model, tokenizer, batch, eos_ids, max_new_tokens))
        on_file(sum(text.tokens for text in _read(path)))


def begun(folder: Path, batches: Sequence[Questions]) -> Sequence[Questions]:
    """The batches up to the last one whose file is there, damaged or not."""
    numbers = [int(path.stem.rpartition("-")[2]) for path in folder.glob("texts-*.json")]
    return batches[: max(numbers, default=-1) + 1]


def read_all(folder: Path) -> list[Text]:
    """Every text of the folder, in order. `CactusError` names a damaged file."""
    return [text for path in sorted(folder.glob("texts-*.json")) for text in _read(path)]


def usable(texts: Sequence[Text]) -> list[tuple[str, str]]:
    """Prompt and cleaned text of those that are fit to learn from, each text once."""
    cleaned = {kept: text.prompt for text in texts if (kept := clean(text.text)) is not None}
    return [(prompt, kept) for kept, prompt in cleaned.items()]


def _answer(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    batch: Questions,
    eos_ids: Sequence[int],
    max_new_tokens: int,
) -> list[Text]:
    generator = torch.Generator().manual_seed(batch.seed)
    temperatures = _COLDEST + (_WARMEST - _COLDEST) * torch.rand(len(batch.prompts), generator=generator)
    samples = sample(model, batch.ids, temperatures, max_new_tokens, list(eos_ids), generator)
    return [
        Text(prompt, tokenizer.decode(ids, skip_special_tokens=True), len(ids))
        for prompt, ids in zip(batch.prompts, _answers(samples), strict=True)
    ]


def _answers(samples: Samples) -> list[list[int]]:
    start = samples.prompt_length
    return [row[start : start + length].tolist() for row, length in zip(samples.ids, samples.lengths, strict=True)]


def _write(path: Path, texts: Sequence[Text]) -> None:
    write_whole(path, json.dumps([text._asdict() for text in texts], indent=0))


def _read(path: Path) -> list[Text]:
    try:
        return _TEXTS.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CactusError(f"damaged texts {path}: {reason}; remove the file, and it is sampled again") from error


def _is_whole(path: Path) -> bool:
    try:
        _read(path)
    except CactusError:
        return False
    return True
