"""The training corpus: answers sampled from the verifier, kept in checkpointed chunk files.

Half of the batches answer prompts; the other half are whole conversations, user turn included, for which the
verifier is given nothing but the opening of a user turn. Prompts alone are too much alike: a draft model learns
their kinds by heart and does worse on others.
A chunk holds one batch: ids, answer lengths and the verifier's last hidden states,
from which training rebuilds the verifier's distributions without running it again.
A stopped run continues at the first missing chunk; a damaged chunk is sampled again.
Knows nothing of draft models.
"""

import math
import random
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from cactus.files import write_whole
from cactus.training.prompts import DEFAULT_SET, training_prompts
from cactus.training.sampler import Samples, sample

_CHECKED = ("ids", "lengths", "hidden", "prompt_hidden")


class Batch(NamedTuple):
    """Prompts of one token length, and the seed of the answers. `open_ended`: an EOS ends a turn, not the text."""

    prompts: Tensor  # [batch, prompt_length]
    seed: int
    open_ended: bool = False


def chat_ids(tokenizer: PreTrainedTokenizerBase, prompts: Iterable[str]) -> list[list[int]]:
    """Each prompt as one user turn, ready for the answer."""
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return list(tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"])


def opening_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """A chat up to where the user would begin to write: what two chats begin with."""
    pairs = zip(*chat_ids(tokenizer, ["A", "z"]), strict=False)
    return [first for first, second in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def plan(
    tokenizer: PreTrainedTokenizerBase,
    num_prompts: int,
    batch_size: int,
    seed: int = 0,
    prompt_set: str = DEFAULT_SET,
    open_conversations: bool = True,
) -> list[Batch]:
    """All batches of a corpus in a fixed order: prompts, shuffled, by turns with open conversations if wanted.

    Remainders of a prompt length are left out.
    """
    groups: defaultdict[int, list[list[int]]] = defaultdict(list)
    for ids in chat_ids(tokenizer, islice(training_prompts(seed, prompt_set), num_prompts)):
        groups[len(ids)].append(ids)
    rows = [
        group[start : start + batch_size]
        for _, group in sorted(groups.items())
        for start in range(0, len(group) - batch_size + 1, batch_size)
    ]
    random.Random(seed).shuffle(rows)
    opening = torch.tensor([opening_ids(tokenizer)]).expand(batch_size, -1)  # [batch, opening]
    batches: list[Batch] = []
    for ids in rows:
        batches.append(Batch(torch.tensor(ids), seed * 1_000_003 + len(batches)))
        if open_conversations:
            batches.append(Batch(opening, seed * 1_000_003 + len(batches), open_ended=True))
    return batches


def chunk_path(folder: Path, index: int) -> Path:
    return folder / f"chunk-{index:05d}.safetensors"


def save_chunk(path: Path, samples: Samples) -> None:
    tensors = {name: getattr(samples, name) for name in _CHECKED}
    metadata = {"prompt_length": str(samples.prompt_length), "crc32": str(_checksum(tensors))}
    write_whole(path, save(tensors, metadata))


def load_chunk(path: Path) -> Samples:
    """ValueError if the file is missing, cut short or altered."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in _CHECKED}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"damaged chunk {path}: {error}") from error
    prompt_length = tensors["prompt_hidden"].shape[1] + 1
    if (metadata.get("crc32"), metadata.get("prompt_length")) != (str(_checksum(tensors)), str(prompt_length)):
        raise ValueError(f"damaged chunk {path}: its checksum differs")
    return Samples(**tensors, prompt_length=prompt_length)


def _checksum(tensors: dict[str, Tensor]) -> int:
    value = 0
    for name in _CHECKED:
        value = zlib.crc32(tensors[name].contiguous().view(torch.uint8).numpy(), value)
    return value


def is_whole(path: Path) -> bool:
    try:
        load_chunk(path)
    except ValueError:
        return False
    return True


def grow(
    folder: Path,
    verifier: LlamaForCausalLM,
    batches: list[Batch],
    eos_ids: list[int],
    seconds: float,
    max_new_tokens: int = 200,
    on_chunk: Callable[[int], None] = lambda tokens: None,
) -> None:
    """Samples missing or damaged chunks in order until `seconds` have passed or all exist.

    `on_chunk` hears the number of answer tokens of every chunk that exists afterwards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stop = time.monotonic() + seconds
    for index, batch in enumerate(batches):
        path = chunk_path(folder, index)
        if not is_whole(path):
            if time.monotonic() >= stop:
                return
            save_chunk(path, sample_batch(verifier, batch, eos_ids, max_new_tokens))
        on_chunk(int(load_chunk(path).lengths.sum()))


def repair(
    folder: Path,
    verifier: LlamaForCausalLM,
    batches: list[Batch],
    eos_ids: list[int],
    max_new_tokens: int,
    rows: int,
) -> None:
    """Samples again what is missing or damaged of the first `rows` answers, on which a training has begun."""
    known = batches[: rows // len(batches[0].prompts)] if batches else []
    grow(folder, verifier, known, eos_ids, math.inf, max_new_tokens)


def sample_batch(verifier: LlamaForCausalLM, batch: Batch, eos_ids: list[int], max_new_tokens: int) -> Samples:
    """Temperatures are mixed within the batch, 0.6 to 1.0."""
    ends = [] if batch.open_ended else eos_ids
    generator = torch.Generator().manual_seed(batch.seed)
    temperatures = 0.6 + 0.4 * torch.rand(len(batch.prompts), generator=generator)
    return sample(verifier, batch.prompts, temperatures, max_new_tokens, ends, generator)


def whole_chunks(folder: Path) -> list[Samples]:
    """Every undamaged chunk of the folder, in order."""
    paths = sorted(folder.glob("chunk-*.safetensors"))
    return [load_chunk(path) for path in paths if is_whole(path)]
