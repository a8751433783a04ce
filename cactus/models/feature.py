"""A feature head: one decoder layer that goes on from the verifier's own hidden states.

In the manner of EAGLE (Li et al., arXiv 2401.15077). At index i it reads the pair (token i + 1, the verifier's last
hidden state at token i) and estimates the verifier's hidden state at token i + 1; the verifier's output head, cut to
the tokens worth drafting, turns that into the distribution of token i + 2. Drafting on, its own estimate takes the
place of the hidden state. Embeddings and output head are the verifier's; on disk are only its own weights and
`token_ids`. Knows nothing of sampling, rules, or training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from cactus.errors import CactusError
from cactus.interfaces import Output
from cactus.models import shared
from cactus.transfer import send

_BACKBONE = "backbone."


class FeatureHead(nn.Module):
    """`backbone`: a one-layer Llama that borrows the verifier's embeddings and trimmed output head."""

    def __init__(self, backbone: LlamaForCausalLM) -> None:
        super().__init__()
        config, weight = backbone.config, backbone.model.norm.weight
        size = config.hidden_size
        self.backbone = backbone
        with torch.device(weight.device):
            self.token_norm = nn.RMSNorm(size, config.rms_norm_eps, dtype=weight.dtype)
            self.feature_norm = nn.RMSNorm(size, config.rms_norm_eps, dtype=weight.dtype)
            self.join = nn.Linear(2 * size, size, bias=False, dtype=weight.dtype)
        with torch.no_grad():  # begins as the sum of both
            self.join.weight.copy_(torch.eye(size).repeat(1, 2))

    def inputs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """What the layer reads: tokens [..., n] and features [..., n, hidden] -> [..., n, hidden]."""
        embedded = self.backbone.model.embed_tokens(tokens)
        features = features.to(embedded.dtype)
        return self.join(torch.cat([self.token_norm(embedded), self.feature_norm(features)], -1))

    def forward(self, tokens: Tensor, features: Tensor, cache: Cache, **where: Tensor) -> Tensor:
        """Estimated hidden states [1, n, hidden] one token further on, of tokens [1, n] and features [1, n, hidden].

        where: position_ids and attention_mask, for a cache that does not know how full it is.
        """
        output = self.backbone.model(inputs_embeds=self.inputs(tokens, features), cache=cache, use_cache=True, **where)
        return output.last_hidden_state


def build(verifier_model: PreTrainedModel, token_ids: Tensor) -> FeatureHead:
    """A head whose layer starts as a copy of the verifier's last."""
    return FeatureHead(shared.build(verifier_model, token_ids, 1, (-1,))).eval()


def own_state(head: FeatureHead) -> dict[str, Tensor]:
    """What is the head's own, by name: everything but embeddings and output head."""
    state = shared.own_state(head.backbone)
    return state | {name: value for name, value in head.state_dict().items() if not name.startswith(_BACKBONE)}


def save(folder: str | Path, head: FeatureHead, token_ids: Tensor) -> None:
    """Weights in bfloat16, `token_ids`, and config.json; old weights are removed."""
    shared.write(folder, head.backbone.config, own_state(head), token_ids)


def load(folder: str | Path, verifier_model: PreTrainedModel) -> tuple[FeatureHead, Tensor]:
    """The head in the verifier's dtype and on its device, and `token_ids` int64 [k].

    `CactusError` (a ValueError) if a file is missing or damaged, or was made for another verifier.
    """
    state, token_ids, num_layers = shared.read(folder, verifier_model)
    if num_layers != 1:
        raise CactusError(f"{folder}: config.json says {num_layers} layers; a feature head has 1")
    head = FeatureHead(shared.empty(verifier_model, token_ids, 1)).eval()
    shared.check_state(folder, own_state(head), state)
    load_own_state(head, state)
    return head, token_ids.to(head.token_norm.weight.device)


def load_own_state(head: FeatureHead, state: dict[str, Tensor]) -> None:
    """The other way round than `own_state`."""
    head.backbone.load_state_dict(state, strict=False)
    head.load_state_dict(state, strict=False)


class HFFeatureHead:
    """A head and one cache. Implements `interfaces.FeatureModel`; not safe to share between threads.

    `length` counts the pairs of token and feature in the cache.
    """

    def __init__(self, head: FeatureHead, context_length: int) -> None:
        self.head = head
        self.context_length = context_length
        self.length = 0
        self._cache = DynamicCache(config=head.backbone.config)

    @classmethod
    def one_step(cls, head: FeatureHead) -> Callable[[], object]:
        """One draft step behind a short text, to be timed again and again."""
        cached = cls(head, 64)
        features = torch.zeros(32, head.backbone.config.hidden_size)
        cached.feed([0] * 32, features)

        def step() -> None:
            cached.feed([0], features[:1])
            cached.rewind(32)

        return step

    @torch.inference_mode()
    def feed(self, tokens: Sequence[int] | Tensor, features: Tensor) -> Output:
        """Append pairs: float32 logits [1, draft_vocab] of the last one and estimated hidden states [fed, hidden]."""
        weight = self.head.token_norm.weight
        ids = send(tokens, weight.device)[None]  # [1, fed]
        hidden = self.head(ids, features[None].to(weight.device), self._cache)[0]  # [fed, hidden]
        self.length += len(tokens)
        return Output(self.head.backbone.lm_head(hidden[-1:]).float(), hidden)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` pairs."""
        self._cache.crop(length - self.length)
        self.length = length
