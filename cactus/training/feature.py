"""The feature head as a student: trained on its own features for several steps ahead.

In step 1 the head reads the verifier's hidden states at every token; in step s > 1 what it estimated itself in step
s - 1, as it will when it drafts (the training-time test of EAGLE-3, Li et al., arXiv 2503.01840). A query of step s
at index i sees the keys of step 1 up to index i - s + 1 and, of each step j in 2..s, the one at index i - s + j.
"""

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

from cactus.models.feature import FeatureHead, load_own_state, own_state
from cactus.training.data import TrainingBatch
from cactus.training.loss import Distilled, distil


class FeatureStudent:
    """Steps weigh the same.

    share: of the positions that each step's loss looks at, drawn anew each time (the loss costs more than the layer).
    """

    def __init__(self, head: FeatureHead, steps: int = 3, share: float = 1.0, seed: int = 0) -> None:
        self.head, self.steps, self.share = head, steps, share
        head.requires_grad_(False)
        names = own_state(head)
        named = [*head.backbone.named_parameters(), *head.named_parameters()]
        self.parameters = [p.requires_grad_(True) for name, p in named if name in names]
        self.output_head = head.backbone.lm_head.weight.detach().bfloat16()
        self.generator = torch.Generator().manual_seed(seed)
        self.by_step: list[float] = []

    def own_state(self) -> dict[str, Tensor]:
        return own_state(self.head)

    def load(self, state: dict[str, Tensor]) -> None:
        load_own_state(self.head, state)

    def loss(self, batch: TrainingBatch, tv_share: float) -> Distilled:
        with torch.autocast("cpu", torch.bfloat16):
            estimates = unroll(self.head, batch.ids, batch.features, self.steps)
        parts = [self._step_loss(estimate, batch, tv_share) for estimate in estimates]
        self.by_step = [part.acceptance for part in parts]
        return Distilled(torch.stack([part.loss for part in parts]).mean(), sum(self.by_step) / len(parts))

    def _step_loss(self, estimate: Tensor, batch: TrainingBatch, tv_share: float) -> Distilled:
        chosen = torch.randperm(len(batch.positions), generator=self.generator)
        chosen = chosen[: max(1, round(self.share * len(chosen)))]
        hidden = estimate.flatten(0, 1)[batch.positions[chosen]]
        return distil(hidden.float(), batch.verifier_hidden[chosen], self.output_head, tv_share)


def unroll(head: FeatureHead, ids: Tensor, features: Tensor, steps: int) -> list[Tensor]:
    """Estimated hidden states [batch, length, hidden] of each step, from ids and the verifier's hidden states there.

    ids int64 [batch, length], features [batch, length, hidden]. Row i of an estimate stands for token i, as if
    verified up to token i - step; the first `step` rows have no such past and mean nothing.
    """
    model, layer = head.backbone.model, head.backbone.model.layers[0]
    positions = torch.arange(ids.shape[1])[None] - 1  # of the pair that ends in each token
    angles = model.rotary_emb(features, positions.clamp_min(0))
    keys: list[Tensor] = []
    values: list[Tensor] = []
    estimates = []
    for _ in range(steps):
        # Row i: token i with the feature of token i - 1. Row 0 has none; nothing may look at it.
        hidden = head.inputs(ids, torch.cat([torch.zeros_like(features[:, :1]), features[:, :-1]], 1))
        normed = layer.input_layernorm(hidden)
        hidden = hidden + layer.self_attn.o_proj(_attend(layer.self_attn, normed, angles, keys, values))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        features = model.norm(hidden)
        estimates.append(features)
    return estimates


def _attend(
    attention: LlamaAttention, normed: Tensor, angles: tuple[Tensor, Tensor], keys: list[Tensor], values: list[Tensor]
) -> Tensor:
    """Heads' outputs [batch, length, heads * head_dim]; this step's keys and values join those of earlier ones."""
    batch, length, _ = normed.shape
    shape = (batch, length, -1, attention.head_dim)
    query, key, value = (
        proj(normed).view(shape).transpose(1, 2) for proj in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    query, key = apply_rotary_pos_emb(query, key, *angles)
    keys.append(key)
    values.append(value)
    step = len(keys)
    query = query.unflatten(1, (key.shape[1], -1)) * attention.scaling  # [batch, kv_heads, groups, length, head_dim]
    first = query @ keys[0].transpose(-1, -2)[:, :, None]  # [batch, kv_heads, groups, length, length]
    index = torch.arange(length)
    last = (index - step + 1)[:, None]
    seen = (index <= last) & (index > 0) | (index == 0) & (last <= 0)  # no row is blind, or it would be NaN
    first = first.masked_fill(~seen, float("-inf"))
    own = [(query * _shift(key, step - j)[:, :, None]).sum(-1, keepdim=True) for j, key in enumerate(keys[1:], 2)]
    scores = torch.cat([first, *own], -1).float()
    weights = scores.softmax(-1).to(value.dtype)
    out = weights[..., :length] @ values[0][:, :, None]
    for j, value in enumerate(values[1:], 2):
        out = out + weights[..., length + j - 2, None] * _shift(value, step - j)[:, :, None]
    return out.flatten(1, 2).transpose(1, 2).reshape(batch, length, -1)


def _shift(rows: Tensor, count: int) -> Tensor:
    """Row i becomes what row i - count was; the first ones repeat row 0."""
    if not count:
        return rows
    return torch.cat([rows[:, :, :1].expand(-1, -1, count, -1), rows[:, :, :-count]], 2)
