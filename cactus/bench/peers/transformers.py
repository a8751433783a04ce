"""transformers' own `generate`: plain, with an assistant model, and with prompt lookup, on the pair's own models.

Speed is taken from a streamer: the tokens after the first delivery ÷ the seconds from there to the end. So prefill is
left out (with an assistant the whole first round, in which both models read the prompt), as it is for ours.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from cactus.bench.contest import Answer, Label, Messages
from cactus.bench.peers.peer import Entry, Task
from cactus.drafters import ModelDrafter
from cactus.errors import CactusError, PromptError
from cactus.models import context_length
from cactus.models.standalone import standalone

FAMILY = "transformers"
ASSISTED: dict[str, dict[str, Any]] = {
    "defaults": {},
    "5 tokens": {"num_assistant_tokens": 5, "assistant_confidence_threshold": 0.0},
    "2 tokens": {"num_assistant_tokens": 2, "assistant_confidence_threshold": 0.0},
    "5 tokens, heuristic schedule": {
        "num_assistant_tokens": 5,
        "num_assistant_tokens_schedule": "heuristic_transient",
    },
}
LOOKUP: dict[str, dict[str, Any]] = {  # n-grams of up to 2 tokens unless said
    "10 tokens": {"prompt_lookup_num_tokens": 10},
    "3 tokens": {"prompt_lookup_num_tokens": 3},
    "10 tokens, 3-grams": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3},
    "20 tokens, 3-grams": {"prompt_lookup_num_tokens": 20, "max_matching_ngram_size": 3},
}
TIMING = (
    "transformers: tokens after the first delivery to a streamer ÷ seconds from there to the end of `generate`, so "
    "that prefill is left out; sampling through `generate`'s own processors, seeded like ours; the defaults of an "
    "assistant are 20 tokens, a constant schedule and a confidence threshold of 0.4"
)
WIDENED = (
    "the pair's draft model has a trimmed output head, which `generate` cannot use; for it the same layers have the "
    "verifier's whole head, as a user of transformers would build it, so that they draft over the whole vocabulary"
)


class TransformersPeer:
    """Implements `peer.Peer`."""

    def enter(self, task: Task) -> Entry:
        assistant, note = assistant_of(task)
        settings: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [("plain", "", {}, {})]
        settings += [("prompt lookup", name, given, {}) for name, given in LOOKUP.items()]
        if assistant is not None:
            settings += [("assisted", name, {}, given) for name, given in ASSISTED.items()]
        contestants = [
            Generate(
                task=task,
                label=Label(FAMILY, method, name, 0 if method == "plain" else None),
                options=options,
                assistant=assistant if method == "assisted" else None,
                assistant_options=given,
            )
            for method, name, options, given in settings
        ]
        notes = [TIMING, *(f"transformers: {text}" for text in (note, _weights_note(task, assistant)) if text)]
        return Entry(contestants, notes)


def assistant_of(task: Task) -> tuple[PreTrainedModel | None, str]:
    """The pair's draft model as `generate` can use it, or None, and why or how."""
    drafter = task.pair.new_drafter()
    assistant = standalone(drafter, task.pair.model)
    if assistant is None:
        return None, f"{type(drafter).__name__} is no causal language model, so assisted generation is left out"
    return assistant, WIDENED if isinstance(drafter, ModelDrafter) and drafter.token_ids is not None else ""


def _weights_note(task: Task, assistant: PreTrainedModel | None) -> str:
    held = task.pair.draft_weights
    return f"the assistant's layers are ours, their weights held as {held}" if assistant is not None and held else ""


class Clock(BaseStreamer):
    """Notes when tokens arrive: (seconds, how many) for each delivery, the prompt's own left out."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[float, int]] = []
        self._prompt_is_due = True

    def put(self, value: Tensor) -> None:
        if self._prompt_is_due:
            self._prompt_is_due = False
        else:
            self.deliveries.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        pass


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warnings about its own calls, which would tear the progress bar."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@dataclass(frozen=True)
class Generate:
    """`verifier.generate` with one set of options. Implements `contest.Contestant`."""

    task: Task
    label: Label
    options: Mapping[str, Any] = field(default_factory=dict)
    assistant: PreTrainedModel | None = None
    assistant_options: Mapping[str, Any] = field(default_factory=dict)

    def answer(self, messages: Messages, seed: int, max_new_tokens: int | None = None) -> Answer:
        pair = self.task.pair
        prompt = pair.codec.encode_prompt(list(messages))
        room = context_length(pair.model) - len(prompt)
        if room < 1:
            raise PromptError(f"the prompt has {len(prompt):,} tokens, more than the context holds")
        limit = min(max_new_tokens or self.task.max_new_tokens, room)
        clock = Clock()
        began = time.perf_counter()
        tokens = self._generate(prompt, seed, limit, clock)
        ended = time.perf_counter()
        return self._answer(prompt, tokens, clock, began, ended)

    def _generate(self, prompt: list[int], seed: int, limit: int, clock: Clock) -> list[int]:
        model = self.task.pair.model
        ids = torch.tensor([prompt], device=model.device)  # [1, prompt]
        extra: dict[str, Any] = {}
        if self.assistant is not None:
            # `generate` takes the assistant's settings from its own configuration, and some change from run to run.
            self.assistant.generation_config = GenerationConfig(**self.assistant_options)
            extra["assistant_model"] = self.assistant
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.inference_mode(), _quiet():
            torch.manual_seed(seed)
            options = {"generation_config": self._config(limit), "streamer": clock, **extra}
            try:
                output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)  # type: ignore[operator]
            except (ValueError, RuntimeError, TypeError) as error:
                raise CactusError(f"transformers: {error}") from error
            tokens = output[0, len(prompt) :].tolist()  # waits for the accelerator
        if not tokens:
            raise CactusError("transformers gave no token")
        return tokens

    def _config(self, limit: int) -> GenerationConfig:
        sampling, codec = self.task.sampling, self.task.pair.codec
        eos = sorted(codec.eos_ids)
        options: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            options = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p or None,
            }
        return GenerationConfig(
            max_new_tokens=limit,
            eos_token_id=eos or None,
            pad_token_id=eos[0] if eos else 0,
            repetition_penalty=sampling.repetition_penalty,
            **options,
            **self.options,
        )

    def _answer(self, prompt: list[int], tokens: list[int], clock: Clock, began: float, ended: float) -> Answer:
        codec = self.task.pair.codec
        first, seconds = clock.deliveries[0][1], ended - clock.deliveries[0][0]
        timed = len(tokens) - first
        return Answer(
            text=codec.decode(tokens),
            tokens=tuple(tokens),
            prompt_tokens=len(prompt),
            timed_tokens=timed,
            timed_seconds=seconds if timed else 0.0,
            wall_seconds=seconds if timed else 0.0,
            prefill_seconds=clock.deliveries[0][0] - began,
            rounds=len(clock.deliveries) - 1,
            stop_reason="stop" if tokens[-1] in codec.eos_ids else "length",
        )
