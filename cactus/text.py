"""Text of a growing token stream: whole characters only, and stop strings.

Knows a decoding function, not a tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

REPLACEMENT = "\ufffd"
# A stream that never ends on a whole character is cut loose here, so that the work per token stays bounded.
MAX_WINDOW = 64


@dataclass
class TextStream:
    """Turns tokens into text pieces; a character split over tokens comes whole, with the token that completes it.

    The pieces (with `flush` at the end) add up to `decode(all tokens)`. Bounded work per token: decoded is a window of
    the tokens since the last but one point where the text ended on a whole character. The part before the last such
    point is context: decoders treat a first token differently (SentencePiece drops its space), and byte fallback
    turns a whole run of bytes into replacement characters while its last character is unfinished.
    """

    decode: Callable[[Sequence[int]], str]
    window: list[int] = field(default_factory=list)
    context: int = 0  # tokens of the window before the last whole-character point
    shown: int = 0  # characters of decode(window) already given out

    def push(self, token: int) -> str:
        """The text that `token` makes certain, possibly none."""
        self.window.append(token)
        text = self.decode(self.window)
        if text.endswith(REPLACEMENT) and len(self.window) <= MAX_WINDOW:
            return self._give(text, len(text.rstrip(REPLACEMENT)))
        piece = self._give(text, len(text))
        self._slide()
        return piece

    def flush(self) -> str:
        """What is still held back, as it stands."""
        text = self.decode(self.window)
        return self._give(text, len(text))

    def fork(self) -> TextStream:
        """A copy that goes its own way (for tokens that are shown but not kept)."""
        return replace(self, window=self.window[:])

    def _give(self, text: str, end: int) -> str:
        piece = text[self.shown : end]
        self.shown = max(self.shown, end)
        return piece

    def _slide(self) -> None:
        recent = self.window[self.context :]
        text = self.decode(recent)
        if text or len(self.window) > MAX_WINDOW:  # special tokens alone are no context
            self.window, self.shown = recent, len(text)
        self.context = len(self.window)


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
