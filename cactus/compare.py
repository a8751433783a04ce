"""The same prompt and seed under several methods: what is asked for, what came of it, and all of it on one clock.

A lane is a method with its parameters and its draft length, written `cactus:delta=1:m=5`. The first lane is always the
verifier alone: its own measured seconds per token are the baseline of all speedups here. On one device lanes run one
after another; `timeline` lays their recorded rounds on one clock. Knows sessions by their `seat` alone.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from pydantic import Field

from cactus.bench.methods import MethodSpec, parse_method
from cactus.documents import Many, read_document
from cactus.errors import CactusError
from cactus.metrics import Metrics, Tally, ratio
from cactus.prefix import common_length
from cactus.request import VERIFIER_ONLY, RunRequest
from cactus.session import Seat
from cactus.settings import DraftLength, fresh_seed, parse_draft_length
from cactus.trace import Record, Round, Trace, TraceError
from cactus.weights.source import Progress

FEWEST, MOST = 1, 3  # lanes besides the verifier alone
HEADINGS = ("lane", "tokens", "AL", "tokens/round", "acceptance", "tokens/s", "speedup", "KL(output‖q)", "seconds")
USUAL = ("sps", "cactus:delta=1", "tas")


class Seats(Protocol):
    """What a race needs of a session."""

    def seat(self) -> Seat: ...


@dataclass(frozen=True)
class Lane:
    """A method with its parameters; m is None where the comparison's own draft length counts."""

    method: MethodSpec
    num_draft_tokens: DraftLength | None = None


@dataclass(frozen=True)
class LaneResult:
    """One row of the table. speedup: the first lane's measured seconds per token ÷ this lane's, None for none."""

    label: str
    metrics: Metrics
    speedup: float | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The row as programs read it."""
        names = (
            "accepted_length",
            "tokens_per_round",
            "acceptance_rate",
            "tokens_per_second",
            "mean_kl",
            "mean_output_kl",
        )
        own = {name: getattr(self.metrics, name) for name in names}
        return {"lane": self.label, "tokens": self.metrics.generated_tokens, **own, "speedup": self.speedup,
                "seconds": self.seconds}  # fmt: skip


@dataclass(frozen=True)
class Parting:
    """Where a lane's text leaves another's: after `tokens` equal tokens. None of them: `same` is true."""

    lane: int
    other: int
    tokens: int
    same: bool


@dataclass(frozen=True)
class Due:
    """A round on the common clock: it is finished `seconds` after all lanes began."""

    seconds: float
    lane: int
    round: Round


class Comparison(Record):
    """Everything of a comparison in one JSON object."""

    schema_: Literal["cactus-comparison/1"] = Field(default="cactus-comparison/1", alias="schema")
    lanes: Many[Trace]

    def to_json(self, indent: int | None = None) -> str:
        return self.model_dump_json(by_alias=True, indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Comparison:
        """Read a comparison; `TraceError` names the first place that is wrong."""
        return read_document(text, "comparison", cls).checked()

    def checked(self) -> Comparison:
        """Itself; `TraceError` where a lane's verdicts do not follow from its numbers."""
        for lane, trace in enumerate(self.lanes):
            if faults := trace.check():
                raise TraceError(f"not a consistent comparison: lanes[{lane}]: {faults[0]}")
        return self


def parse_lane(text: str) -> Lane:
    """`method`, then `:name=value` for each parameter and `:m=…` for the draft length. `CactusError` names a fault."""
    if not isinstance(text, str):
        raise CactusError(f"lane is {text!r:.60}; text such as cactus:delta=1:m=5 is allowed")
    pieces = [piece.strip() for piece in text.strip().split(":")]
    lengths = [piece.partition("=")[2] for piece in pieces[1:] if piece.partition("=")[0] == "m"]
    if len(lengths) > 1:
        raise CactusError(f"lane {text!r:.60}: m is given twice")
    method = parse_method(":".join([pieces[0], *(piece for piece in pieces[1:] if piece.partition("=")[0] != "m")]))
    return Lane(method, parse_draft_length(lengths[0]) if lengths else None)


