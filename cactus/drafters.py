"""Who proposes: a draft model, a head on the verifier's hidden states, or an n-gram looked up in the text so far.

A drafter returns the very distributions its tokens were drawn from; a deterministic one returns one-hots. Adding a
drafter is one class with the methods of `interfaces.Drafter`. Knows no model library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cactus.errors import CactusError
from cactus.interfaces import CachedModel, DraftContext, FeatureModel, Output, Proposal


@dataclass
class ModelDrafter:
    """A small causal language model.

    vocab_size: of the verifier's processed distributions. token_ids: where the draft model's logits cover only some
    tokens, their ids [draft_vocab]; the others, like missing padding columns, get probability 0.
    """

    model: CachedModel
    vocab_size: int
    token_ids: Tensor | None = None
    wants_hidden: bool = False

    @property
    def context_length(self) -> int:
        return self.model.context_length

    def prefill(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        if len(tokens) > self.model.length:
            self.model.feed(tokens[self.model.length :])
            self.model.rewind(len(tokens))

    def propose(self, context: DraftContext) -> Proposal:
        tokens = list(context.committed)
        start = len(tokens)
        rows: list[Tensor] = []
        while len(rows) < context.count:
            logits = self.model.feed(tokens[self.model.length :]).logits[-1]
            token, probs = context.choose(widen(logits, self.vocab_size, self.token_ids), tokens)
            tokens.append(token)
            rows.append(probs)
            if token in context.stop_ids or context.enough(float(probs[token])):
                break
        return Proposal(tokens[start:], torch.stack(rows))

    def rewind(self, length: int) -> None:
        self.model.rewind(min(length, self.model.length))


@dataclass
class FeatureDrafter:
    """A head that goes on from the verifier's hidden states (EAGLE, Li et al. 2024).

    It reads pairs: the hidden state of a committed token and the token behind it. Where the verifier has not been yet,
    its own estimates stand in; they are forgotten after every round. vocab_size, token_ids: as in `ModelDrafter`.
    """

    model: FeatureModel
    vocab_size: int
    token_ids: Tensor
    wants_hidden: bool = True
    _verified: int = 0  # pairs made of the verifier's own hidden states
    _unread: list[Tensor] = field(default_factory=list)  # hidden states whose pairs are still to be fed

    @property
    def context_length(self) -> int:
        return self.model.context_length

    def prefill(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        self._read(tokens, hidden)

    def propose(self, context: DraftContext) -> Proposal:
        tokens = list(context.committed)
        start = len(tokens)
        output = self._read(tokens, context.hidden)
        rows: list[Tensor] = []
        while output is not None:
            token, probs = context.choose(widen(output.logits[-1], self.vocab_size, self.token_ids), tokens)
            tokens.append(token)
            rows.append(probs)
            if len(rows) == context.count or token in context.stop_ids or context.enough(float(probs[token])):
                break
            assert output.hidden is not None
            output = self.model.feed([token], output.hidden[-1:])
        return Proposal(tokens[start:], torch.stack(rows) if rows else torch.empty(0, self.vocab_size))

    def rewind(self, length: int) -> None:
        """Estimates go in any case; `length` tokens have `length` - 1 pairs. Lost pairs need their states again."""
        pairs = max(0, length - 1)
        if pairs < self._verified:
            self._verified = pairs
            self._unread.clear()
        self.model.rewind(self._verified)

    def _read(self, tokens: Sequence[int], hidden: Tensor | None) -> Output | None:
        """Feed the pairs that have become known; None if there are none (a single token has no past)."""
        if hidden is not None:
            self._unread.append(hidden)
        count = len(tokens) - 1 - self._verified
        if count <= 0 or not self._unread:
            return None
        features = torch.cat(self._unread)
        self._unread = [features[count:]]
        output = self.model.feed(tokens[self._verified + 1 :], features[:count])
        self._verified += count
        return output


def widen(logits: Tensor, vocab_size: int, token_ids: Tensor | None) -> Tensor:
    """A draft model's logits over the verifier's vocabulary [vocab]: what it cannot draft gets probability 0."""
    if token_ids is None and len(logits) >= vocab_size:
        return logits[:vocab_size]
    wide = logits.new_full((vocab_size,), float("-inf"))
    if token_ids is None:
        wide[: len(logits)] = logits
    else:
        wide[token_ids] = logits
    return wide


@dataclass
class PromptLookup:
    """Proposes what followed the last occurrence of the newest n-gram (Saxena 2023, prompt lookup decoding).

    Longest n first, from `max_ngram` down to `min_ngram`. Deterministic: its distributions are one-hot. The index is
    brought up to date with the new tokens only, so the work per round does not grow with the text.
    """

    vocab_size: int
    device: torch.device
    max_ngram: int = 3
    min_ngram: int = 1
    wants_hidden: bool = False
    context_length: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise CactusError(f"min_ngram is {self.min_ngram}; 1 to max_ngram ({self.max_ngram}) are allowed")
        # n-gram -> index behind its latest occurrence that something follows
        self._behind: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def prefill(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        self._index(tokens)

    def propose(self, context: DraftContext) -> Proposal:
        self._index(context.committed)
        tokens = self._continuation(context.committed, context.count)
        ends = (token in context.stop_ids or context.enough(1.0) for token in tokens)
        stop = next((i + 1 for i, end in enumerate(ends) if end), len(tokens))
        return Proposal(tokens[:stop], self._one_hot(tokens[:stop]))

    def rewind(self, length: int) -> None:
        """Only committed tokens are ever indexed: they are forgotten, all of them, where a text is left for another."""
        if length < self._indexed:
            self._behind.clear()
            self._indexed = 0

    def _index(self, tokens: Sequence[int]) -> None:
        """Remember what follows the n-grams that end before the newest token."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in range(self.min_ngram, min(self.max_ngram, end) + 1):
                self._behind[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def _continuation(self, tokens: Sequence[int], count: int) -> list[int]:
        for size in range(min(self.max_ngram, len(tokens)), self.min_ngram - 1, -1):
            start = self._behind.get(tuple(tokens[len(tokens) - size :]))
            if start is not None:
                return list(tokens[start : start + count])
        return []

    def _one_hot(self, tokens: list[int]) -> Tensor:
        probs = torch.zeros(len(tokens), self.vocab_size, device=self.device)
        rows = torch.arange(len(tokens), device=self.device)
        probs[rows, torch.tensor(tokens, dtype=torch.long, device=self.device)] = 1.0
        return probs
