"""What one run is asked to do, checked when it is made. Knows no models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cactus.acceptance import RULES, Rule, make_rule
from cactus.errors import CactusError
from cactus.interfaces import Prompt
from cactus.limits import MAX_NEW_TOKENS, Limits
from cactus.pairs import DEFAULT_PAIR, find_pair
from cactus.sampling import SamplingParams
from cactus.settings import (
    DEFAULT_DRAFT_TOKENS,
    MAX_SEED,
    DraftLength,
    check_draft_length,
    check_prompt,
    check_stops,
    check_text,
    check_whole,
)

VERIFIER_ONLY = "ar"
METHODS = (VERIFIER_ONLY, *RULES)
KINDS = {str: "text", bool: "true or false"}


@dataclass(frozen=True)
class RunRequest:
    """All settings of one run. `ValueError` names the first bad value and what is allowed.

    method: a name in `RULES`, or "ar" for the verifier alone (then `params` and `num_draft_tokens` are not used).
    raw: the prompt, a text, is not put into the chat template. conversation: a name that nobody can guess; the turns of
    one conversation read no token twice (`prefix`).
    """

    pair: str = DEFAULT_PAIR
    method: str = "cactus"
    params: Mapping[str, Any] = field(default_factory=dict)
    num_draft_tokens: DraftLength = DEFAULT_DRAFT_TOKENS
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 128
    seed: int | None = None
    prompt: Prompt = ""
    system: str = ""
    stop: tuple[str, ...] = ()
    raw: bool = False
    conversation: str = ""

    def __post_init__(self) -> None:
        find_pair(self.pair)
        if not isinstance(self.method, str) or self.method not in METHODS:
            raise CactusError(f"method is {self.method!r:.60}; {', '.join(METHODS)} are allowed")
        if not isinstance(self.params, Mapping) or not all(isinstance(name, str) for name in self.params):
            raise CactusError(f"params is {self.params!r:.60}; parameters by name are allowed")
        if not isinstance(self.sampling, SamplingParams):
            raise CactusError(f"sampling is {self.sampling!r:.60}; SamplingParams are allowed")
        for name, kind in (("system", str), ("raw", bool), ("conversation", str)):
            if not isinstance(getattr(self, name), kind):
                raise CactusError(f"{name} is {getattr(self, name)!r:.60}; only {KINDS[kind]} is allowed")
        check_draft_length(self.num_draft_tokens)
        check_whole("max_new_tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS)
        if self.seed is not None:
            check_whole("seed", self.seed, 0, MAX_SEED)
        check_prompt(self.prompt)
        if isinstance(self.prompt, str) and not self.prompt.strip():
            raise CactusError("the prompt is empty; write at least one word")
        if self.raw and (not isinstance(self.prompt, str) or self.system.strip()):
            raise CactusError("a raw prompt is text, taken as it is; messages and a system prompt need a chat template")
        self.check(Limits())
        check_text(self.system)
        check_stops(self.stop)
        _ = self.rule  # its parameters are checked by making it

    @property
    def rule(self) -> Rule | None:
        """The acceptance rule, None for the verifier alone."""
        return None if self.method == VERIFIER_ONLY else make_rule(self.method, **self.params)

    def check(self, limits: Limits) -> None:
        """`CactusError` if it asks for more than these limits allow."""
        limits.check(self.max_new_tokens, self._texts())

    def _texts(self) -> list[str]:
        if isinstance(self.prompt, str):
            return [self.system, self.prompt]
        contents = [item.get("content") for item in self.prompt if isinstance(item, dict)]
        return [self.system, *(content for content in contents if isinstance(content, str))]
