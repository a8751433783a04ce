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
from cactus.ngrams import NGrams
from cactus.transfer import send


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

    def __post_init__(self) -> None:
        if self.token_ids is not None:
            self.token_ids = self.token_ids.to(self.model.device)

    @property
    def context_length(self) -> int:
        return self.model.context_length

    def prefill(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        if len(tokens) > self.model.length:
            self.model.feed(tokens[self.model.length :])
            self.model.rewind(len(tokens))

    def propose(self, context: DraftContext) -> Proposal:
        draft = _Draft(context, self.vocab_size, self.token_ids)
        news: Sequence[int] | Tensor = context.committed[self.model.length :]
        while not draft.ended:
            news = draft.add(self.model.feed(news).logits[-1])
        return draft.proposal()

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
        draft = _Draft(context, self.vocab_size, self.token_ids)
        output = self._read(context.committed, context.hidden)
        while output is not None:
            token = draft.add(output.logits[-1])
            if draft.ended:
                break
            assert output.hidden is not None
            output = self.model.feed(token, output.hidden[-1:])
        return draft.proposal()

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


class _Draft:
    """The tokens of a round as they are drawn, on the device, and what each was drawn from."""

    def __init__(self, context: DraftContext, vocab_size: int, token_ids: Tensor | None) -> None:
        self.ended = context.count == 0
        self._context, self._vocab_size, self._token_ids = context, vocab_size, token_ids
        self._columns: list[Tensor] = []
        self._rows: list[Tensor] = []

    def add(self, logits: Tensor) -> Tensor:
        """Draw one more by its logits [k]: the token [1]."""
        column, probs = self._context.choose(logits[: self._vocab_size], self._token_ids)
        self._columns.append(column)
        self._rows.append(probs)
        token = column if self._token_ids is None else self._token_ids[column]
        enough = self._context.enough
        ended = enough is not None and enough(token, probs[column])
        self.ended = ended or len(self._rows) == self._context.count
        return token

    def proposal(self) -> Proposal:
        if not self._rows:
            return no_proposal(self._vocab_size, None if self._token_ids is None else self._token_ids.device)
        columns, rows = torch.cat(self._columns), torch.stack(self._rows)
        tokens = columns if self._token_ids is None else self._token_ids[columns]
        return Proposal(tokens, widen(rows, self._vocab_size, self._token_ids), self._token_ids, columns)


def no_proposal(vocab_size: int, device: torch.device | None = None) -> Proposal:
    """Nothing drafted."""
    return Proposal(torch.empty(0, dtype=torch.long, device=device), torch.empty(0, vocab_size, device=device))


def widen(rows: Tensor, vocab_size: int, token_ids: Tensor | None) -> Tensor:
    """Distributions [m, k] over the verifier's vocabulary [m, vocab]: what cannot be drafted has probability 0."""
    if token_ids is None and rows.shape[-1] == vocab_size:
        return rows
    wide = rows.new_zeros(len(rows), vocab_size)
    if token_ids is None:
        wide[:, : rows.shape[-1]] = rows
        return wide
    return wide.scatter_(-1, token_ids.expand(len(rows), -1), rows)


@dataclass
class PromptLookup:
    """Proposes what followed the last occurrence of the newest n-gram (Saxena 2023, prompt lookup decoding).

    The longest n first, from `max_ngram` down to `min_ngram`, anew behind every proposed token: so a proposal goes
    on past the end of the text, where that has begun to repeat itself. Deterministic: its distributions are one-hot.
    The index is brought up to date with the new tokens only, so the work per round does not grow with the text.

    usual: what mostly follows an n-gram elsewhere (`ngrams`); the longer n-gram decides, and of equal ones the text.
    """

    vocab_size: int
    device: torch.device
    max_ngram: int = 3
    min_ngram: int = 1
    usual: NGrams = field(default_factory=dict)
    wants_hidden: bool = False
    context_length: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_ngram <= self.max_ngram:
            raise CactusError(f"min_ngram is {self.min_ngram}; 1 to max_ngram ({self.max_ngram}) are allowed")
        # n-gram -> what followed its latest occurrence that something followed
        self._next: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def prefill(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        self._index(tokens)

    def propose(self, context: DraftContext) -> Proposal:
        self._index(context.committed)
        text = list(context.committed[-self.max_ngram :])
        given, ended = len(text), context.count == 0
        while not ended and (token := self._following(text)) is not None:
            text.append(token)
            enough = context.enough is not None and context.enough(token, 1.0)
            ended = enough or len(text) == given + context.count
        drafted = send(text[given:], self.device)
        return Proposal(drafted, self._one_hot(drafted))

    def rewind(self, length: int) -> None:
        """Only committed tokens are ever indexed: they are forgotten, all of them, where a text is left for another."""
        if length < self._indexed:
            self._next.clear()
            self._indexed = 0

    def _index(self, tokens: Sequence[int]) -> None:
        """Remember what follows the n-grams that end before the newest token."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in range(self.min_ngram, min(self.max_ngram, end) + 1):
                self._next[tuple(tokens[end - size : end])] = tokens[end]
        self._indexed = max(self._indexed, len(tokens) - 1)

    def _following(self, text: Sequence[int]) -> int | None:
        """What follows the longest known n-gram at the end of a text; None if none is known."""
        for size in range(min(self.max_ngram, len(text)), self.min_ngram - 1, -1):
            ngram = tuple(text[len(text) - size :])
            token = self._next.get(ngram, self.usual.get(ngram))
            if token is not None:
                return token
        return None

    def _one_hot(self, tokens: Tensor) -> Tensor:
        return torch.zeros(len(tokens), self.vocab_size, device=self.device).scatter_(-1, tokens[:, None], 1.0)
