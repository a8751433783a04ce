"""What decoding asks of models, drafters and tokenizers. Protocols only: `models` and `drafters` implement them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cactus.pace import StepCosts

Prompt = str | Sequence[dict[str, str]] | Sequence[int]
"""Text (one user turn), chat messages with role and content, or token ids used as they are."""

Choose = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(logits [k], the ids [k] of their tokens or None if they are 0 to k - 1) -> (the column drawn [1], the float32
distribution [k] it was drawn from)."""

Turn = Callable[[], AbstractContextManager[object]]
"""Entered around every use of the models, a round or less: between two of them, others may use them."""


@dataclass(frozen=True)
class Output:
    """Logits [kept, vocab] of the last fed tokens and, where asked for, hidden states [fed, hidden] of all of them."""

    logits: Tensor
    hidden: Tensor | None = None


class CachedModel(Protocol):
    """A causal language model with the cache of one run. `length`: tokens in the cache."""

    @property
    def length(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def feed(self, tokens: Sequence[int] | Tensor, keep: int = 1, want_hidden: bool = False) -> Output:
        """Append `tokens` (at least one) to the cache; logits of the last `keep` of them."""

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens; `RewindError`, and nothing forgotten, where that is impossible."""

    def fork(self) -> CachedModel:
        """A copy whose cache goes its own way."""


class FeatureModel(Protocol):
    """A head over (token, hidden state before it), with the cache of one run. `length`: pairs in the cache."""

    @property
    def length(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def feed(self, tokens: Sequence[int] | Tensor, features: Tensor) -> Output:
        """Append pairs (features [fed, hidden]); logits [1, vocab] of the last, estimated hidden states of all."""

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` pairs."""


@dataclass(frozen=True)
class DraftContext:
    """What a drafter gets each round.

    `committed`: prompt and emitted tokens; at most `count` tokens are wanted. `hidden`: the verifier's last hidden
    states [new, hidden] of the committed tokens fed since the last round (all but the newest token), for a drafter
    with `wants_hidden`. `enough`: to be asked behind each drafted token, with the token and the probability it was
    drawn with; if so, drafting ends there. None: nobody looks, so tokens are not waited for.
    """

    committed: Sequence[int]
    count: int
    choose: Choose
    hidden: Tensor | None = None
    enough: Callable[[int | Tensor, float | Tensor], bool] | None = None


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens [m] and, row by row, the distributions [m, vocab] they were really drawn from.

    token_ids: the tokens [k] that can be drafted, None for all or if unknown; columns: where among them the drafted
    ones stand [m].
    """

    tokens: Tensor
    probs: Tensor
    token_ids: Tensor | None = None
    columns: Tensor | None = None


class Drafter(Protocol):
    """Proposes tokens for one run. `context_length`: the longest sequence it can read, None for any."""

    wants_hidden: bool

    @property
    def context_length(self) -> int | None: ...

    def prefill(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        """Read the prompt ahead of the first round; `hidden` [len(tokens), hidden] as in `DraftContext`."""

    def propose(self, context: DraftContext) -> Proposal:
        """Up to `context.count` tokens, none where it has nothing to say."""

    def rewind(self, length: int) -> None:
        """Forget whatever lies beyond the first `length` tokens."""


class TextCodec(Protocol):
    """Between text and token ids. `eos_ids` end a run; ids from `vocab_size` on are padding and never drawn."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    def encode_prompt(self, prompt: Prompt, system: str = "") -> list[int]:
        """Token ids of a prompt; `PromptError` says what is wrong with it."""

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text that no template is put around."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""

    def describe(self, token: int) -> str:
        """A visible name for one token, special or not."""


class ModelPair(Protocol):
    """A verifier and a drafter for it, ready to run; each run takes its own caches."""

    @property
    def name(self) -> str: ...

    @property
    def codec(self) -> TextCodec: ...

    @property
    def dtype(self) -> str: ...

    @property
    def weights(self) -> str: ...

    @property
    def draft_weights(self) -> str: ...

    @property
    def caches(self) -> str: ...

    @property
    def costs(self) -> StepCosts:
        """Measured on first use, and the same from then on."""

    def new_verifier(self) -> CachedModel:
        """The verifier with an empty cache."""

    def new_drafter(self) -> Drafter:
        """The drafter with an empty cache."""
