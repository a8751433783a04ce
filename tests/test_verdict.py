"""The verdict on a round, on hand-made distributions; and whole characters through the loop, on a scripted model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import tiny
import torch

from cactus import RULES, SamplingParams, decode, make_rule
from cactus import verdict as verdicts
from cactus.drafters import ModelDrafter
from cactus.evidence import gather_evidence
from cactus.interfaces import Output
from cactus.models import HFCodec
from cactus.verdict import judge

DISJOINT = torch.tensor([[0.5, 0.5, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.5, 0.5]])
LOSSLESS = [name for name, kind in RULES.items() if kind.lossless]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_hot(*tokens: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), 4).float()


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("interp", "mentored", "tas")])
def test_fault_5_a_uniform_of_zero_does_not_accept_what_has_no_chance(name, monkeypatch):
    monkeypatch.setattr(verdicts, "uniforms", lambda count, generator: torch.zeros(count, dtype=torch.float64))
    draft, verifier = DISJOINT
    verdict = judge(make_rule(name), [0], draft, torch.cat([verifier, verifier]), generator())
    assert verdict.rejected and verdict.accept_probs == [0.0] and verdict.drawn in (2, 3)


def test_fault_5_each_position_and_round_has_its_own_uniform():
    made = decode(tiny.pair(), [5, 9, 30], make_rule("sps"), 4, SamplingParams(), 60, 0)
    list(made)
    drawn = [token.uniform for round_ in made.rounds for token in round_.tokens if token.judged]
    assert len(drawn) > 30 and len(set(drawn)) == len(drawn)
    assert 0.3 < sum(drawn) / len(drawn) < 0.7


@pytest.mark.parametrize("name", [name for name in RULES if name != "interp"])
def test_fault_6_at_temperature_0_only_the_verifiers_argmax_is_emitted(name):
    for draft_token in range(4):
        verdict = judge(make_rule(name), [draft_token], one_hot(draft_token), one_hot(2, 1), generator(draft_token))
        assert (verdict.accepted, verdict.drawn) == ((1, 1) if draft_token == 2 else (0, 2))


@pytest.mark.parametrize("name", LOSSLESS)
def test_fault_3_equal_distributions_never_reject_and_never_yield_nan(name):
    same = torch.tensor([[0.2, 0.3, 0.5, 0.0]])
    for seed in range(50):
        verdict = judge(make_rule(name), [2, 0], same.expand(2, -1), same.expand(3, -1), generator(seed))
        assert verdict.accepted == 2 and verdict.accept_probs == [1.0, 1.0]


def test_fault_2_a_one_hot_draft_recovers_from_the_verifier_without_the_drafted_token():
    verifier = torch.tensor([[0.1, 0.6, 0.3, 0.0]])
    drawn = set()
    for seed in range(200):
        verdict = judge(make_rule("sps"), [1], one_hot(1), verifier.expand(2, -1), generator(seed))
        assert verdict.accept_probs == [pytest.approx(0.6)]
        if verdict.rejected:
            drawn.add(verdict.drawn)
    assert drawn == {0, 2}


def test_evidence_states_what_was_tested_and_nothing_of_what_was_not():
    draft, verifier = DISJOINT
    rule, tokens = make_rule("cactus", delta=0.5), [0, 1]
    probs = draft.expand(2, -1), verifier.expand(3, -1)
    verdict = judge(rule, tokens, *probs, generator())
    first, second, drawn = gather_evidence(rule, verdict, tokens, *probs)
    assert (first.draft_prob, first.verifier_prob, first.accept_prob, first.kl) == (0.5, 0.0, 0.0, 0.0)
    assert first.uniform == verdict.uniforms[0] and first.output_kl is not None
    assert (second.draft_prob, second.uniform, second.accept_prob, second.kl) == (0.5, None, None, None)
    assert drawn.verifier_prob == 0.5 and drawn.draft_prob == 0.0 and drawn.uniform is None
    assert sorted(first.top_draft) == [(0, 0.5), (1, 0.5)] and first.entropy == pytest.approx(0.6931, abs=1e-4)


@dataclass
class Scripted:
    """A cached model that is sure of a given continuation; `wrong` are positions where it errs."""

    script: list[int]
    wrong: frozenset[int] = frozenset()
    length: int = 0
    context_length: int = 1000
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def feed(self, tokens, keep=1, want_hidden=False):
        self.length += len(tokens)
        logits = torch.full((keep, 300), -50.0)
        for row in range(keep):
            position = self.length - keep + row
            token = 3 if position in self.wrong else self.script[min(position, len(self.script) - 1)]
            logits[row, token] = 50.0
        return Output(logits)

    def rewind(self, length):
        assert 0 <= length <= self.length
        self.length = length


TEXTS = ["🌵 stands, 仙人掌 too: naïve 👩‍🚀.", "a real \ufffd stays", "<think>if a<b</think> $x_1$ {{y}}"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("m", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("wrong", [frozenset(), frozenset(range(2, 200, 3)), frozenset(range(200))])
def test_fault_18_characters_split_over_rounds_come_whole(text, m, wrong):
    script = tiny.tokenizer()(text)["input_ids"]
    codec = HFCodec(tiny.tokenizer(), tiny.model())

    class ScriptedPair:
        name, dtype, weights, draft_weights = "scripted", "float32", "none", ""
        new_verifier = staticmethod(lambda: Scripted([*script, 2]))
        new_drafter = staticmethod(lambda: ModelDrafter(Scripted([*script, 2], wrong), 300))

    ScriptedPair.codec = codec
    made = decode(ScriptedPair(), [5], make_rule("sps") if m else None, m, SamplingParams(), 200, 0)
    texts = [round_.text for round_ in made]
    assert made.stop_reason == "stop"
    assert made.trace.text == codec.decode([token.id for token in made.trace.tokens]) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in texts)
        shown = [token.text for round_ in made.rounds for token in round_.tokens]
        assert not any("\ufffd" in piece for piece in shown)
