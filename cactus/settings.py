"""What a run is asked to do, checked once."""

from __future__ import annotations

import reprlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
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
            raise CactusError(f"num_draft_tokens is {_short(self.num_draft_tokens)} without a rule; only 0 is allowed")
        if self.rule is not None:
            check_draft_length(self.num_draft_tokens)
        check_seconds(self.max_seconds)
        check_stops(self.stop)


def _short(value: object) -> str:
    """A bad value, not all of it where it is long."""
    return reprlib.repr(value).replace("\n", " ")[:80]


def check_seconds(value: object) -> None:
    """`CactusError` unless it is None, for no limit, or a number of seconds."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if value is not None and not (number and value >= 0):  # type: ignore[operator]  # NaN is not, either
        raise CactusError(f"max_seconds is {_short(value)}; None or a number of at least 0 is allowed")


def check_draft_length(value: object) -> None:
    """`CactusError` unless it is a number of tokens to draft, or "auto"."""
    if isinstance(value, str) and value == AUTO:
        return
    if isinstance(value, str):
        raise CactusError(f"num_draft_tokens is {_short(value)}; {AUTO!r} or 1 to {MAX_DRAFT_TOKENS} is allowed")
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
        raise CactusError(f"{name} is {_short(value)}; whole numbers from {allowed} are allowed")


def check_stops(stops: Sequence[object]) -> None:
    """`CactusError` unless all stop strings are strings with something in them."""
    several = isinstance(stops, Sequence) and not isinstance(stops, str | bytes)
    if not several or not all(isinstance(stop, str) and stop for stop in stops):
        raise CactusError(f"stop is {_short(stops)}; only a list of non-empty strings is allowed")


def check_prompt(prompt: object) -> None:
    """`CactusError` unless it is text, chat messages or token ids."""
    if isinstance(prompt, str):
        return check_text(prompt)
    several = isinstance(prompt, Sequence) and not isinstance(prompt, bytes)
    items = list(prompt) if several else []  # type: ignore[call-overload]
    if not several or not (all(map(_is_id, items)) or all(map(_is_message, items))):
        raise CactusError(f"prompt is {_short(prompt)}; text, chat messages or token ids are allowed")
    for item in items:
        if isinstance(item, dict):
            check_text(item["content"])
    return None


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _is_message(item: object) -> bool:
    words = [*item, *item.values()] if isinstance(item, dict) else []
    return all(isinstance(word, str) for word in words) and {"role", "content"} <= set(words[: len(words) // 2])


def check_text(text: object) -> None:
    """`CactusError` unless it is text, and without half a surrogate pair, which no tokenizer takes."""
    if not isinstance(text, str):
        raise CactusError(f"{_short(text)} is no text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        bad = ord(text[error.start])
        raise CactusError(f"character {error.start} of the text is U+{bad:04X}, half a character; remove it") from None
