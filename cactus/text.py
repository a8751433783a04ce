"""Text of a growing token stream: whole characters only, and stop strings.

Knows a decoding function, not a tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

REPLACEMENT = "\ufffd"
# An unfinished UTF-8 character decodes to up to three replacement characters (one per byte with byte fallback).
MAX_UNFINISHED = 3
# Tokens kept as left context: decoders treat a first token differently (SentencePiece drops its space).
CONTEXT_TOKENS = 4
# A stream that never ends on a whole character is cut loose here, so that cost stays linear.
MAX_WINDOW = 64


def _unfinished(text: str) -> int:
    """How many trailing characters may still change when more bytes arrive."""
    return min(len(text) - len(text.rstrip(REPLACEMENT)), MAX_UNFINISHED)


@dataclass
class TextStream:
    """Turns tokens into text pieces; a character split over tokens comes whole, with the token that completes it.

    The pieces (with `flush` at the end) add up to `decode(all tokens)`. Constant work per token.
    """

    decode: Callable[[Sequence[int]], str]
    window: list[int] = field(default_factory=list)
    shown: int = 0  # characters of decode(window) already given out

    def push(self, token: int) -> str:
        """The text that `token` makes certain, possibly none."""
        self.window.append(token)
        text = self.decode(self.window)
        stable = len(text) - _unfinished(text)
        piece = text[self.shown : stable]
        self.shown = max(self.shown, stable)
        if self.shown == len(text):
            self._slide()
        elif len(self.window) > MAX_WINDOW:
            piece += text[self.shown :]
            self._slide()
        return piece

    def flush(self) -> str:
        """What is still held back, as it stands."""
        text = self.decode(self.window)
        piece = text[self.shown :]
        self.shown = len(text)
        return piece

    def fork(self) -> TextStream:
        """A copy that goes its own way (for tokens that are shown but not kept)."""
        return replace(self, window=self.window[:])

    def _slide(self) -> None:
        self.window = self.window[-CONTEXT_TOKENS:]
        self.shown = len(self.decode(self.window))


@dataclass
class StopStrings:
    """Finds the first stop string in text that arrives in pieces, also across pieces."""

    stops: tuple[str, ...]
    tail: str = ""

    def cut(self, piece: str) -> str | None:
        """`piece` cut right behind the stop string it completes, or None where it completes none."""
        if not self.stops:
            return None
        text = self.tail + piece
        ends = [found + len(stop) for stop in self.stops if (found := text.find(stop)) >= 0]
        if ends:
            return piece[: max(0, min(ends) - len(self.tail))]
        keep = max(map(len, self.stops)) - 1
        self.tail = text[-keep:] if keep else ""
        return None
