"""Metrics → the six tiles: a label, a figure with its unit, and a note that says what it is, or why there is none."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Literal

from cactus.metrics import Metrics

NONE = "–"
Tone = Literal["", "good", "bad"]


@dataclass(frozen=True)
class Tile:
    label: str
    value: str
    unit: str
    note: str
    tone: Tone = ""


def tiles(metrics: Metrics, drafts: bool) -> tuple[Tile, ...]:
    """The tiles of a run so far. `drafts`: whether the method drafts at all."""
    return (
        _rate(metrics),
        _speedup(metrics, drafts),
        _accepted_length(metrics, drafts),
        _acceptance(metrics, drafts),
        _divergence(metrics, drafts),
        _passes(metrics),
    )


def to_json(shown: tuple[Tile, ...]) -> str:
    """The tiles as the page reads them."""
    return json.dumps([asdict(tile) for tile in shown], ensure_ascii=False)


def _rate(metrics: Metrics) -> Tile:
    alone = metrics.baseline_tokens_per_second
    note = f"verifier alone {alone:.1f}" if alone is not None else "verifier alone not measured"
    if metrics.tokens_per_second is None:
        return Tile("Speed", NONE, "", "no token yet")
    return Tile("Speed", f"{metrics.tokens_per_second:.1f}", "tokens/s", note)


def _speedup(metrics: Metrics, drafts: bool) -> Tile:
    if metrics.speedup is None:
        reason = "the verifier alone was not measured" if metrics.generated_tokens else "no token yet"
        return Tile("Speedup", NONE, "", reason)
    if not drafts:  # what is left of 1 is the noise of the measurement
        return Tile("Speedup", f"{metrics.speedup:.2f}", "×", "measured · this is the verifier alone")
    ideal = f"ideal {metrics.ideal_speedup:.2f}×" if metrics.ideal_speedup is not None else "measured"
    note, tone = (f"slower than alone · {ideal}", "bad") if metrics.speedup < 1 else (f"measured · {ideal}", "good")
    return Tile("Speedup", f"{metrics.speedup:.2f}", "×", note, tone)  # type: ignore[arg-type]


def _accepted_length(metrics: Metrics, drafts: bool) -> Tile:
    if metrics.accepted_length is None or metrics.tokens_per_round is None:
        return Tile("Accepted length", NONE, "", _why_no_draft(drafts))
    whole = abs(metrics.tokens_per_round - metrics.accepted_length - 1) < 0.005
    note = f"{metrics.tokens_per_round:.2f} tokens per round ({'AL + 1' if whole else 'a stop cut the last one'})"
    return Tile("Accepted length", f"{metrics.accepted_length:.2f}", "mean AL", note)


def _acceptance(metrics: Metrics, drafts: bool) -> Tile:
    if metrics.acceptance_rate is None:
        return Tile("Acceptance rate", NONE, "", _why_no_draft(drafts))
    note = f"{metrics.accepted_tokens} of {metrics.drafted_tokens} drafted"
    return Tile("Acceptance rate", f"{metrics.acceptance_rate * 100:.0f}", "%", note)


def _divergence(metrics: Metrics, drafts: bool) -> Tile:
    if metrics.mean_kl is None:
        reason = "not known of this run" if metrics.drafted_tokens else _why_no_draft(drafts)
        return Tile("Divergence", NONE, "", reason)
    output = nats(metrics.mean_output_kl) if metrics.mean_output_kl is not None else NONE
    return Tile("Divergence", nats(metrics.mean_kl), "nats/step", f"KL(h‖q); of the output {output}")


def _passes(metrics: Metrics) -> Tile:
    if not metrics.rounds:
        return Tile("Passes saved", NONE, "", "no token yet")
    note = f"{metrics.rounds} passes for {metrics.generated_tokens} tokens"
    return Tile("Passes saved", str(metrics.verifier_passes_saved), "", note)


def _why_no_draft(drafts: bool) -> str:
    return "no round yet" if drafts else "nothing is drafted"


def nats(value: float) -> str:
    """A divergence; tiny rounding errors are not shown as negative zeros."""
    if math.isinf(value):
        return "∞"
    return f"{value:.3f}" if abs(value) >= 0.0005 else "0.000"
