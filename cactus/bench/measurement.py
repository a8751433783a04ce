"""One measured conversation: what it took, all its numbers from the traces, and the file that keeps them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cactus.bench.contest import Answer
from cactus.errors import CactusError
from cactus.files import append_line, write_whole
from cactus.metrics import Tally, ratio
from cactus.trace import Trace


@dataclass(frozen=True)
class Measurement:
    """A prompt answered once by one contestant, all turns together.

    contestant, prompt: their keys. digest: of the token ids of all answers. metrics: fields of `metrics.Metrics`
    over the rounds of all turns, None for a peer (which leaves no trace). error: why there is no answer.
    """

    contestant: str
    prompt: str
    kind: str
    repeat: int
    seed: int
    error: str = ""
    digest: str = ""
    generated_tokens: int = 0
    prompt_tokens: int = 0
    timed_tokens: int = 0
    timed_seconds: float = 0.0
    wall_seconds: float = 0.0
    prefill_seconds: float = 0.0
    rounds: int = 0
    stop_reasons: tuple[str, ...] = ()
    metrics: dict[str, Any] | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Of the timed tokens."""
        return ratio(self.timed_tokens, self.timed_seconds)

    @property
    def wall_tokens_per_second(self) -> float | None:
        """The same with everything that passed meanwhile."""
        return ratio(self.timed_tokens, self.wall_seconds)

    def metric(self, name: str) -> Any:
        """A field of the metrics, None where there is none."""
        return self.metrics.get(name) if self.metrics else None


def measure(answers: Sequence[Answer], **where: Any) -> Measurement:
    """The turns of one conversation as one measurement; `where` says whose, on which prompt, in which repeat."""
    traces = [answer.trace for answer in answers if answer.trace is not None]
    return Measurement(
        **where,
        digest=digest([answer.tokens for answer in answers]),
        generated_tokens=sum(len(answer.tokens) for answer in answers),
        prompt_tokens=answers[0].prompt_tokens,
        timed_tokens=sum(answer.timed_tokens for answer in answers),
        timed_seconds=sum(answer.timed_seconds for answer in answers),
        wall_seconds=sum(answer.wall_seconds for answer in answers),
        prefill_seconds=sum(answer.prefill_seconds for answer in answers),
        rounds=sum(answer.rounds for answer in answers),
        stop_reasons=tuple(answer.stop_reason for answer in answers),
        metrics=joint_metrics(traces) if traces else None,
    )


def digest(answers: Sequence[Sequence[int]]) -> str:
    """Equal for equal token ids."""
    return hashlib.sha256(json.dumps([list(tokens) for tokens in answers]).encode()).hexdigest()[:16]


def joint_metrics(traces: Sequence[Trace]) -> dict[str, Any]:
    """The metrics of several runs as if they were one.

    Its baseline is the runs' seconds per token weighted by their tokens, so that the speedup is the time the verifier
    alone would have taken for all of them ÷ the time they took.
    """
    tally = Tally(_joint_baseline(traces))
    for trace in traces:
        for round_ in trace.rounds:
            tally.add(round_)
    return asdict(tally.metrics())


def _joint_baseline(traces: Sequence[Trace]) -> float | None:
    if any(trace.baseline is None for trace in traces):
        return None
    counts = [len(trace.tokens) for trace in traces]
    seconds = [trace.baseline.seconds_per_token for trace in traces if trace.baseline]
    return ratio(sum(n * s for n, s in zip(counts, seconds, strict=True)), sum(counts))


class Store:
    """Measurements in a file, a JSON object a line, each written as soon as it is made."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, measurement: Measurement) -> None:
        append_line(self._path, json.dumps(asdict(measurement)))

    def read(self) -> list[Measurement]:
        """What was kept; a last line that was cut off by the end of a process is dropped from the file too."""
        if not self._path.exists():
            return []
        try:
            *lines, rest = self._path.read_bytes().split(b"\n")
        except OSError as error:
            raise CactusError(f"{self._path} cannot be read ({error.strerror}); choose another --out") from None
        if rest:
            write_whole(self._path, b"".join(line + b"\n" for line in lines))
        return [self._measurement(line, number) for number, line in enumerate(lines, 1)]

    def _measurement(self, line: bytes, number: int) -> Measurement:
        try:
            record = json.loads(line)
            return Measurement(**record | {"stop_reasons": tuple(record["stop_reasons"])})
        except (ValueError, TypeError, KeyError):
            raise CactusError(f"{self._path}, line {number} is no measurement; choose another --out") from None
