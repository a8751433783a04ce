"""Whether a device computes what the CPU does, in float32: logits close, greedy texts equal token for token."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from cactus.acceptance import make_rule
from cactus.bench.shapes import changed, random_model
from cactus.bench.ways import Make, text_of, ways
from cactus.decoding import decode
from cactus.drafters import ModelDrafter
from cactus.interfaces import CachedModel, ModelPair, Prompt
from cactus.models import HFModel
from cactus.models.slots import WIDEST
from cactus.pace import StepCosts
from cactus.sampling import SamplingParams

CHECKED_LAYERS = 4  # of a model with more parameters than this; computing all of it on a CPU would take too long
CHECKED_WHOLE = 500_000_000
CHECKED_TOKENS = 32
CLOSE = 1e-3  # largest difference between logits, in their standard deviations
NO_COSTS = StepCosts(1.0, 1.0, 0.0)


@dataclass(frozen=True)
class Numbers:
    """A codec whose texts are token ids. Implements `interfaces.TextCodec`."""

    vocab_size: int
    eos_ids: frozenset[int] = frozenset()

    def encode_prompt(self, prompt: Prompt, system: str = "") -> list[int]:
        return [int(token) for token in prompt]  # type: ignore[arg-type]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(f"{token} " for token in tokens)

    def describe(self, token: int) -> str:
        return str(token)


@dataclass(frozen=True)
class Bare:
    """A pair without a tokenizer, for fixed draft lengths. Implements `interfaces.ModelPair`."""

    new_verifier: Make
    new_draft: Make
    codec: Numbers
    name: str = "steps"
    dtype: str = "float32"
    weights: str = "given"
    draft_weights: str = ""
    caches: str = ""
    costs: StepCosts = NO_COSTS

    def new_drafter(self) -> ModelDrafter:
        return ModelDrafter(self.new_draft(), self.codec.vocab_size)


@dataclass(frozen=True)
class Check:
    """difference: the largest between logits, in standard deviations of the CPU's; tokens: greedy ones compared."""

    model: str
    layers: str
    difference: float
    tokens: int
    equal: int

    @property
    def passed(self) -> bool:
        return self.difference <= CLOSE and self.equal == self.tokens


def check(name: str, model: PreTrainedModel, device: torch.device) -> Check:
    """The model's shape with random float32 weights: this device by its fastest way against the CPU."""
    config, layers = model.config, model.config.num_hidden_layers
    if model.num_parameters() > CHECKED_WHOLE:
        layers = min(layers, CHECKED_LAYERS)
    reference = random_model(changed(config, {"num_hidden_layers": layers}), torch.device("cpu"), torch.float32)
    there = copy.deepcopy(reference).to(device)  # type: ignore[arg-type]
    make = list(ways(there).values())[-1]
    wanted, found = (_greedy(new, config.vocab_size) for new in (lambda: HFModel(reference), make))
    return Check(
        model=name,
        layers=f"{layers} of {model.config.num_hidden_layers} layers",
        difference=_difference(HFModel(reference), make(), config.vocab_size),
        tokens=len(wanted),
        equal=sum(ours == theirs for ours, theirs in zip(found, wanted, strict=True)),
    )


def _difference(reference: CachedModel, other: CachedModel, vocab_size: int) -> float:
    """After passes of every width with a rewind behind each."""
    text, worst = text_of(WIDEST * (WIDEST + 1), vocab_size), 0.0
    for width in range(1, WIDEST + 1):
        fed = text[width * (width - 1) // 2 :][:width]
        wanted, found = (model.feed(fed, keep=width).logits.cpu() for model in (reference, other))
        worst = max(worst, float((wanted - found).abs().max() / wanted.std()))
        for model in (reference, other):
            model.rewind(model.length - width // 2)
    return worst


def _greedy(make: Make, vocab_size: int) -> list[int]:
    """Speculative with the model as its own draft model, and then without one: two texts in one list."""
    pair: ModelPair = Bare(make, make, Numbers(vocab_size))
    prompt, greedy = text_of(8, vocab_size), SamplingParams(temperature=0.0)
    settings = [(make_rule("sps"), 4), (None, 0)]
    runs = [decode(pair, prompt, rule, count, greedy, CHECKED_TOKENS, 0) for rule, count in settings]
    return [token.id for run in runs for round_ in run for token in round_.tokens if token.emitted]
