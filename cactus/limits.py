"""What one run may ask for and what one server takes on, all in one place. `CactusError` names what is out of range.

The constants bound every request, from wherever it comes. A server may be given tighter limits by the flags of
`app.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cactus.errors import CactusError
from cactus.settings import check_whole

MAX_NEW_TOKENS = 2048
MAX_PROMPT_CHARACTERS = 100_000
MAX_UPLOAD_BYTES = 16 * 1024 * 1024
MAX_SHOWN_TOKENS = 4096  # of a trace file that the page shows
MAX_SESSIONS = 100
"""Tabs that Gradio remembers, also for an hour behind their closing: half a megabyte each. Older ones begin anew."""


@dataclass(frozen=True)
class Limits:
    """Of one server.

    max_runs: as many take turns on the models; max_waiting: as many more wait in line, the next is told to come back.
    max_pairs: as many stay loaded. max_seconds: a run ends after so long, not counting what it waits for others.
    public: strangers use it, so nothing is read from files of theirs, and no models but the registry's.
    """

    max_runs: int = 4
    max_waiting: int = 30
    max_pairs: int = 2
    max_seconds: float = 300.0
    max_new_tokens: int = MAX_NEW_TOKENS
    max_prompt_characters: int = MAX_PROMPT_CHARACTERS
    public: bool = False

    def __post_init__(self) -> None:
        check_whole("max_runs", self.max_runs, 1, 32)
        check_whole("max_waiting", self.max_waiting, 1, 1000)
        check_whole("max_pairs", self.max_pairs, 1, 16)
        check_whole("max_new_tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS)
        check_whole("max_prompt_characters", self.max_prompt_characters, 1, MAX_PROMPT_CHARACTERS)
        if not 0 <= self.max_seconds or math.isnan(self.max_seconds):
            raise CactusError(f"max_seconds is {self.max_seconds!r}; 0 or more is allowed")

    @property
    def max_upload_bytes(self) -> int:
        """Of a file that a visitor may send; in public next to nothing, so that none gets onto the disk."""
        return 1 if self.public else MAX_UPLOAD_BYTES

    def check(self, max_new_tokens: int, texts: Sequence[str]) -> None:
        """`CactusError` if a run with these texts, its prompt among them, asks for more than is allowed here."""
        if max_new_tokens > self.max_new_tokens:
            raise CactusError(f"max_new_tokens is {max_new_tokens}; up to {self.max_new_tokens} are allowed here")
        length = sum(map(len, texts))
        if length > self.max_prompt_characters:
            raise CactusError(
                f"prompt and system prompt have {length:,} characters; at most {self.max_prompt_characters:,} are"
                " allowed here"
            )
