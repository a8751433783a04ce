"""What the transformers library's `generate` was asked for, as far as it concerns a decoding function of ours.

Reads its stopping criteria, and refuses by name what a loop over one unpadded prompt cannot do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import GenerationMode

from cactus.errors import CactusError

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_CACHES = ("static", "offloaded", "offloaded_static", "quantized")
_READ = {"attention_mask", "position_ids", "cache", "token_type_ids"}
_IDLE = {"use_cache", "logits_to_keep"}  # how to compute, not what


def arguments_of_generate(caller: FrameType | None) -> Mapping[str, Any]:
    """What `generate` was called with, if `caller`, the frame that called our function, is `generate`.

    To functions it hands on neither its streamer nor its assistant (`_extract_generation_mode_kwargs`): the one would
    be left waiting, the other be ignored in silence. So they are read where they are.
    """
    return dict(caller.f_locals) if caller is not None and caller.f_code is _GENERATE else {}


def longest(criteria: StoppingCriteriaList) -> int:
    """Tokens of prompt and continuation together; `generate` sets a limit in any case."""
    return min(one.max_length for one in criteria if isinstance(one, MaxLengthCriteria))


def eos_ids(criteria: StoppingCriteriaList) -> frozenset[int]:
    """The ids that end the text."""
    stated = [one.eos_token_id.flatten().tolist() for one in criteria if isinstance(one, EosTokenCriteria)]
    return frozenset(token for ids in stated for token in ids)


def other_criteria(criteria: StoppingCriteriaList, input_ids: Tensor) -> Callable[[int], bool] | None:
    """Asks the criteria beside length and EOS whether the text ends behind a token; None if there are none.

    Every token of the continuation has to be told, in order.
    """
    others = StoppingCriteriaList(one for one in criteria if type(one) not in (MaxLengthCriteria, EosTokenCriteria))
    if not others:
        return None
    length = input_ids.shape[1]
    text = input_ids.new_empty(1, max(longest(criteria), length + 1))
    text[:, :length] = input_ids

    def ends(token: int) -> bool:
        nonlocal length
        text[0, length] = token
        length += 1
        return bool(others(text[:, :length], None).any())

    return ends


def check_request(
    model: PreTrainedModel,
    input_ids: Tensor,
    config: GenerationConfig,
    synced_gpus: bool,
    asked: Mapping[str, Any],
) -> None:
    """`CactusError` naming what `generate` was asked for that this loop does not do."""
    mode = config.get_generation_mode(asked.get("assistant_model"))
    refused = {
        f"the encoder-decoder model {type(model).__name__}": model.config.is_encoder_decoder,
        "assistant_model (give the draft model to generate_with)": asked.get("assistant_model") is not None,
        f"num_beams={config.num_beams}": (config.num_beams or 1) > 1,
        f"num_return_sequences={config.num_return_sequences}": (config.num_return_sequences or 1) > 1,
        f"generation mode {mode.value!r}": mode not in _MODES,
        f"a batch of {input_ids.shape[0]} prompts": input_ids.shape[0] != 1,
        "negative_prompt_ids": asked.get("negative_prompt_ids") is not None,
        "synced_gpus": bool(synced_gpus),
        f"cache_implementation={config.cache_implementation!r}": config.cache_implementation in _CACHES,
    }
    refused |= {f"{name}=True": config.return_dict_in_generate and getattr(config, name) for name in _OUTPUTS}
    for what, is_asked in refused.items():
        if is_asked:
            raise CactusError(f"generate_with does not take {what}; it decodes one prompt, greedily or by sampling")


def check_inputs(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> None:
    """`CactusError` naming an input of the model's that is more than the tokens of an unpadded prompt."""
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    cache, kinds = model_kwargs.get("cache"), model_kwargs.get("token_type_ids")
    plain = torch.arange(input_ids.shape[1], device=input_ids.device)
    given = {
        "attention_mask with hidden tokens (padding)": mask is not None and not bool((mask == 1).all()),
        "position_ids of its own": positions is not None
        and (positions.ndim != 2 or not torch.equal(positions[0].to(plain.device), plain)),
        "a cache": getattr(cache, "_is_user_defined", False),
        "token_type_ids": kinds is not None and bool(kinds.any()),
    } | {name: not _is_empty(model_kwargs[name]) for name in sorted(model_kwargs.keys() - _READ - _IDLE)}
    for what, is_given in given.items():
        if is_given:
            raise CactusError(f"generate_with does not take {what}; it reads input_ids alone")


def _is_empty(value: object) -> bool:
    """Models that read images too get an empty dictionary of them."""
    return value is None or value == {}
