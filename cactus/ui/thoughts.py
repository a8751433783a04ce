"""Which tokens of an answer a model thought aloud: those between <think> and </think>. A matter of the view alone.

Models that think have each of the two tags as one token, so what others write as prose, letter by letter, stays prose.
Knows records only.
"""

from __future__ import annotations

from collections.abc import Iterator

from cactus.trace import Round

OPENING, CLOSING = "<think>", "</think>"
ANSWER, THOUGHT, THOUGHT_SO_FAR = 0, 1, 2
"""Marks of a token; the last: also all tokens before it, as the chat template had opened the thought already."""


class Thoughts:
    """Follows the answer of one run, round by round."""

    def __init__(self) -> None:
        self._inside = False
        self._begun = False  # a tag that opens a thought opens the answer, or is prose
        self._over = False

    def marks(self, round_: Round) -> Iterator[int]:
        """One mark for each token of the round. What was not emitted stands where the text stood."""
        for token in round_.tokens:
            tag = token.text.strip() if token.emitted else ""
            if tag == OPENING and not self._inside:
                self._inside, self._over = not self._begun, self._begun
            self._begun |= bool(tag)
            if tag == CLOSING and not self._over:
                yield THOUGHT if self._inside else THOUGHT_SO_FAR
                self._inside, self._over = False, True
            else:
                yield THOUGHT if self._inside else ANSWER
