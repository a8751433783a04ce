"""Numbers derived from rounds: each is computed here and nowhere else.

`Tally` takes rounds one at a time in constant time and memory, so a live page and a finished trace read the same
figures. Knows only the attributes of `trace.Round`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cactus.trace import Round


@dataclass(frozen=True)
class PositionCount:
    """Draft position (1 = first drafted token): how often drafted, judged and accepted there."""

    position: int
    drafted: int = 0
    judged: int = 0
    accepted: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ judged: the chance of passing once this position is reached."""
        return self.accepted / self.judged if self.judged else None

    @property
    def survival_rate(self) -> float | None:
        """Accepted ÷ drafted: the chance that a draft gets this far."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True)
class Metrics:
    """All figures of a run so far. None means: not defined yet (nothing drafted, no baseline, …).

    accepted_length: mean accepted drafted tokens per round (the paper's AL); tokens_per_round counts what was
    emitted, so it is AL + 1 except where a stop cut the last round. acceptance_rate: accepted ÷ drafted.
    speedup: baseline seconds per token ÷ this run's, both measured. ideal_speedup: tokens ÷ Σ(1 + m·c), with
    c = measured draft step ÷ measured verifier step; for a constant m it is (AL+1)/(1+m·c). mean_kl: KL(h‖q) per
    judged token; mean_output_kl: KL(output‖q) per judged token, nats.
    """

    rounds: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    judged_tokens: int
    seconds: float
    draft_seconds: float
    verify_seconds: float
    judge_seconds: float
    accepted_length: float | None
    tokens_per_round: float | None
    acceptance_rate: float | None
    tokens_per_second: float | None
    baseline_tokens_per_second: float | None
    speedup: float | None
    ideal_speedup: float | None
    draft_step_ratio: float | None
    total_kl: float
    mean_kl: float | None
    mean_output_kl: float | None
    verifier_passes_saved: int
    positions: tuple[PositionCount, ...]


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """numerator ÷ denominator, or None where it is not defined."""
    return numerator / denominator if numerator is not None and denominator else None


@dataclass
class Tally:
    """Running sums over rounds. `baseline_seconds`: measured seconds per token of the verifier alone, or None."""

    baseline_seconds: float | None = None
    rounds: int = 0
    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    judged: int = 0
    of_prompt: int = 0  # tokens that came with the prompt, outside any round of drafting and its time
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    judge_seconds: float = 0.0
    step_seconds: float = 0.0  # of rounds watched from outside
    told: int = 0  # judged tokens whose divergences are known
    total_kl: float = 0.0
    total_output_kl: float = 0.0
    positions: list[PositionCount] = field(default_factory=list)

    def add(self, round_: Round) -> None:
        """Count one more round."""
        self.rounds += 1
        self.generated += len(round_.emitted)
        self.drafted += round_.num_draft_tokens
        self.accepted += round_.accepted_length
        self.of_prompt += round_.of_prompt
        self.draft_seconds += round_.draft_seconds or 0.0
        self.verify_seconds += round_.verify_seconds or 0.0
        self.judge_seconds += round_.judge_seconds or 0.0
        self.step_seconds += round_.step_seconds or 0.0
        judged = [token for token in round_.tokens if token.judged]
        self.judged += round_.judged_length
        self.told += sum(token.kl is not None for token in judged)
        self.total_kl += sum(token.kl or 0.0 for token in judged)
        self.total_output_kl += sum(token.output_kl or 0.0 for token in judged)
        self._count_positions(round_, round_.judged_length)

    def _count_positions(self, round_: Round, judged: int) -> None:
        for index in range(round_.num_draft_tokens):
            if index == len(self.positions):
                self.positions.append(PositionCount(position=index + 1))
            old = self.positions[index]
            self.positions[index] = PositionCount(
                position=old.position,
                drafted=old.drafted + 1,
                judged=old.judged + (index < judged),
                accepted=old.accepted + (index < round_.accepted_length),
            )

    @property
    def seconds(self) -> float:
        """Seconds spent in rounds so far."""
        return self.draft_seconds + self.verify_seconds + self.judge_seconds + self.step_seconds

    @property
    def timed(self) -> int:
        """Tokens that these seconds brought."""
        return self.generated - self.of_prompt

    @property
    def mean_accepted_length(self) -> float | None:
        """Accepted tokens a round."""
        return ratio(self.accepted, self.rounds - self.of_prompt)

    @property
    def speedup(self) -> float | None:
        """Measured speedup over the verifier alone so far."""
        return ratio(self.baseline_seconds, ratio(self.seconds, self.timed))

    @property
    def draft_step_ratio(self) -> float | None:
        """c: measured seconds of one draft step ÷ measured seconds of one verifier step."""
        if self.step_seconds:  # what of a round went into drafting is not known
            return None
        return ratio(ratio(self.draft_seconds, self.drafted), self.baseline_seconds)

    @property
    def ideal_speedup(self) -> float | None:
        """Speedup if a verifier pass cost one verifier step and judging nothing."""
        if self.draft_step_ratio is None:
            return None
        return ratio(self.generated, self.rounds + self.drafted * self.draft_step_ratio)

    def metrics(self) -> Metrics:
        """The figures at this point."""
        return Metrics(
            rounds=self.rounds,
            generated_tokens=self.generated,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            judged_tokens=self.judged,
            seconds=self.seconds,
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            judge_seconds=self.judge_seconds,
            accepted_length=self.mean_accepted_length if self.drafted else None,
            tokens_per_round=ratio(self.timed, self.rounds - self.of_prompt),
            acceptance_rate=ratio(self.accepted, self.drafted),
            tokens_per_second=ratio(self.timed, self.seconds),
            baseline_tokens_per_second=ratio(1.0, self.baseline_seconds),
            speedup=self.speedup,
            ideal_speedup=self.ideal_speedup,
            draft_step_ratio=self.draft_step_ratio,
            total_kl=self.total_kl,
            mean_kl=ratio(self.total_kl, self.told),
            mean_output_kl=ratio(self.total_output_kl, self.told),
            verifier_passes_saved=self.generated - self.rounds if self.rounds else 0,
            positions=tuple(self.positions),
        )


@dataclass(frozen=True)
class SeriesPoint:
    """The state of a run after one round; the live plots draw a list of these."""

    round_index: int
    generated_tokens: int
    accepted_length: int
    mean_accepted_length: float
    ended: str  # how the round ended: recovered, bonus, sampled, or accepted (a stop cut it)
    speedup: float | None
    ideal_speedup: float | None


def series_point(tally: Tally, round_: Round) -> SeriesPoint:
    """The point of `round_`, which `tally` has just counted."""
    emitted = round_.emitted
    return SeriesPoint(
        round_index=round_.index,
        generated_tokens=tally.generated,
        accepted_length=round_.accepted_length,
        mean_accepted_length=tally.mean_accepted_length or 0.0,
        ended=emitted[-1].status if emitted else "accepted",
        speedup=tally.speedup,
        ideal_speedup=tally.ideal_speedup,
    )


def series(rounds: Sequence[Round], baseline_seconds: float | None) -> list[SeriesPoint]:
    """One point per round."""
    tally = Tally(baseline_seconds)
    points = []
    for round_ in rounds:
        tally.add(round_)
        points.append(series_point(tally, round_))
    return points
