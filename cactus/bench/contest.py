"""Who takes part: anything that answers a conversation and says what it took. Ours run through the session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cactus.bench.methods import MethodSpec
from cactus.errors import CactusError
from cactus.request import RunRequest
from cactus.session import Session
from cactus.settings import DraftLength
from cactus.trace import Trace

OURS = "cactus"
Messages = Sequence[dict[str, str]]


@dataclass(frozen=True)
class Label:
    """Name of a contestant: whose it is, its method, and its setting of the draft ("m=4", "defaults", "").

    num_draft_tokens: 0 for plain decoding, None where a peer has its own way.
    """

    family: str
    method: str
    setting: str = ""
    num_draft_tokens: DraftLength | None = None

    @property
    def key(self) -> str:
        """Unique within a benchmark; ours go by their method alone."""
        family = "" if self.family == OURS else self.family
        return " ".join(part for part in (family, self.method, self.setting) if part)


@dataclass(frozen=True)
class Answer:
    """One answered turn.

    timed_seconds: for `timed_tokens` tokens, prefill excluded; what it covers is the contestant's to say.
    wall_seconds: the same tokens with everything that passed meanwhile. prefill_seconds: up to where timing begins.
    rounds: verifier passes in the timed part. trace: only ours have one.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    timed_tokens: int
    timed_seconds: float
    wall_seconds: float
    prefill_seconds: float
    rounds: int
    stop_reason: str
    trace: Trace | None = None


class Contestant(Protocol):
    """Answers conversations with one fixed setting."""

    @property
    def label(self) -> Label: ...

    def answer(self, messages: Messages, seed: int, max_new_tokens: int | None = None) -> Answer:
        """Answer the last message; `max_new_tokens` replaces the benchmark's own number (for warming up)."""


@dataclass(frozen=True)
class OurContestant:
    """One method at one draft length. `request`: everything but the prompt and the seed."""

    session: Session
    request: RunRequest
    label: Label

    def answer(self, messages: Messages, seed: int, max_new_tokens: int | None = None) -> Answer:
        limit = max_new_tokens or self.request.max_new_tokens
        request = replace(self.request, prompt=list(messages), seed=seed, max_new_tokens=limit)
        with self.session.start(request) as live:
            for _ in live:
                pass
        return from_trace(live.trace)


def from_trace(trace: Trace) -> Answer:
    """What a run took, by its trace: timed are drafting, verifying and judging; the wall also saw the records made."""
    metrics, timings = trace.metrics(), trace.timings
    if trace.stop_reason in ("error", "cancelled", "time"):
        raise CactusError(f"a run of {trace.method} ended early ({trace.stop_reason})")
    return Answer(
        text=trace.text,
        tokens=tuple(token.id for token in trace.tokens),
        prompt_tokens=trace.prompt_tokens,
        timed_tokens=metrics.generated_tokens,
        timed_seconds=metrics.seconds,
        wall_seconds=max(metrics.seconds, timings.total_seconds - timings.prefill_seconds - timings.baseline_seconds),
        prefill_seconds=timings.prefill_seconds,
        rounds=metrics.rounds,
        stop_reason=str(trace.stop_reason),
        trace=trace,
    )


def our_contestants(
    session: Session, template: RunRequest, methods: Sequence[MethodSpec], draft_lengths: Sequence[DraftLength]
) -> list[OurContestant]:
    """Every method at every draft length; one that drafts nothing takes part once."""
    made = []
    for method in methods:
        for length in draft_lengths if method.drafts else (0,):
            request = replace(template, method=method.name, params=method.params, num_draft_tokens=length or 1)
            label = Label(OURS, str(method), f"m={length}" if length else "", length)
            made.append(OurContestant(session, request, label))
    return made
