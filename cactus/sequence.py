"""What a run spent along its text: divergences summed token by token. Knows traces alone.

By the chain rule the divergence of whole texts is the expected sum of the divergences of their steps. So the expected
total of KL(output‖q) is how far texts of this kind are from the verifier's, where it is told which tokens opened a
round; of the text alone it is an upper bound. KL(h‖q) is what a rule aimed at, and what `cactus_budget` counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cactus.trace import Round, Token, Trace


@dataclass(frozen=True)
class Spent:
    """After the emitted token at `position` (from 0): Σ KL(h‖q) and Σ KL(output‖q) of the verdicts so far, nats."""

    position: int
    aimed: float
    output: float


def spending(trace: Trace) -> list[Spent]:
    """One entry per emitted token; a token that nobody judged (bonus, sampled) adds nothing."""
    points: list[Spent] = []
    aimed = output = 0.0
    for round_ in trace.rounds:
        for token, judged in _verdicts(round_):
            aimed += (judged.kl or 0.0) if judged else 0.0
            output += (judged.output_kl or 0.0) if judged else 0.0
            points.append(Spent(token.position, aimed, output))
    return points


def _verdicts(round_: Round) -> Iterator[tuple[Token, Token | None]]:
    """Each emitted token with the judged token of its place: itself, or the rejected one it stands for."""
    rejected = next((token for token in round_.tokens if token.status == "rejected"), None)
    for token in round_.emitted:
        yield token, token if token.judged else rejected if token.status == "recovered" else None
