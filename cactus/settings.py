"""What a run is asked to do, checked once."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cactus.errors import CactusError
from cactus.trace import MAX_DRAFT_TOKENS, MAX_SEED

if TYPE_CHECKING:  # the limits that a server is started with are read before torch is
    from cactus.acceptance import Rule
    from cactus.sampling import SamplingParams

DEFAULT_DRAFT_TOKENS = 5
AUTO = "auto"  # a draft length: as many tokens as pay, up to the most there are
DraftLength = int | Literal["auto"]


def fresh_seed() -> int:
    """A seed nobody chose; it is recorded in the trace like any other."""
    return secrets.randbelow(MAX_SEED + 1)


@dataclass(frozen=True)
class Settings:
    """What a run is asked to do. `ValueError` names the value and what is allowed.

    num_draft_tokens: a number, or "auto" for as many as pay (`pace.Paying`).
    """

    rule: Rule | None
    num_draft_tokens: DraftLength
    sampling: SamplingParams
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...] = ()
    baseline_steps: int = 0
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        check_whole("max_new_tokens", self.max_new_tokens, 1, None)
        check_whole("seed", self.seed, 0, MAX_SEED)
        check_whole("baseline_steps", self.baseline_steps, 0, None)
        if self.rule is None and self.num_draft_tokens != 0:
            raise CactusError(f"num_draft_tokens is {self.num_draft_tokens!r} without a rule; only 0 is allowed")
        if self.rule is not None:
            check_draft_length(self.num_draft_tokens)
        check_stops(self.stop)


def check_draft_length(value: object) -> None:
    """`CactusError` unless it is a number of tokens to draft, or "auto"."""
    if value == AUTO:
        return
    if isinstance(value, str):
        raise CactusError(f"num_draft_tokens is {value!r}; {AUTO!r} or 1 to {MAX_DRAFT_TOKENS} is allowed")
    check_whole("num_draft_tokens", value, 1, MAX_DRAFT_TOKENS)


def parse_draft_length(text: str) -> DraftLength:
    """A draft length as people write it; `CactusError` names what is allowed."""
    number = int(text) if text.strip().isdecimal() else text.strip()
    check_draft_length(number)
    return number  # type: ignore[return-value]


def check_whole(name: str, value: object, low: int, high: int | None) -> None:
    """`CactusError` naming the setting, the value and the allowed range, unless it is a whole number in it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        allowed = f"{low} to {high}" if high is not None else f"{low} or more"
        raise CactusError(f"{name} is {value!r}; whole numbers from {allowed} are allowed")


def check_stops(stops: Sequence[object]) -> None:
    """`CactusError` unless all stop strings are strings with something in them."""
    if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
        raise CactusError(f"stop is {stops!r:.80}; only a list of non-empty strings is allowed")


def check_text(text: str) -> None:
    """`CactusError` for text with half a surrogate pair in it, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = ord(text[error.start])
        raise CactusError(f"character {error.start} of the text is U+{bad:04X}, half a character; remove it") from None
