"""What a recorded run would have been under other settings, from its recorded probabilities alone.

A rule that reads nothing but p(n) and q(n) is asked about (p_n, 1 − p_n) and (q_n, 1 − q_n): the two parts are all it
looks at. The drafts stay the recorded ones, so what is said holds up to the first verdict that comes out otherwise; a
recovered token may be another one before that, as other rules recover from other distributions. Knows traces and
rules, no models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus.acceptance import RULES, Rule, Steps, make_rule
from cactus.errors import CactusError
from cactus.trace import Round, Token, Trace

SCALAR_RULES = tuple(name for name, rule in RULES.items() if rule.reads == "scalar")


@dataclass(frozen=True)
class PlaceOutlook:
    """A draft position (1 = first). reached: expected number of verdicts here; acceptance_rate: of those reached."""

    position: int
    drafted: int
    reached: float
    accepted: float

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.reached if self.reached else None

    @property
    def survival_rate(self) -> float:
        return self.accepted / self.drafted


@dataclass(frozen=True)
class Change:
    """The first verdict that comes out otherwise: its token in the run, where it stands, and the two probabilities."""

    round_index: int
    place: int
    token: Token
    accept_prob: float


@dataclass(frozen=True)
class Outlook:
    """What is expected of a rule on the recorded drafts. accepted_length: mean over the rounds that drafted."""

    rule: Rule
    accepted_length: float
    places: tuple[PlaceOutlook, ...]
    change: Change | None


def lossless_accept_prob(token: Token) -> float | None:
    """min(1, q/p), what speculative sampling would have accepted this token with; None where nothing was drafted."""
    if token.draft_prob is None or token.verifier_prob is None or not token.draft_prob:
        return None
    return min(1.0, token.verifier_prob / token.draft_prob)


def outlook(trace: Trace, rule: Rule) -> Outlook:
    """The expected accepted length and acceptance by position of `rule` on the drafts of `trace`.

    `CactusError` for a rule that reads more than two scalars, and for a run that drafted nothing.
    """
    chances = list(_round_chances(trace, rule))
    reached, accepted, drafted = [], [], []
    for _, accept, _ in chances:
        alive = 1.0
        for place, chance in enumerate(accept):
            if place == len(reached):
                reached.append(0.0), accepted.append(0.0), drafted.append(0)
            reached[place] += alive
            alive *= chance
            accepted[place] += alive
            drafted[place] += 1
    places = (PlaceOutlook(i + 1, drafted[i], reached[i], accepted[i]) for i in range(len(reached)))
    return Outlook(rule, sum(accepted) / len(chances), tuple(places), first_change(trace, rule))


def accepted_lengths(trace: Trace, rules: Sequence[Rule]) -> list[float]:
    """The expected accepted length of each rule, as `outlook` gives it."""
    lengths = []
    for rule in rules:
        rounds = [accept for _, accept, _ in _round_chances(trace, rule)]
        lengths.append(sum(_expected_length(accept) for accept in rounds) / len(rounds))
    return lengths


def first_change(trace: Trace, rule: Rule) -> Change | None:
    """The first recorded verdict that `rule` turns with the same u; None where all stay."""
    for round_ in _drafted_rounds(trace, rule):
        steps = _judged(rule, *_parts([round_]))
        accept, spent = steps.accept_prob.tolist(), 0.0
        for place, token in enumerate(round_.tokens[: round_.num_draft_tokens]):
            if not token.judged or token.uniform is None:
                break
            if (token.uniform < accept[place]) != (token.status == "accepted"):
                return Change(round_.index, place, token, accept[place])
            spent += max(0.0, float(steps.kl[place]))
        rule = rule.advance(spent)
    return None


def sweep(
    trace: Trace, name: str, parameter: str, values: Sequence[float], params: Mapping[str, object]
) -> list[float]:
    """The expected accepted length of the rule `name` as one of its parameters takes these values."""
    return accepted_lengths(trace, [make_rule(name, **{**params, parameter: value}) for value in values])


def _expected_length(accept: Sequence[float]) -> float:
    length, alive = 0.0, 1.0
    for chance in accept:
        alive *= chance
        length += alive
    return length


def _round_chances(trace: Trace, rule: Rule) -> Iterator[tuple[Round, list[float], Rule]]:
    """Each round that drafted, its accept probabilities in order, and the rule as it stands at its start.

    A rule that remembers what it spent is told what it is expected to have spent on the round before.
    """
    rounds = _drafted_rounds(trace, rule)
    if rule.advance(1.0) == rule:  # remembers nothing: one block is judged as well as many
        every = iter(_judged(rule, *_parts(rounds)).accept_prob.tolist())
        for round_ in rounds:
            yield round_, [next(every) for _ in range(round_.num_draft_tokens)], rule
        return
    for round_ in rounds:
        steps = _judged(rule, *_parts([round_]))
        accept = steps.accept_prob.tolist()
        yield round_, accept, rule
        spent, alive = 0.0, 1.0
        for chance, nats in zip(accept, steps.kl.tolist(), strict=True):
            spent += alive * max(0.0, nats)
            alive *= chance
        rule = rule.advance(spent)


def _drafted_rounds(trace: Trace, rule: Rule) -> list[Round]:
    if rule.reads != "scalar":
        raise CactusError(f"{rule.name} reads the whole vocabulary, which a trace does not hold: only "
                          f"{', '.join(SCALAR_RULES)} can be asked what if")  # fmt: skip
    rounds = [round_ for round_ in trace.rounds if round_.num_draft_tokens]
    if not rounds:
        raise CactusError("the run drafted nothing, so there is no verdict to ask about")
    return rounds


def _parts(rounds: Sequence[Round]) -> tuple[Tensor, Tensor]:
    """(p_n, 1 − p_n) and (q_n, 1 − q_n) of all drafted tokens, float64: [tokens, 2] both."""
    tokens = [token for round_ in rounds for token in round_.tokens[: round_.num_draft_tokens]]
    if any(token.draft_prob is None or token.verifier_prob is None for token in tokens):
        raise CactusError("the trace lacks probabilities of drafted tokens, so what if cannot be said")
    pairs = torch.tensor([(token.draft_prob, token.verifier_prob) for token in tokens], dtype=torch.float64)
    return torch.stack((pairs[:, 0], 1 - pairs[:, 0]), -1), torch.stack((pairs[:, 1], 1 - pairs[:, 1]), -1)


def _judged(rule: Rule, draft_probs: Tensor, verifier_probs: Tensor) -> Steps:
    return rule.judge(draft_probs, verifier_probs, torch.zeros(len(draft_probs), dtype=torch.long))
