"""The acceptance rules in the transformers library's own `generate` and pipelines.

    verifier.generate(**inputs, max_new_tokens=64, custom_generate=generate_with(make_rule("cactus"), draft=small))

`generate` prepares the settings; the tokens come from this package's loop (`decode`), which has no second copy here.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from cactus.acceptance import Rule
from cactus.decoding import Run, decode
from cactus.errors import CactusError
from cactus.interfaces import CachedModel, Drafter, Prompt, TextCodec
from cactus.models import HFCodec, check_rewindable, check_same_tokens, generate_call
from cactus.models.processors import ProcessedDrafter, ProcessedModel, Processing, split
from cactus.pace import StepCosts
from cactus.pairs import DrafterSource, Drafting, Lookup, Pair
from cactus.pairs.drafting import ordinary
from cactus.settings import (
    DEFAULT_DRAFT_TOKENS,
    MAX_SEED,
    DraftLength,
    check_draft_length,
    check_stops,
    check_whole,
    fresh_seed,
)
from cactus.trace import Trace

Draft = PreTrainedModel | Pair | DrafterSource | Callable[[], Drafter]


def generate_with(
    rule: Rule,
    draft: Draft | None = None,
    num_draft_tokens: DraftLength = DEFAULT_DRAFT_TOKENS,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    draft_tokenizer: PreTrainedTokenizerBase | None = None,
    stop: Sequence[str] = (),
    seed: int | torch.Generator | None = None,
) -> CustomGenerate:
    """What `model.generate(…, custom_generate=…)` calls; `model` is the verifier.

    draft: a model, a pair that was loaded for this verifier, a drafter source (`pairs.FeatureDraft(folder)`), a
    function that makes a new drafter, or None for prompt lookup. num_draft_tokens: 1 to 16, or "auto". tokenizer: for
    the text in the trace and for stop strings, behind the first of which the text ends (`generate` does not hand its
    own `tokenizer` on); with draft_tokenizer the two are compared. seed: the same text every time, a generator to draw
    seeds from, or None for another text every time; the global random state is neither read nor changed.

    `CactusError` names a bad setting here, and in `generate` what it was asked for and this cannot do.
    """
    if not isinstance(rule, Rule):
        raise CactusError(f"rule is {rule!r:.80}; a rule from make_rule is allowed")
    check_draft_length(num_draft_tokens)
    check_stops(stop)
    if seed is not None and not isinstance(seed, torch.Generator):
        check_whole("seed", seed, 0, MAX_SEED)
    if stop and tokenizer is None and not isinstance(draft, Pair):
        raise CactusError(f"stop is {list(stop)!r:.80}, but no tokenizer can read the text; give tokenizer=")
    if tokenizer is not None and draft_tokenizer is not None:
        check_same_tokens(draft_tokenizer, tokenizer)
    return CustomGenerate(rule, draft, num_draft_tokens, tokenizer, tuple(stop), seed)


class CustomGenerate:
    """Made by `generate_with`. `trace`: the record of the latest run, None before the first."""

    def __init__(
        self,
        rule: Rule,
        draft: Draft | None,
        num_draft_tokens: DraftLength,
        tokenizer: PreTrainedTokenizerBase | None,
        stop: tuple[str, ...],
        seed: int | torch.Generator | None,
    ) -> None:
        self.trace: Trace | None = None
        self._rule = rule
        self._draft = draft
        self._num_draft_tokens = num_draft_tokens
        self._tokenizer = tokenizer
        self._stop = stop
        self._seed = seed
        self._pair: Pair | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,  # [1, prompt]
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """Prompt and continuation [1, tokens], as `generate` returns them."""
        asked = generate_call.arguments_of_generate(sys._getframe(1))
        streamer = streamer or asked.get("streamer")
        try:
            generate_call.check_request(model, input_ids, generation_config, synced_gpus, asked)
            generate_call.check_inputs(input_ids, model_kwargs)
            run = self._start(model, input_ids, logits_processor, stopping_criteria, generation_config)
            tokens = self._stream(run, streamer)
        finally:  # whoever reads from a streamer would otherwise wait for ever
            if streamer is not None:
                streamer.end()
        sequences = torch.cat([input_ids, input_ids.new_tensor([tokens])], dim=-1)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences)  # type: ignore[arg-type]
        return sequences

    def _start(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
    ) -> Run:
        prompt = input_ids[0].tolist()
        sampling, rest = split(processors, bool(config.do_sample))
        pair = self._pair_for(model)
        processing = Processing(rest, len(prompt), pair.codec.vocab_size) if rest else None
        codec: Any = copy.copy(pair.codec)
        codec.eos_ids = generate_call.eos_ids(criteria)  # what this call says, not what the tokenizer thinks
        return decode(
            _Prepared(pair, codec, processing),
            prompt,
            self._rule,
            self._num_draft_tokens,
            sampling,
            max(1, generate_call.longest(criteria) - len(prompt)),
            self._next_seed(),
            stop=self._stop,
            ends=generate_call.other_criteria(criteria, input_ids),
        )

    def _stream(self, run: Run, streamer: BaseStreamer | None) -> list[int]:
        """All emitted tokens; each goes to the streamer as soon as its round is over."""
        tokens: list[int] = []
        try:
            for round_ in run:
                new = [token.id for token in round_.tokens if token.emitted]
                tokens += new
                if streamer is not None:
                    for token in new:
                        streamer.put(torch.tensor([token]))
        finally:
            run.close()
            self.trace = run.trace
        return tokens

    def _next_seed(self) -> int:
        if isinstance(self._seed, torch.Generator):
            return int(torch.randint(MAX_SEED + 1, (), generator=self._seed, device=self._seed.device))
        return fresh_seed() if self._seed is None else self._seed

    def _pair_for(self, model: PreTrainedModel) -> Pair:
        """Made at the first call; a later one with another verifier makes a new one."""
        if self._pair is None or self._pair.model is not model:
            self._pair = _pair(model, self._draft, self._tokenizer)
        return self._pair


def _pair(verifier: PreTrainedModel, draft: Draft | None, tokenizer: PreTrainedTokenizerBase | None) -> Pair:
    if isinstance(draft, Pair):
        if draft.model is not verifier:
            raise CactusError(f"the pair {draft.name!r} has another verifier than the model that is to generate")
        return draft
    check_rewindable(verifier)
    codec: Any = HFCodec(tokenizer, verifier) if tokenizer is not None else _NoText(verifier)
    drafting = _drafting(verifier, Lookup() if draft is None else draft, codec)
    return Pair("custom", verifier, codec, drafting.new, draft_weights=drafting.weights, draft_caches=drafting.caches)


def _drafting(verifier: PreTrainedModel, draft: Draft, codec: Any) -> Drafting:
    if isinstance(draft, PreTrainedModel):
        check_rewindable(draft)
        return ordinary(draft, codec, rounded=False)
    if hasattr(draft, "build"):
        return draft.build(verifier, codec)
    if callable(draft):
        return Drafting(draft)
    raise CactusError(
        f"draft is a {type(draft).__name__}; a model, a pair, a drafter source, a function that makes a drafter, or"
        " None for prompt lookup are allowed"
    )


class _NoText:
    """Implements `interfaces.TextCodec` where there is no tokenizer: a trace without text."""

    eos_ids: frozenset[int] = frozenset()

    def __init__(self, model: PreTrainedModel) -> None:
        self.vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)

    def encode_prompt(self, prompt: Prompt, system: str = "") -> list[int]:
        return list(prompt)  # type: ignore[arg-type]

    def encode_text(self, text: str) -> list[int]:
        raise CactusError("without a tokenizer a prompt can be token ids only")

    def decode(self, tokens: Sequence[int]) -> str:
        return ""

    def describe(self, token: int) -> str:
        return f"#{token}"


@dataclass(frozen=True)
class _Prepared:
    """A pair under the settings of one call. Implements `interfaces.ModelPair`."""

    pair: Pair
    codec: TextCodec
    processing: Processing | None

    @property
    def name(self) -> str:
        return self.pair.name

    @property
    def dtype(self) -> str:
        return self.pair.dtype

    @property
    def weights(self) -> str:
        return self.pair.weights

    @property
    def draft_weights(self) -> str:
        return self.pair.draft_weights

    @property
    def caches(self) -> str:
        return self.pair.caches

    @property
    def costs(self) -> StepCosts:
        return self.pair.costs

    def new_verifier(self) -> CachedModel:
        model = self.pair.new_verifier()
        return ProcessedModel(model, self.processing) if self.processing else model

    def new_drafter(self) -> Drafter:
        drafter = self.pair.new_drafter()
        return ProcessedDrafter(drafter, self.processing) if self.processing else drafter
