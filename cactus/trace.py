"""Records of a run: token, round, trace. The single source of every number and colour shown anywhere.

A trace can be saved, shared, loaded and replayed without a model, and every verdict in it can be checked
again from its own numbers (`Trace.check`). Its format is published as a JSON Schema made from these records
(`trace_schema`, `assets/trace.schema.json`). This module knows neither tensors nor pages; `metrics` derives the
numbers from these records, `documents` reads files.
"""

from __future__ import annotations

import math
from itertools import dropwhile
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from cactus.documents import MAX_WHOLE, Entries, Many, Record, TraceError, read_document, schema_of
from cactus.metrics import Metrics, Tally

__all__ = [
    "MAX_DRAFT_TOKENS", "MAX_SEED", "Baseline", "Record", "Round", "Status", "StopReason", "Timings", "Token",
    "TopToken", "Trace", "TraceError", "trace_schema",
]  # fmt: skip

Schema = Literal["cactus-trace/1"]
MAX_DRAFT_TOKENS = 16  # that a round may draft; "auto" goes no further
MAX_SEED = 2**32 - 1

Status = Literal["accepted", "rejected", "recovered", "bonus", "discarded", "sampled"]
StopReason = Literal["stop", "length", "context", "cancelled", "time", "error"]
EMITTED: frozenset[str] = frozenset({"accepted", "recovered", "bonus", "sampled"})
JUDGED: frozenset[str] = frozenset({"accepted", "rejected"})


def _read_infinity(value: Any) -> Any:
    return math.inf if value == "Infinity" else value


Probability = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Whole = Annotated[int, Field(ge=-MAX_WHOLE, le=MAX_WHOLE)]
Number = Annotated[float, Field(allow_inf_nan=False)] | Whole
# A divergence is infinite where the verifier gives probability 0; JSON has no number for that.
LEAST_NATS = -1e-3
Nats = Annotated[
    float,
    BeforeValidator(_read_infinity),
    Field(ge=LEAST_NATS),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": LEAST_NATS}, {"const": "Infinity"}]}),
]


class TopToken(Record):
    """One of the five likeliest tokens of a distribution."""

    id: Count
    text: str
    prob: Probability


class Token(Record):
    """One token of a round, emitted or not.

    `position` counts from the first generated token. `draft_prob`, `verifier_prob`: probability of this id
    under the two processed distributions; `boosted_prob`: h(n); `kl`: KL(h‖q) and `output_kl`: KL(output‖q) of
    this step, nats; `entropy`: of the verifier's distribution, nats. `accept_prob` and `uniform` are None where
    nothing was judged (recovered, bonus, sampled, discarded tokens).
    """

    id: Count
    text: str
    status: Status
    position: Count
    draft_prob: Probability | None = None
    verifier_prob: Probability | None = None
    boosted_prob: Probability | None = None
    accept_prob: Probability | None = None
    uniform: Probability | None = None
    entropy: Nats | None = None
    kl: Nats | None = None
    output_kl: Nats | None = None
    top_draft: Many[TopToken] = ()
    top_verifier: Many[TopToken] = ()

    @property
    def emitted(self) -> bool:
        """Whether the token is part of the text."""
        return self.status in EMITTED

    @property
    def judged(self) -> bool:
        """Whether the acceptance rule gave a verdict on it."""
        return self.status in JUDGED

    @property
    def has_verdict(self) -> bool:
        """Whether its verdict can be checked again."""
        return self.accept_prob is not None and self.uniform is not None