def lane_requests(request: RunRequest, lanes: Sequence[str]) -> list[RunRequest]:
    """The verifier alone, then each lane, all with the prompt, seed and sampling of `request`.

    Without a seed one is drawn for all. `CactusError` for a wrong number of lanes or the same one twice.
    """
    if not isinstance(lanes, Sequence) or isinstance(lanes, str | bytes):
        raise CactusError(f"lanes is {lanes!r:.60}; a list of lanes is allowed")
    parsed = [parse_lane(lane) for lane in lanes]
    if not FEWEST <= len(parsed) <= MOST:
        raise CactusError(f"{len(parsed)} lanes were given; {FEWEST} to {MOST} are allowed besides the verifier alone")
    seeded = request if request.seed is not None else replace(request, seed=fresh_seed())
    asked = [replace(seeded, method=VERIFIER_ONLY, params={})]
    for text, lane in zip(lanes, parsed, strict=True):
        draft_length = lane.num_draft_tokens or seeded.num_draft_tokens
        one = replace(seeded, method=lane.method.name, params=lane.method.params, num_draft_tokens=draft_length)
        if one in asked:
            raise CactusError(f"lane {text!r:.60} is there twice; every lane must differ")
        asked.append(one)
    return asked


def race(session: Seats, requests: Sequence[RunRequest], stop: threading.Event | None = None,
         progress: Progress | None = None) -> Iterator[tuple[int, Trace]]:  # fmt: skip
    """Run the lanes one after another, in one place among the runs, taking turns with others round by round.

    Yields a lane's number and its trace so far, after each round and at its end.
    """
    stopped = stop or threading.Event()
    with session.seat() as seat:
        for lane, request in enumerate(requests):
            if stopped.is_set():
                return
            with seat.start(request, stop=stopped, progress=progress) as live:
                for _ in live:
                    yield lane, live.trace
            yield lane, live.trace


def label(trace: Trace) -> str:
    """A lane in words: method, parameters, draft length."""
    own = MethodSpec(trace.method, dict(trace.params)).label
    return f"{own}, m = {trace.num_draft_tokens}" if trace.num_draft_tokens else own


def results(traces: Sequence[Trace]) -> list[LaneResult]:
    """The table: each lane's figures, speedups measured against the first lane's own seconds per token."""
    base = _tally(traces[0]) if traces else Tally()
    alone = ratio(base.seconds, base.timed)
    return [_result(trace, alone) for trace in traces]


def _tally(trace: Trace, alone: float | None = None) -> Tally:
    tally = Tally(alone)
    for round_ in trace.rounds:
        tally.add(round_)
    return tally


def _result(trace: Trace, alone: float | None) -> LaneResult:
    tally = _tally(trace, alone)
    return LaneResult(label(trace), tally.metrics(), tally.speedup, tally.seconds)


def cells(result: LaneResult) -> tuple[str, ...]:
    """One lane's figures in words, under HEADINGS; a dash where there is none."""
    metrics = result.metrics
    return (
        result.label,
        str(metrics.generated_tokens),
        _figure(metrics.accepted_length, "{:.2f}"),
        _figure(metrics.tokens_per_round, "{:.2f}"),
        _figure(metrics.acceptance_rate, "{:.0%}"),
        _figure(metrics.tokens_per_second, "{:.1f}"),
        _figure(result.speedup, "{:.2f}×"),
        _figure(metrics.mean_output_kl, "{:.3f}"),
        f"{result.seconds:.1f}",
    )


def _figure(value: float | None, pattern: str) -> str:
    return "–" if value is None else pattern.format(value)


def timeline(traces: Sequence[Trace]) -> list[Due]:
    """All rounds of all lanes in the order in which they had been done, had the lanes begun together.

    Seconds are those of the rounds: reading the prompt and timing the baseline are no part of them.
    """
    due = []
    for lane, trace in enumerate(traces):
        ends = itertools.accumulate(round_.seconds for round_ in trace.rounds)
        due += [Due(end, lane, round_) for end, round_ in zip(ends, trace.rounds, strict=True)]
    return sorted(due, key=lambda each: (each.seconds, each.lane))


def partings(traces: Sequence[Trace]) -> list[Parting]:
    """For every lane but the first: where its text leaves the lane it follows longest (the earliest of equals)."""
    ids = [[token.id for token in trace.tokens] for trace in traces]
    found = []
    for lane in range(1, len(ids)):
        shared = {other: common_length(ids[lane], ids[other]) for other in range(lane)}
        other = max(shared, key=lambda index: shared[index])
        found.append(Parting(lane, other, shared[other], ids[lane] == ids[other]))
    return found
