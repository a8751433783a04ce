"""Whole models as students: one that learns to write from text alone, one that learns to draft for another.

Knows nothing of where texts come from.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from cactus.training.data import TrainingBatch
from cactus.training.loss import Distilled, distil_logits
from cactus.training.text_data import TextBatch

_DROPOUT = 0.1


class _WholeModel:
    """All parameters of a model with tied embeddings learn."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model.float().train()
        self.parameters = [parameter.requires_grad_(True) for parameter in model.parameters()]
        self.tables = [model.get_input_embeddings().weight]

    def own_state(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def load(self, state: dict[str, Tensor]) -> None:
        self.model.load_state_dict(state, strict=False)  # the tied head is no entry of its own

    def _logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Of ids [batch, length] at flat `positions`: [positions, vocab]."""
        hidden = self.model.model(ids, use_cache=False).last_hidden_state.flatten(0, 1)
        return self.model.lm_head(hidden[positions])


class Writer(_WholeModel):
    """Learns the next token of given texts. Its "acceptance" is the probability it gives to that token.

    Texts are few and read many times, so what the layers add to the residual stream is dropped at random. What is
    dropped depends on the batch alone: a resumed run drops what an uninterrupted one would.
    """

    def __init__(self, model: LlamaForCausalLM, dropout: float = _DROPOUT) -> None:
        super().__init__(model)
        self.dropout, self.generator = dropout, torch.Generator()
        for layer in model.model.layers:
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                part.register_forward_hook(self._drop)

    def _drop(self, module: torch.nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if not module.training:
            return out
        kept = torch.empty_like(out).bernoulli_(1 - self.dropout, generator=self.generator)
        return out * kept.mul_(1 / (1 - self.dropout))

    def loss(self, batch: TextBatch, tv_share: float) -> Distilled:
        """Cross entropy; `tv_share` does not matter."""
        self.generator.manual_seed(int(batch.ids.sum()))
        targets = batch.ids.flatten()[batch.positions + 1]
        losses = F.cross_entropy(self._logits(batch.ids, batch.positions), targets, reduction="none")
        return Distilled(losses.mean(), float((-losses.detach()).exp().mean()))


class Drafter(_WholeModel):
    """Learns the distributions of a verifier of the same vocabulary, from its hidden states and its `head`."""

    def __init__(self, model: LlamaForCausalLM, head: Tensor) -> None:  # [vocab, verifier's hidden]
        super().__init__(model)
        self.head = head.detach().float()

    def loss(self, batch: TrainingBatch, tv_share: float) -> Distilled:
        wanted = batch.verifier_hidden.float() @ self.head.T  # [positions, vocab]
        return distil_logits(self._logits(batch.ids, batch.positions), wanted, tv_share)
