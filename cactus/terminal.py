"""What is written to a terminal: styles, text that cannot steer it, a progress line. Knows nothing of models."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO

from cactus.trace import Token

# Each status has a colour and, for those who do not see it, another sign: underlined, bold or struck through.
STYLES = {
    "accepted": "32;4",
    "recovered": "33;1",
    "bonus": "36;1;4",
    "rejected": "31;9",
    "discarded": "90;9",
    "sampled": "",
}
COLOR_CHOICES = ("auto", "always", "never")


def wants_color(choice: str, stream: TextIO) -> bool:
    """`choice` as given with --color; "auto" means: a terminal, and nothing in the environment against it."""
    if choice == "auto":
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return choice == "always"


def harmless(text: str) -> str:
    """Control and direction-changing characters as visible signs; line breaks and tabs stay.

    Otherwise a model's text could move the cursor, rename the window or rewrite what was printed before.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character
    if character in "\u200c\u200d":  # joiners, which emoji and several scripts need
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's pictures of them: ␛ for escape
    return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"


def one_line(text: str) -> str:
    """For error messages, which may quote anything."""
    return harmless(" ".join(text.split()))


def styled(text: str, status: str) -> str:
    """The text in the style of a status, ended at line breaks: a style must not colour the rest of the line."""
    style = STYLES[status]
    if not style:
        return text
    return "\n".join(f"\x1b[{style}m{line}\x1b[0m" if line else "" for line in text.split("\n"))


class TokenPrinter:
    """Writes tokens as they come.

    With colour: styled, and never a control character of the model's own. Without colour, a terminal gets harmless
    text, a pipe or a file the exact text. `drafts` shows what was drafted and not kept, too.
    """

    def __init__(self, stream: TextIO, color: bool, drafts: bool = False) -> None:
        self.stream = stream
        self.color = color
        self.drafts = drafts
        self._exact = not color and not stream.isatty()

    def write(self, tokens: Iterable[Token]) -> None:
        """One round's tokens, at once."""
        self.stream.write("".join(self._render(token) for token in tokens if token.emitted or self.drafts))
        self.stream.flush()

    def _render(self, token: Token) -> str:
        text = token.text if self._exact else harmless(token.text)
        if self.color:
            return styled(text if token.emitted else text.replace("\n", "⏎"), token.status)
        return text if token.emitted or not text else f"[-{text}-]"

    def legend(self, statuses: Iterable[str]) -> str:
        """The statuses, each in its own style; empty without colour."""
        return " ".join(styled(status, status) for status in statuses) if self.color else ""


class ProgressLine:
    """A bar on a terminal; elsewhere (a build's log) one line for each new step. Gone when closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: Any = None
        self._step = ""

    def __call__(self, share: float | None, message: str) -> None:
        """A `Progress`."""
        if self._stream.isatty():
            self._draw(share, message)
            return
        step = message.split(":")[0].split(", once")[0]
        if step != self._step:
            self._step = step
            self._stream.write(f"{one_line(message)}\n")
            self._stream.flush()

    def _draw(self, share: float | None, message: str) -> None:
        from tqdm import tqdm

        if self._bar is None:
            layout = "{percentage:3.0f}% |{bar:24}| {desc}"
            self._bar = tqdm(total=1.0, file=self._stream, bar_format=layout, leave=False, dynamic_ncols=True)
        if share is not None:
            self._bar.n = min(share, 1.0)
        self._bar.set_description_str(one_line(message), refresh=True)

    def close(self) -> None:
        """Clear the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
