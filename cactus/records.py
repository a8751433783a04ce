"""From verdicts to token records: text, positions, and where the stream of tokens stops.

EOS, stop strings and the token limit are decided here, token by token in order, before anything is committed.
Knows no tensors and no models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cactus.evidence import Evidence, Findings, Top
from cactus.text import REPLACEMENT, StopStrings, TextStream
from cactus.trace import Status, StopReason, Token, TopToken


@dataclass
class TokenWriter:
    """Writes the records of one run and says when it ends.

    `describe` names a token for the lists of likeliest tokens. A token's text is what it makes certain: nothing
    while a character is unfinished, and nothing behind a stop string.
    """

    stream: TextStream
    stops: StopStrings
    eos_ids: frozenset[int]
    max_new_tokens: int
    describe: Callable[[int], str]
    limit_reason: StopReason = "length"  # why there is a limit: asked for, or the context's end
    ends: Callable[[int], bool] | None = None  # hears every emitted token; true ends the text behind it
    emitted: int = 0
    stop_reason: StopReason | None = None
    _names: dict[int, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Tokens the run may still emit."""
        return self.max_new_tokens - self.emitted

    def write(self, findings: Findings) -> list[Token]:
        """Records of one round, in drafted order; the drawn token last unless the run stopped before it."""
        drafted, evidence = findings.drafted, findings.evidence
        records = []
        for token, numbers in zip(drafted[: findings.accepted], evidence, strict=False):
            records.append(self._emit(token, "accepted", numbers))
            if self.stop_reason:
                return records + self._unused(drafted, evidence, len(records), rejected=False)
        records += self._unused(drafted, evidence, findings.accepted, findings.rejected)
        records.append(self._emit(findings.drawn, _drawn_status(findings), evidence[-1]))
        return records

    def _emit(self, token: int, status: Status, evidence: Evidence) -> Token:
        position = self.emitted
        self.emitted += 1
        text = self.stream.push(token)
        cut = self.stops.cut(text)
        asked_to_end = self.ends is not None and self.ends(token)
        if cut is not None:
            text, self.stop_reason = cut, "stop"
        elif token in self.eos_ids or asked_to_end:
            self.stop_reason = "stop"
        elif self.left <= 0:
            self.stop_reason = self.limit_reason
        if self.stop_reason and cut is None:
            text += self.stream.flush()
        return self._record(token, text, status, position, evidence)

    def _unused(self, drafted: Sequence[int], evidence: list[Evidence], start: int, rejected: bool) -> list[Token]:
        """The rejected token and those behind it, or those behind a stop: shown, never kept."""
        aside = self.stream.fork()
        records = []
        for index in range(start, len(drafted)):
            refused = rejected and index == start
            numbers = evidence[index] if refused else _unjudged(evidence[index])
            # Behind half a character the half shows up as a replacement character: not this token's text.
            text, position = aside.push(drafted[index]).lstrip(REPLACEMENT), self.emitted + index - start
            records.append(
                self._record(drafted[index], text, "rejected" if refused else "discarded", position, numbers)
            )
        return records

    def _record(self, token: int, text: str, status: Status, position: int, evidence: Evidence) -> Token:
        numbers: dict[str, Any] = dict(vars(evidence))
        numbers["top_draft"] = self._top(evidence.top_draft)
        numbers["top_verifier"] = self._top(evidence.top_verifier)
        return Token(id=token, text=text, status=status, position=position, **numbers)

    def _top(self, top: Top | None) -> tuple[TopToken, ...]:
        return tuple(TopToken(id=token, text=self._name(token), prob=prob) for token, prob in top or ())

    def _name(self, token: int) -> str:
        if token not in self._names:
            self._names[token] = self.describe(token)
        return self._names[token]


def _drawn_status(findings: Findings) -> Status:
    if not findings.drafted:
        return "sampled"
    return "recovered" if findings.rejected else "bonus"


def _unjudged(evidence: Evidence) -> Evidence:
    """Without a verdict: a token behind a stop was tested, but the test came to nothing."""
    return replace(evidence, boosted_prob=None, accept_prob=None, uniform=None, kl=None, output_kl=None)
