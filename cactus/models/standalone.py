"""A pair's draft model by itself, as other libraries and engines use one: with the whole output head."""

from __future__ import annotations

import copy

from transformers import PreTrainedModel

from cactus.drafters import ModelDrafter
from cactus.interfaces import Drafter
from cactus.models.adapter import HFModel


def standalone(drafter: Drafter, verifier: PreTrainedModel) -> PreTrainedModel | None:
    """The drafter's language model, or None where it is none (a head on hidden states, prompt lookup).

    One whose output head is cut to the tokens worth drafting gets the verifier's instead, of which it is a part; so it
    drafts over the whole vocabulary. Weights are shared with the pair, settings are not.
    """
    if not isinstance(drafter, ModelDrafter) or not isinstance(drafter.model, HFModel):
        return None
    model = copy.copy(drafter.model.model)
    model.config, model.generation_config = copy.deepcopy(model.config), copy.deepcopy(model.generation_config)
    if drafter.token_ids is not None:
        model._modules = dict(model._modules) | {"lm_head": verifier.get_output_embeddings()}
        model.config.tie_word_embeddings = verifier.config.tie_word_embeddings
    return model
