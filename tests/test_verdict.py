"""The verdict on a round, on hand-made distributions; and whole characters through the loop, on a scripted model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import tiny
import torch

from cactus import RULES, SamplingParams, decode, make_rule
from cactus import verdict as verdicts
from cactus.drafters import ModelDrafter
from cactus.evidence import found, likeliest, pooled, work_out
from cactus.interfaces import Output, Proposal
from cactus.models import HFCodec
from cactus.transfer import read
from cactus.verdict import judge

DISJOINT = torch.tensor([[0.5, 0.5, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.5, 0.5]])
LOSSLESS = [name for name, kind in RULES.items() if kind.lossless]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def findings(rule, tokens, draft_probs, verifier_probs, source, **options):
    """The verdict and its numbers, read."""
    proposal = Proposal(torch.tensor(tokens), draft_probs, options.pop("token_ids", None), options.pop("columns", None))
    verdict = judge(rule, proposal.tokens, draft_probs, verifier_probs, source)
    return found(*read(*work_out(rule, verdict, proposal, verifier_probs, **options)))


def one_hot(*tokens: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), 4).float()


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("interp", "mentored", "tas")])
def test_fault_5_a_uniform_of_zero_does_not_accept_what_has_no_chance(name, monkeypatch):
    monkeypatch.setattr(verdicts, "uniforms", lambda count, generator: torch.zeros(count, dtype=torch.float64))
    draft, verifier = DISJOINT
    verdict = findings(make_rule(name), [0], draft, torch.cat([verifier, verifier]), generator())
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
        verdict = findings(make_rule(name), [draft_token], one_hot(draft_token), one_hot(2, 1), generator(draft_token))
        assert (verdict.accepted, verdict.drawn) == ((1, 1) if draft_token == 2 else (0, 2))


@pytest.mark.parametrize("name", LOSSLESS)
def test_fault_3_equal_distributions_never_reject_and_never_yield_nan(name):
    same = torch.tensor([[0.2, 0.3, 0.5, 0.0]])
    for seed in range(50):
        verdict = findings(make_rule(name), [2, 0], same.expand(2, -1), same.expand(3, -1), generator(seed))
        assert verdict.accepted == 2 and verdict.accept_probs == [1.0, 1.0]


def test_fault_2_a_one_hot_draft_recovers_from_the_verifier_without_the_drafted_token():
    verifier = torch.tensor([[0.1, 0.6, 0.3, 0.0]])
    drawn = set()
    for seed in range(200):
        verdict = findings(make_rule("sps"), [1], one_hot(1), verifier.expand(2, -1), generator(seed))
        assert verdict.accept_probs == [pytest.approx(0.6)]
        if verdict.rejected:
            drawn.add(verdict.drawn)
    assert drawn == {0, 2}


def test_evidence_states_what_was_tested_and_nothing_of_what_was_not():
    draft, verifier = DISJOINT
    rule = make_rule("cactus", delta=0.5)
    verdict = findings(rule, [0, 1], draft.expand(2, -1), verifier.expand(3, -1), generator())
    first, second, drawn = verdict.evidence
    assert (first.draft_prob, first.verifier_prob, first.accept_prob, first.kl) == (0.5, 0.0, 0.0, 0.0)
    assert 0 <= first.uniform < 1 and first.output_kl is not None and verdict.sound
    assert (second.draft_prob, second.uniform, second.accept_prob, second.kl) == (0.5, None, None, None)
    assert drawn.verifier_prob == 0.5 and drawn.draft_prob == 0.0 and drawn.uniform is None
    assert sorted(first.top_draft) == [(0, 0.5), (1, 0.5)] and first.entropy == pytest.approx(0.6931, abs=1e-4)


ROWS = torch.randn(7, 1000, generator=generator(3)).mul(3).softmax(-1)


def drafted(count: int, seed: int):
    """Tokens and rows [count, 1000] of a drafter that can draft 250 tokens, as a proposal has them."""
    ids = torch.randperm(1000, generator=generator(seed))[:250]
    narrow = torch.randn(count, 250, generator=generator(seed)).mul(3).softmax(-1)
    columns = narrow.multinomial(1, generator=generator(seed))[:, 0]
    probs = torch.zeros(count, 1000).scatter_(-1, ids.expand(count, -1), narrow)
    return ids[columns].tolist(), probs, {"token_ids": ids, "columns": columns}


@pytest.mark.parametrize("name", RULES)
def test_numbers_worked_out_ahead_or_over_the_draftable_tokens_alone_are_the_same(name):
    rule, rejections = make_rule(name), 0
    for seed in range(8):
        tokens, probs, columns = drafted(6, seed)
        plain = findings(rule, tokens, probs, ROWS, generator(seed))
        rejections += plain.rejected
        for options in ({"ahead": True}, columns, {"ahead": True, **columns}):
            other = findings(rule, tokens, probs, ROWS, generator(seed), **options)
            assert (other.drafted, other.accepted, other.drawn) == (plain.drafted, plain.accepted, plain.drawn)
            for mine, its in zip(plain.evidence, other.evidence, strict=True):
                numbers = [{k: v for k, v in vars(e).items() if not k.startswith("top")} for e in (mine, its)]
                assert numbers[0] == pytest.approx(numbers[1], abs=2e-6)
                assert (mine.top_draft, mine.top_verifier) == (its.top_draft, its.top_verifier)
    assert rejections


def test_tokens_that_cannot_be_drafted_count_as_one():
    _, probs, columns = drafted(3, 0)
    draft, verifier = pooled(probs, ROWS[:3], columns["token_ids"])
    assert draft.shape == verifier.shape == (3, 251) and (draft[:, -1] == 0).all()
    torch.testing.assert_close(verifier.sum(-1), torch.ones(3))


@pytest.mark.parametrize("vocab", [3, 640, 1000, 5000])
def test_the_likeliest_tokens_are_those_of_a_search_through_all(vocab):
    probs = torch.rand(4, vocab, generator=generator()).softmax(-1)
    probs[0, -2:] = 0.9  # behind the last whole block
    ids, values = likeliest(probs)
    assert torch.equal(values, probs.topk(min(5, vocab)).values)
    assert torch.equal(probs.gather(-1, ids), values)


@pytest.mark.parametrize("broken", ["draft", "verifier", "behind"])
def test_what_came_of_no_distribution_is_not_sound(broken):
    same = torch.tensor([[0.2, 0.3, 0.5, 0.0]])
    draft, verifier = same.repeat(2, 1), same.repeat(3, 1)
    {"draft": draft[1], "verifier": verifier[0], "behind": verifier[2]}[broken].fill_(float("nan"))
    assert not findings(make_rule("sps"), [2, 0], draft, verifier, generator()).sound
    assert findings(make_rule("sps"), [2, 0], same.repeat(2, 1), same.repeat(3, 1), generator()).sound


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
        name, dtype, weights, draft_weights, caches = "scripted", "float32", "none", "", ""
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
