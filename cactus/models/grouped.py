"""Attention in which the query heads of a group read their key head where it lies.

Given a mask, the library copies every key and value head once for each of its query heads, at every layer of every
pass. Over a static cache that is most of what attention moves. Here the queries of a group stand one below the other
as further rows of their key head, and the mask has those rows too: the same sums, without the copies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "grouped_sdpa"


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,  # [batch, heads, fed, size]
    key: Tensor,  # [batch, key_heads, held, size]
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """As the library calls it. A mask [batch, 1, groups · fed, held] makes it grouped; any other is the library's."""
    batch, heads, fed, _ = query.shape
    groups = heads // key.shape[1]
    if attention_mask is None or groups == 1 or attention_mask.shape[2] != groups * fed:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    rows = query.reshape(batch, key.shape[1], groups * fed, -1)  # the heads of a group are neighbours
    output = torch.nn.functional.scaled_dot_product_attention(rows, key, value, attention_mask, dropout, scale=scaling)
    return output.reshape(batch, heads, fed, -1).transpose(1, 2).contiguous(), None


def share_key_heads(model: PreTrainedModel) -> int:
    """Let a model that attends by "sdpa" do so in groups where the mask has rows for them: how many heads a group has.

    With other masks it computes what it did before.
    """
    config = model.config.get_text_config(decoder=True)
    heads, key_heads = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if config._attn_implementation not in ("sdpa", NAME) or not heads or not key_heads or heads == key_heads:
        return 1
    if config._attn_implementation != NAME:
        AttentionInterface.register(NAME, grouped_attention)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)
    return heads // key_heads
