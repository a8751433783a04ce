"""Logits processors of the transformers library in front of the loop: what it samples from is what they leave.

`SamplingParams` says what most of them do; the others run here, on the logits of both models, so that one processed
distribution is sampled, tested and recovered from. A processor has to be a function of the tokens and their scores:
those that keep state or run a model of their own are refused by name.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as library

from cactus.errors import CactusError
from cactus.interfaces import CachedModel, DraftContext, Drafter, Output, Proposal
from cactus.models.wrapped import Wrapped
from cactus.sampling import SamplingParams

# What `SamplingParams` does, in its order: the class, our name for its setting, and the library's.
_KNOWN = (
    (library.RepetitionPenaltyLogitsProcessor, "repetition_penalty", "penalty"),
    (library.TemperatureLogitsWarper, "temperature", "temperature"),
    (library.TopKLogitsWarper, "top_k", "top_k"),
    (library.TopPLogitsWarper, "top_p", "top_p"),
    (library.MinPLogitsWarper, "min_p", "min_p"),
)
_REFUSED = {
    library.UnbatchedClassifierFreeGuidanceLogitsProcessor: "runs the model a second time (guidance_scale)",
    library.ClassifierFreeGuidanceLogitsProcessor: "needs a batch of two prompts (guidance_scale)",
    library.SynthIDTextWatermarkLogitsProcessor: "keeps a state that cannot be rewound (watermarking_config)",
}


def split(processors: Sequence[LogitsProcessor], do_sample: bool) -> tuple[SamplingParams, LogitsProcessorList]:
    """(what `SamplingParams` can say, the processors that have to run before it); `CactusError` for refused ones."""
    for processor in processors:
        if type(processor) in _REFUSED:
            raise CactusError(f"{type(processor).__name__} cannot be used: it {_REFUSED[type(processor)]}")
    rest = list(processors)
    if rest and isinstance(rest[-1], library.LogitNormalization):  # probabilities are normalised anyway
        rest.pop()
    params: dict[str, float] = {}
    later = len(_KNOWN)
    while rest and (found := _setting(rest[-1])) is not None and found[0] < later:
        later, name, value = found
        params[name] = value
        rest.pop()
    if not do_sample:
        params["temperature"] = 0.0
    return SamplingParams(**params), LogitsProcessorList(rest)  # type: ignore[arg-type]


def _setting(processor: LogitsProcessor) -> tuple[int, str, float] | None:
    """(place in the order, our name, value); None where `SamplingParams` does not do quite the same."""
    for place, (kind, name, theirs) in enumerate(_KNOWN):
        if type(processor) is kind:
            value = getattr(processor, theirs)
            return (place, name, value) if _plain(processor) and _in_range(name, value) else None
    return None


def _plain(processor: LogitsProcessor) -> bool:
    usual = {"filter_value": -math.inf, "min_tokens_to_keep": 1, "prompt_ignore_length": None}
    return all(getattr(processor, name, value) == value for name, value in usual.items())


def _in_range(name: str, value: float) -> bool:
    try:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Processing:
    """Processors for one run whose prompt has `prompt_tokens` tokens, over a vocabulary of `vocab_size`."""

    processors: LogitsProcessorList
    prompt_tokens: int
    vocab_size: int

    def row(self, tokens: Sequence[int], logits: Tensor) -> Tensor:
        """Processed logits [vocab] of the token behind `tokens`. A copy: a processor may write into what it gets."""
        ids = torch.tensor([list(tokens)], device=logits.device)  # [1, tokens]
        return self.processors(ids, logits[: self.vocab_size].clone()[None])[0]  # type: ignore[arg-type]

    def rows(self, tokens: Sequence[int], logits: Tensor) -> Tensor:
        """Of the last len(logits) tokens. Those within the prompt are not drawn from and stay as they are."""
        first = len(tokens) - len(logits) + 1  # tokens seen by the first row
        logits = logits[:, : self.vocab_size]
        seen = range(first, len(tokens) + 1)
        return torch.stack(
            [
                self.row(tokens[:end], row) if end >= self.prompt_tokens else row
                for end, row in zip(seen, logits, strict=True)
            ]
        )


class ProcessedModel(Wrapped):
    """A model whose logits went through the processors. Implements `interfaces.CachedModel`."""

    def __init__(self, model: CachedModel, processing: Processing) -> None:
        super().__init__(model)
        self._processing = processing
        self._tokens: list[int] = []

    def feed(self, tokens: Sequence[int] | Tensor, keep: int = 1, want_hidden: bool = False) -> Output:
        """As the model's own, its logits cut to the vocabulary and processed."""
        output = self._model.feed(tokens, keep, want_hidden)
        self._tokens += tokens.tolist() if isinstance(tokens, Tensor) else tokens
        return replace(output, logits=self._processing.rows(self._tokens, output.logits))

    def rewind(self, length: int) -> None:
        super().rewind(length)
        del self._tokens[length:]

    def fork(self) -> ProcessedModel:
        other = copy.copy(self)
        other._model, other._tokens = self._model.fork(), self._tokens[:]
        return other


class ProcessedDrafter:
    """A drafter that draws from what the processors leave of its logits. Implements `interfaces.Drafter`."""

    def __init__(self, drafter: Drafter, processing: Processing) -> None:
        self._drafter = drafter
        self._processing = processing
        self.wants_hidden = drafter.wants_hidden

    @property
    def context_length(self) -> int | None:
        return self._drafter.context_length

    def prefill(self, tokens: Sequence[int], hidden: Tensor | None = None) -> None:
        self._drafter.prefill(tokens, hidden)

    def propose(self, context: DraftContext) -> Proposal:
        text = list(context.committed)

        def choose(logits: Tensor, token_ids: Tensor | None) -> tuple[Tensor, Tensor]:
            column, probs = context.choose(self._processed(text, logits, token_ids), token_ids)
            text.append(int(column if token_ids is None else token_ids[column]))
            return column, probs

        return self._drafter.propose(replace(context, choose=choose))

    def rewind(self, length: int) -> None:
        self._drafter.rewind(length)

    def _processed(self, text: Sequence[int], logits: Tensor, token_ids: Tensor | None) -> Tensor:
        """Logits [k] of the tokens that can be drafted. Where none is left, whatever it drafts is refused anyway."""
        columns = slice(len(logits)) if token_ids is None else token_ids
        wide = logits.new_full((self._processing.vocab_size,), -math.inf)
        wide[columns] = logits
        processed = self._processing.row(text, wide)[columns]
        return logits if processed.amax() == -math.inf else processed