class Round(Record):
    """m draft steps, one verifier pass and the verdicts; `tokens` in drafted order, the drawn one last.

    `record_seconds` went into this record itself (divergences, entropies, likeliest tokens, text): no part of what
    the method costs, so no part of `seconds`.

    A round that was watched from outside, as a server lets it be seen, has `step_seconds` for the whole of it, None for
    its parts, and of its tokens those that were emitted: neither what was drafted in vain nor any verdict.
    """

    index: Count
    num_draft_tokens: Count
    accepted_length: Count
    draft_seconds: Seconds | None
    verify_seconds: Seconds | None
    judge_seconds: Seconds | None
    record_seconds: Seconds = 0.0
    step_seconds: Seconds | None = None
    tokens: Many[Token]

    @property
    def watched(self) -> bool:
        """Whether it was watched from outside."""
        return self.step_seconds is not None

    @property
    def of_prompt(self) -> bool:
        """Whether it is the one token that a server draws as it reads the prompt: no round of drafting, and no time."""
        return self.watched and self.index == 0 and self.num_draft_tokens == 0

    @property
    def judged_length(self) -> int:
        """Drafted tokens that the rule gave a verdict on: those accepted and, where one was, the one rejected."""
        return self.accepted_length + any(token.status == "recovered" for token in self.tokens)

    @property
    def emitted(self) -> tuple[Token, ...]:
        """The tokens of this round that are part of the text."""
        return tuple(token for token in self.tokens if token.emitted)

    @property
    def text(self) -> str:
        """The text this round added."""
        return "".join(token.text for token in self.emitted)

    @property
    def seconds(self) -> float:
        """Seconds the round took: drafting, verifying and judging."""
        parts = (self.draft_seconds, self.verify_seconds, self.judge_seconds, self.step_seconds)
        return sum(part for part in parts if part is not None)

    @model_validator(mode="after")
    def _counts_agree_with_tokens(self) -> Round:
        accepted = sum(token.status == "accepted" for token in self.tokens)
        if accepted != self.accepted_length:
            raise ValueError(f"accepted_length is {self.accepted_length}, but {accepted} tokens are accepted")
        drafted = sum(token.status in ("accepted", "rejected", "discarded") for token in self.tokens)
        if drafted > self.num_draft_tokens or (drafted < self.num_draft_tokens and not self.watched):
            raise ValueError(f"num_draft_tokens is {self.num_draft_tokens}, but {drafted} tokens were drafted")
        return self

    @model_validator(mode="after")
    def _what_is_left_out_was_watched(self) -> Round:
        if self.watched:
            return self
        for place, token in enumerate(self.tokens):
            if token.judged and not token.has_verdict:
                raise ValueError(f"tokens[{place}] with status {token.status!r} needs accept_prob and uniform")
        for name in ("draft_seconds", "verify_seconds", "judge_seconds"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is null; it is a number, or step_seconds is")
        return self


class Baseline(Record):
    """The verifier alone, measured in the same process on the same prompt, warm.

    `seconds_per_token` is a median of timed single-token steps, `steps` of them in all; `how` says which and when.
    """

    seconds_per_token: Annotated[float, Field(gt=0.0, le=1e9, allow_inf_nan=False)]
    steps: Annotated[int, Field(ge=1, le=MAX_WHOLE)]
    how: str


class Timings(Record):
    """Seconds outside the rounds: reading the prompt, timing the baseline, and the whole run on the wall.

    `waiting_seconds`: while other runs had their turns on the models; part of the total and of no other seconds.
    """

    prefill_seconds: Seconds = 0.0
    baseline_seconds: Seconds = 0.0
    waiting_seconds: Seconds = 0.0
    total_seconds: Seconds = 0.0


class Trace(Record):
    """One run: its settings, its rounds and its measured baseline.

    `method` is the name of an acceptance rule, or "ar" for the verifier alone. `sampling` holds the fields of
    `SamplingParams`. `num_draft_tokens` is "auto" where each round drafted as many as paid. `prompt` is what the
    caller gave: text, chat messages or token ids; `raw`: a text that was not put into the chat template. Of its
    `prompt_tokens`, `cached_tokens` had been read in the turn before.
    """

    schema_: Schema = Field(default="cactus-trace/1", alias="schema")
    pair: str
    method: str
    params: Entries[Number | str]
    num_draft_tokens: Count | Literal["auto"]
    sampling: Entries[Number]
    max_new_tokens: Count
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    device: str
    dtype: str
    versions: Entries[str]
    prompt: str | Many[Entries[str]] | Many[Count]
    raw: bool = False
    prompt_tokens: Count
    cached_tokens: Count = 0
    rounds: Many[Round] = ()
    stop_reason: StopReason | None = None
    baseline: Baseline | None = None
    timings: Timings = Timings()

    @property
    def draft_limit(self) -> int:
        """Most tokens that a round could draft."""
        return MAX_DRAFT_TOKENS if self.num_draft_tokens == "auto" else self.num_draft_tokens

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The emitted tokens in order."""
        return tuple(token for round_ in self.rounds for token in round_.emitted)

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(token.text for token in self.tokens)

    def metrics(self) -> Metrics:
        """Every derived number of the run."""
        tally = Tally(self.baseline.seconds_per_token if self.baseline else None)
        for round_ in self.rounds:
            tally.add(round_)
        return tally.metrics()

    def check(self) -> list[str]:
        """Check every verdict again from its own numbers; an empty list means the trace is consistent."""
        faults: list[str] = []
        position = 0
        for index, round_ in enumerate(self.rounds):
            faults += [f"round {index}: {fault}" for fault in _round_faults(round_, index, position)]
            position += len(round_.emitted)
        return faults

    def to_json(self, indent: int | None = None) -> str:
        """The trace as a JSON object with the keys of schema `cactus-trace/1`."""
        return self.model_dump_json(by_alias=True, indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Trace:
        """Read a trace; `TraceError` names the first place that is missing, of a wrong type or inconsistent."""
        return read_document(text, "trace", cls).checked()

    def checked(self) -> Trace:
        """Itself; `TraceError` where a verdict does not follow from its numbers."""
        if faults := self.check():
            raise TraceError(f"not a consistent trace: {faults[0]}")
        return self


def trace_schema() -> dict[str, Any]:
    """The JSON Schema of a saved trace: the content of `assets/trace.schema.json`."""
    return schema_of(Trace)


def _round_faults(round_: Round, index: int, position: int) -> list[str]:
    faults = []
    if round_.index != index:
        faults.append(f"index is {round_.index}")
    for token in round_.tokens:
        if token.judged and token.has_verdict and (token.uniform < token.accept_prob) != (token.status == "accepted"):  # type: ignore[operator]
            sign = "<" if token.status == "rejected" else "≥"
            faults.append(
                f"token {token.text!r:.40} is {token.status} though {token.uniform} {sign} {token.accept_prob}"
            )
    if not _well_ordered([token.status for token in round_.tokens], round_.watched):
        faults.append("the tokens' statuses are in an impossible order")
    expected = [position + offset for offset in range(len(round_.emitted))]
    if [token.position for token in round_.emitted] != expected:
        faults.append(f"the emitted tokens' positions do not run on from {position}")
    return faults


def _well_ordered(statuses: list[str], watched: bool) -> bool:
    """accepted… then (rejected, discarded…, recovered) or (discarded… after a stop) or bonus or sampled.

    Of a watched round the rejected and the discarded tokens are left out.
    """
    tail = list(dropwhile(lambda status: status == "accepted", statuses))
    if not tail or tail in (["bonus"], ["sampled"]) or (watched and tail == ["recovered"]):
        return True
    if tail[0] == "rejected":
        return tail[-1] == "recovered" and all(status == "discarded" for status in tail[1:-1])
    return all(status == "discarded" for status in tail)
