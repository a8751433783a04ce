"""What a budget buys: accepted length against divergence spent, over many runs, and two methods at equal spend.

Deterministic in prompts and seeds; no time is involved. Knows traces alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cactus.trace import Trace


@dataclass(frozen=True)
class TradePoint:
    """A setting over many runs, all pooled. accepted_length: a round; output_kl: Σ KL(output‖q) per emitted token, and
    adjusted_kl: Σ KL(h‖q) per emitted token, nats.
    """

    method: str
    accepted_length: float
    output_kl: float
    adjusted_kl: float
    rounds: int
    tokens: int


@dataclass(frozen=True)
class Gain:
    """A point of one method against another method at the same output_kl, by linear interpolation between points.

    gain: accepted length more than the reference's; error: its standard error, by leaving out one prompt at a time.
    None where the reference has no points on both sides.
    """

    point: TradePoint
    reference: float | None
    gain: float | None
    error: float | None


Runs = Mapping[str, Mapping[str, Sequence[Trace]]]
"""Setting → prompt → its runs."""


def trade_point(method: str, traces: Sequence[Trace]) -> TradePoint:
    """Sums over all runs ÷ sums over all runs."""
    metrics = [trace.metrics() for trace in traces]
    rounds, tokens = sum(m.rounds for m in metrics), sum(m.generated_tokens for m in metrics)
    output = sum((m.mean_output_kl or 0.0) * m.judged_tokens for m in metrics)
    return TradePoint(
        method=method,
        accepted_length=sum(m.accepted_tokens for m in metrics) / max(rounds, 1),
        output_kl=output / max(tokens, 1),
        adjusted_kl=sum(m.total_kl for m in metrics) / max(tokens, 1),
        rounds=rounds,
        tokens=tokens,
    )


def curve(runs: Runs, without: str | None = None) -> list[TradePoint]:
    """A point for each setting, by rising divergence; `without` leaves out one prompt."""
    pooled = {
        method: [trace for prompt, traces in prompts.items() if prompt != without for trace in traces]
        for method, prompts in runs.items()
    }
    return sorted((trade_point(*entry) for entry in pooled.items()), key=lambda point: point.output_kl)


def length_at(points: Sequence[TradePoint], output_kl: float) -> float | None:
    """The accepted length at a divergence, between the two points around it; None outside."""
    for low, high in itertools.pairwise(points):
        if low.output_kl <= output_kl <= high.output_kl:
            width = high.output_kl - low.output_kl
            share = (output_kl - low.output_kl) / width if width else 0.0
            return low.accepted_length + share * (high.accepted_length - low.accepted_length)
    return None


def gains(reference: Runs, other: Runs) -> list[Gain]:
    """Each point of `other` against `reference` at equal spend, with the error over prompts."""
    prompts = list(next(iter(other.values())))
    whole = _differences(reference, other, None)
    parts = [_differences(reference, other, prompt) for prompt in prompts]
    base = curve(reference)
    return [
        Gain(point, length_at(base, point.output_kl), whole[point.method], _jackknife([p[point.method] for p in parts]))
        for point in curve(other)
    ]


def _differences(reference: Runs, other: Runs, without: str | None) -> dict[str, float | None]:
    base = curve(reference, without)
    found = {point.method: (point, length_at(base, point.output_kl)) for point in curve(other, without)}
    return {
        method: None if length is None else point.accepted_length - length for method, (point, length) in found.items()
    }


def _jackknife(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < 2 or len(known) < len(values):
        return None
    mean = sum(known) / len(known)
    return math.sqrt((len(known) - 1) / len(known) * sum((value - mean) ** 2 for value in known))


def collect(settings: Sequence[str], prompts: Sequence[str], seeds: Sequence[int],
            run: Callable[[str, str, int], Trace]) -> dict[str, dict[str, list[Trace]]]:  # fmt: skip
    """All runs: prompt by prompt and seed by seed, the settings one after another, so that nothing drifts apart."""
    runs: dict[str, dict[str, list[Trace]]] = {setting: {prompt: [] for prompt in prompts} for setting in settings}
    for prompt in prompts:
        for seed in seeds:
            for setting in settings:
                runs[setting][prompt].append(run(setting, prompt, seed))
    return runs
