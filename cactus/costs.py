"""What the steps of a pair cost on this machine: timed once, on caches of their own.

Knows only the protocols of `interfaces`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cactus.clock import wait
from cactus.interfaces import CachedModel, DraftContext, Drafter
from cactus.pace import StepCosts
from cactus.sampling import SamplingParams, distribution, pick

TEXT = 32  # tokens in the caches
MORE = 4  # tokens by which a long draft or pass exceeds a short one
TRIALS, WARMUP = 7, 2


def measure_costs(verifier: CachedModel, drafter: Drafter, vocab_size: int) -> StepCosts:
    """Of interleaved short and long drafts and passes, the quickest of each: a busy machine only ever adds time.

    About a second for a verifier of 135 M parameters.
    """
    tokens = [i % vocab_size for i in range(1, TEXT + 1)]
    hidden = verifier.feed(tokens[:-1], want_hidden=drafter.wants_hidden).hidden
    verifier.rewind(TEXT - 1)
    # As in a round: the drafter has read everything but the newest token and the hidden state before it.
    drafter.prefill(tokens[:-1], None if hidden is None else hidden[:-1])
    news = None if hidden is None else hidden[-1:]
    actions: list[Callable[[], object]] = [
        lambda: _draft(drafter, tokens, 1, news, verifier.device),
        lambda: _draft(drafter, tokens, 1 + MORE, news, verifier.device),
        lambda: _verify(verifier, tokens, 1),
        lambda: _verify(verifier, tokens, 1 + MORE),
    ]
    short_draft, long_draft, short_pass, long_pass = _quickest(actions, verifier.device)
    return StepCosts(
        draft=max(0.0, long_draft - short_draft) / MORE,
        verify=short_pass,
        verify_more=max(0.0, long_pass - short_pass) / MORE,
    )


def _quickest(actions: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Seconds that each action takes at its quickest.

    On a CPU those that this thread was at work: while others had the core, nothing was done.
    """
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(WARMUP + TRIALS):
        for action, times in zip(actions, seconds, strict=True):
            wait(device)
            begin = clock()
            action()
            wait(device)
            times.append(clock() - begin)
    return [min(times[WARMUP:]) for times in seconds]


def _draft(drafter: Drafter, tokens: list[int], count: int, hidden: Tensor | None, device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(0)

    def choose(logits: Tensor, token_ids: Tensor | None) -> tuple[Tensor, Tensor]:
        probs = distribution(logits, SamplingParams())
        return pick(probs, generator), probs

    drafter.propose(DraftContext(tokens, count, choose, hidden))
    drafter.rewind(len(tokens) - 1)


def _verify(verifier: CachedModel, tokens: list[int], count: int) -> None:
    verifier.feed(tokens[-1:] * count, keep=count, want_hidden=True)
    verifier.rewind(TEXT - 1)
