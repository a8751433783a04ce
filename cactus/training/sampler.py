"""Fast batched sampling from a Llama verifier that also keeps its last hidden states.

All rows of a batch are as long as each other at every step (the rest of a longer prompt is fed
like drawn tokens), so none needs padding or a mask, and the key/value cache is one block. Grouped
query heads are folded into the query axis: a step then reads each cached key once, not once a head.
Knows nothing of prompts, files or draft models.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

_BLOCK = 256  # columns summed at once when drawing from a large vocabulary


@dataclass(frozen=True)
class Samples:
    """One batch. `hidden[b, i]` is what the output head read to draw `ids[b, prompt_length + i]`.

    `prompt_hidden[b, i]` is the same for the prompt's token i + 1: together they are the verifier's last hidden
    states at every token but the last.
    """

    ids: Tensor  # int32 [batch, prompt_length + steps], zero behind the end
    lengths: Tensor  # int32 [batch], tokens of the answer, its EOS included
    hidden: Tensor  # bfloat16 [batch, steps, hidden_size]
    prompt_hidden: Tensor  # bfloat16 [batch, prompt_length - 1, hidden_size]
    prompt_length: int


class _Stepper:
    """The verifier's forward pass over a preallocated cache."""

    def __init__(self, model: LlamaForCausalLM, rows: int, max_length: int) -> None:
        config = model.config
        self.model, self.layers = model.model, model.model.layers
        self.head, self.head_dim = model.lm_head, config.head_dim
        self.kv_heads = config.num_key_value_heads
        self.groups = config.num_attention_heads // self.kv_heads
        shape = (len(self.layers), 2, rows, self.kv_heads, max_length, self.head_dim)
        self.cache = torch.zeros(shape, dtype=model.dtype)
        self.length = 0
        self.qkv = [
            torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])
            for a in (layer.self_attn for layer in self.layers)
        ]
        self.up = [torch.cat([b.mlp.gate_proj.weight, b.mlp.up_proj.weight]) for b in self.layers]

    def __call__(self, ids: Tensor) -> Tensor:
        """Feed ids [batch, n]; their normed last hidden states [batch, n, hidden]."""
        hidden = self.model.embed_tokens(ids)  # [batch, n, hidden]
        positions = torch.arange(self.length, self.length + ids.shape[1])[None]
        cos, sin = (t[:, None] for t in self.model.rotary_emb(hidden, positions))
        for index, layer in enumerate(self.layers):
            normed = layer.input_layernorm(hidden)
            hidden = hidden + self._attend(index, layer, normed, cos, sin)
            gate, up = F.linear(layer.post_attention_layernorm(hidden), self.up[index]).chunk(2, -1)
            hidden = hidden + layer.mlp.down_proj(F.silu(gate) * up)
        self.length += ids.shape[1]
        return self.model.norm(hidden)

    def _attend(self, index: int, layer: torch.nn.Module, normed: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, count, _ = normed.shape
        heads = self.kv_heads * self.groups
        qkv = F.linear(normed, self.qkv[index]).view(batch, count, -1, self.head_dim).transpose(1, 2)
        query, key, value = qkv.split([heads, self.kv_heads, self.kv_heads], 1)
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        end = self.length + count
        keys, values = self.cache[index, 0, :batch], self.cache[index, 1, :batch]
        keys[:, :, self.length : end], values[:, :, self.length : end] = key, value
        keys, values = keys[:, :, :end], values[:, :, :end]
        if count == 1:
            query = query.reshape(batch, self.kv_heads, self.groups, self.head_dim)
            out = F.scaled_dot_product_attention(query, keys, values)
            out = out.reshape(batch, heads, 1, self.head_dim)
        else:
            seen = torch.ones(count, end, dtype=torch.bool).tril(end - count)
            out = F.scaled_dot_product_attention(query, keys, values, seen, enable_gqa=True)
        return layer.self_attn.o_proj(out.transpose(1, 2).reshape(batch, count, -1))

    def keep(self, rows: Tensor) -> None:
        """The cache holds its `rows` [kept] from now on, in their order; one may come repeatedly."""
        for layer in range(len(self.layers)):
            used = self.cache[layer, :, :, :, : self.length]
            used[:, : len(rows)] = used.index_select(1, rows)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = heads.chunk(2, -1)
    return heads * cos + torch.cat([-high, low], -1) * sin


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row of float32 logits [batch, vocab] -> [batch], by inverting the CDF.

    Block sums first: a cumulative sum over the whole vocabulary costs more than the rest.
    """
    weights = (logits - logits.amax(-1, keepdim=True)).exp_()
    weights = F.pad(weights, (0, -weights.shape[-1] % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    uniform = torch.rand(2, len(logits), 1, generator=generator)
    block = _invert(weights.sum(-1), uniform[0])  # [batch]
    inside = _invert(weights[torch.arange(len(block)), block], uniform[1])
    return block * _BLOCK + inside


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose cumulative weight exceeds uniform x total: [batch, n] -> [batch]."""
    cumulative = weights.double().cumsum(-1)
    index = torch.searchsorted(cumulative, uniform.double() * cumulative[:, -1:], right=True)
    return index.squeeze(-1).clamp_max(weights.shape[-1] - 1)


def _feed_prompts(stepper: _Stepper, prompts: Tensor) -> Tensor:
    """Hidden states of prompts [batch, n] -> [batch, n, hidden]; a common beginning is fed once."""
    same = int((prompts[:, :-1] == prompts[:1, :-1]).all(0).long().cumprod(0).sum())
    states = []
    if same:
        states.append(stepper(prompts[:1, :same]).expand(len(prompts), -1, -1))
        stepper.keep(torch.zeros(len(prompts), dtype=torch.long))
    return torch.cat([*states, stepper(prompts[:, same:])], 1)


@torch.inference_mode()
def sample(
    model: LlamaForCausalLM,
    prompts: Tensor,
    temperatures: Tensor,
    max_new_tokens: int,
    eos_ids: list[int],
    generator: torch.Generator,
    given: Tensor | None = None,
) -> Samples:
    """Answers of prompts [batch, prompt_length], row b drawn at temperatures[b] > 0.

    `given` [batch, n] fixes the tokens that follow, where not negative: the rest of longer prompts.
    """
    rows, prompt_length = prompts.shape
    stepper = _Stepper(model, rows, prompt_length + max_new_tokens)
    ids = F.pad(prompts, (0, max_new_tokens)).int()
    hidden = torch.zeros(rows, max_new_tokens, model.config.hidden_size, dtype=torch.bfloat16)
    lengths = torch.full((rows,), max_new_tokens, dtype=torch.int32)
    live, ends = torch.arange(rows), torch.tensor(eos_ids, dtype=torch.long)
    prompt_hidden, state = _feed_prompts(stepper, prompts).split([prompt_length - 1, 1], 1)
    for step in range(max_new_tokens):
        state = state[:, -1]  # [live, hidden]
        tokens = draw(stepper.head(state).float() / temperatures[live, None], generator)
        ended = torch.isin(tokens, ends)
        if given is not None and step < given.shape[1]:
            fixed = given[live, step]
            tokens, ended = torch.where(fixed < 0, tokens, fixed), ended & (fixed < 0)
        hidden[live, step], ids[live, prompt_length + step] = state.bfloat16(), tokens.int()
        if ended.any():
            lengths[live[ended]] = step + 1
            left = (~ended).nonzero().squeeze(-1)
            if not len(left):
                break
            stepper.keep(left)
            live, tokens = live[left], tokens[left]
        if step + 1 < max_new_tokens:
            state = stepper(tokens[:, None])
    return Samples(ids, lengths, hidden, prompt_hidden.bfloat16().contiguous(), prompt_length)
