"""All that a run can do, with its exact probability: every draw and every verdict of `decode` is tried in turn.

The tiny models are real; their answers are kept by context, so that thousands of runs take seconds. (That a cache gives
the answer of a fresh model is tested elsewhere.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tiny
import torch
from torch import Tensor
from transformers import PreTrainedModel

from cactus import SamplingParams, decode
from cactus.acceptance import Rule
from cactus.drafters import FeatureDrafter, ModelDrafter, PromptLookup
from cactus.interfaces import Output
from cactus.models import HFModel, feature, shared
from cactus.pace import StepCosts
from cactus.pairs import Pair, pair_from_models
from cactus.sampling import probs_from_logits

Law = dict[tuple[int, ...], float]
# Behind it every sampling option matters, and its last token came before, so that prompt lookup has something to say.
PROMPT = [260, 196, 105, 293, 160, 260]
CODEC = pair_from_models(tiny.model(), tiny.tokenizer()).codec
HALF = torch.arange(0, 300, 2)


class Remembered(HFModel):
    """A model that answers every context from memory once it has been asked."""

    def __init__(self, model: PreTrainedModel, memory: dict[tuple[int, ...], tuple[Tensor, Tensor]]) -> None:
        super().__init__(model)
        self.memory, self.text = memory, ()

    def _pass(self, tokens: Sequence[int], keep: int, want_hidden: bool) -> Output:
        self.text = (*self.text[: self.length], *map(int, tokens))
        if self.text not in self.memory:
            output = self.model(input_ids=torch.tensor([self.text]), output_hidden_states=True)
            self.memory[self.text] = output.logits[0].float(), output.hidden_states[-1][0]
        logits, hidden = self.memory[self.text]
        return Output(logits[-keep:].clone(), hidden[-len(tokens) :].clone() if want_hidden else None)

    def _drop(self, count: int) -> None:
        """There is no cache."""


@dataclass(frozen=True)
class QuickPair(Pair):
    """A pair on remembered models, with step costs that do not depend on the machine."""

    memory: dict = field(default_factory=dict)

    @property
    def costs(self) -> StepCosts:
        return StepCosts(draft=0.1, verify=1.0, verify_more=0.1)

    def new_verifier(self) -> Remembered:
        return Remembered(self.model, self.memory)


def _remembering(model: PreTrainedModel) -> Callable[[], Remembered]:
    memory: dict = {}
    return lambda: Remembered(model, memory)


def _feature_drafter() -> Callable[[], FeatureDrafter]:
    head = feature.build(tiny.model(), HALF)
    with torch.no_grad():
        head.join.weight.add_(0.1 * torch.randn(head.join.weight.shape, generator=torch.Generator().manual_seed(0)))
    return lambda: FeatureDrafter(feature.HFFeatureHead(head, 512), CODEC.vocab_size, HALF)


def _drafters() -> dict[str, Callable[[], Any]]:
    model, trimmed = _remembering(tiny.near()), _remembering(shared.build(tiny.model(), HALF, 1, (-1,)).eval())
    return {
        "draft model": lambda: ModelDrafter(model(), CODEC.vocab_size),
        "half a vocabulary": lambda: ModelDrafter(trimmed(), CODEC.vocab_size, HALF),
        "feature head": _feature_drafter(),
        "prompt lookup": lambda: PromptLookup(CODEC.vocab_size, torch.device("cpu"), usual=USUAL),
    }


# Behind the other tokens the text alone is looked up.
USUAL = {(token,): token + 1 for token in range(0, CODEC.vocab_size, 2)}
KINDS = ("draft model", "half a vocabulary", "feature head", "prompt lookup")


@cache
def quick_pair(kind: str = "draft model") -> QuickPair:
    return QuickPair(kind, tiny.model(), CODEC, _drafters()[kind])


@dataclass
class Outcomes:
    """Which way each draw and each round's verdicts go in this run, and how likely that was.

    A verdict goes by the index of the first rejected token; how likely it is follows from the accept probabilities in
    the trace. What comes behind the second token is not told apart.
    """

    path: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    place: int = 0
    weight: float = 1.0
    emitted: int = 0
    verdicts: list[tuple[int, int, int]] = field(default_factory=list)  # first rejected, drafted, place of the choice

    def begin(self) -> None:
        self.place, self.weight, self.emitted, self.verdicts = 0, 1.0, 0, []

    def _choose(self, width: int) -> int:
        if self.place == len(self.path):
            self.path.append(0)
            self.widths.append(width)
        self.place += 1
        return self.path[self.place - 1]

    def draft(self, probs: Tensor, generator: torch.Generator) -> Tensor:
        """In place of `sampling.pick`."""
        tokens = probs.nonzero()[:, 0]
        token = tokens[self._choose(len(tokens))][None]
        self.weight *= float(probs[token] / probs.sum())
        return token

    def uniforms(self, count: int, generator: torch.Generator) -> Tensor:
        first_rejected = self._choose(count + 1)
        self.verdicts.append((first_rejected, count, self.place))
        self.emitted += first_rejected
        numbers = torch.zeros(count, dtype=torch.float64)
        numbers[first_rejected:] = math.nextafter(1.0, 0.0)
        return numbers

    def follow(self, probs: Tensor, generator: torch.Generator) -> Tensor:
        """The same for the token behind the verdicts."""
        self.emitted += 1
        return probs.argmax()[None] if self.emitted > 2 else self.draft(probs, generator)

    def chance(self, rounds: Sequence[Any]) -> float:
        """Of this run: 0 where a verdict was asked for that cannot be; then nothing behind it is tried."""
        drafted = [round_ for round_ in rounds if round_.num_draft_tokens]
        weight = self.weight
        for round_, (first_rejected, count, place) in zip(drafted, self.verdicts, strict=True):
            for index, token in enumerate(round_.tokens[: min(first_rejected + 1, count)]):
                passes = index < first_rejected
                weight *= token.accept_prob if passes else 1 - token.accept_prob
                if token.status != ("accepted" if passes else "rejected"):
                    del self.path[place:], self.widths[place:]
                    return 0.0
        return weight

    def next(self) -> bool:
        """The next way things can go; False when all have been tried."""
        while self.path and self.path[-1] + 1 == self.widths[-1]:
            self.path.pop()
            self.widths.pop()
        if self.path:
            self.path[-1] += 1
        return bool(self.path)


def two_tokens(pair: Pair, rule: Rule | None, m: int | str, sampling: SamplingParams, seed: int = 0) -> Any:
    """A run until two tokens are there; its first round may draft up to two."""
    run = decode(pair, PROMPT, rule, m, sampling, 3, seed)
    run._loop.writer.eos_ids = frozenset()
    while len(run.trace.tokens) < 2:
        next(run)
    return run


def exact_law(monkeypatch: Any, pair: Pair, rule: Rule | None, m: int | str, sampling: SamplingParams) -> Law:
    """The law of the first two tokens, through the whole of `decode`."""
    outcomes, law = Outcomes(), defaultdict(float)
    with monkeypatch.context() as patched:
        patched.setattr("cactus.loop.pick", outcomes.draft)
        patched.setattr("cactus.verdict.pick", outcomes.follow)
        patched.setattr("cactus.verdict.uniforms", outcomes.uniforms)
        going = True
        while going:
            outcomes.begin()
            run = two_tokens(pair, rule, m, sampling)
            law[tuple(token.id for token in run.trace.tokens[:2])] += outcomes.chance(run.rounds)
            going = outcomes.next()
    assert math.isclose(sum(law.values()), 1.0, abs_tol=1e-5)
    return {tokens: weight for tokens, weight in law.items() if weight > 0}


def next_probs(model: Remembered, context: Sequence[int], sampling: SamplingParams) -> Tensor:
    """The processed distribution behind a context: [vocab]."""
    return probs_from_logits(model.feed(context).logits, sampling, [context])[0]


def verifier_law(pair: Pair, sampling: SamplingParams) -> Law:
    """What the verifier alone writes: two tokens, from its own processed distributions."""
    law: Law = {}
    first = next_probs(pair.new_verifier(), PROMPT, sampling)
    for token in first.nonzero()[:, 0].tolist():
        second = next_probs(pair.new_verifier(), [*PROMPT, token], sampling)
        law |= {(token, then): float(first[token] * second[then]) for then in second.nonzero()[:, 0].tolist()}
    return law


def output_law(pair: Pair, rule: Rule, sampling: SamplingParams) -> Law:
    """`output_probs` of the rule for the first token, then for the second, with what the first step spent."""
    law: Law = defaultdict(float)
    p, q = _both(pair, PROMPT, sampling)
    for n in p.nonzero()[:, 0].tolist():
        steps = rule.judge(p[None], q[None], torch.tensor([n]))
        later = rule.advance(float(steps.kl[0]))
        accept = float(steps.accept_prob[0])
        first = rule.recovery_probs(p, q, n) * (1 - accept)
        first[n] += accept
        for token in first.nonzero()[:, 0].tolist():
            second = later.output_probs(*_both(pair, [*PROMPT, token], sampling))
            for follower in second.nonzero()[:, 0].tolist():
                law[token, follower] += float(p[n] * first[token] * second[follower])
    return law


def _both(pair: Pair, context: Sequence[int], sampling: SamplingParams) -> tuple[Tensor, Tensor]:
    return (
        next_probs(pair.new_drafter().model, context, sampling),
        next_probs(pair.new_verifier(), context, sampling),
    )


def distance(law: Law, other: Law) -> float:
    """Total variation."""
    return sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in law.keys() | other.keys()) / 2
