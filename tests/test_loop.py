"""A round on an accelerator: how often it waits, that waiting or not makes no difference, and flat costs."""

from __future__ import annotations

import pytest
import tiny
import torch
from reads import Looks

from cactus import RULES, SamplingParams, decode, loop, make_rule, seen, transfer, verdict
from cactus.acceptance import lift, lift_output
from cactus.drafters import FeatureDrafter, PromptLookup
from cactus.models import adapter, cached_heads, feature
from cactus.pace import StepCosts
from cactus.pairs import Pair, pair_from_models

PROMPT = [5, 9, 30, 7, 12]
ASKING = (transfer, loop, verdict, lift, lift_output)  # whether a look at a number waits
# The others work with numbers: a solver that ends when it is exact enough, weights carried from token to token.
ONE_LOOK = [name for name in RULES if name not in ("cactus_exact", "cactus_budget", "mentored", "block")]


def feature_pair() -> Pair:
    verifier = tiny.model()
    ids = torch.arange(0, 300, 2)
    head = feature.build(verifier, ids).requires_grad_(False)
    codec = tiny.pair().codec
    return Pair("f", verifier, codec, lambda: FeatureDrafter(feature.HFFeatureHead(head, 512), 300, ids))


PAIRS = {"model": tiny.pair, "feature": feature_pair, "lookup": lambda: tiny.pair(draft="lookup")}


@pytest.fixture
def far(monkeypatch):
    """The CPU passes for an accelerator."""
    for module in ASKING:
        monkeypatch.setattr(module, "is_far", lambda device: True)


def begun(pair: Pair, rule: str, m: int | str = 5, tokens: int = 60, **sampling: float):
    """A run behind its first rounds; no token ends it."""
    run = decode(pair, PROMPT, make_rule(rule), m, SamplingParams(**sampling), tokens, 0)
    run._loop.writer.eos_ids = frozenset()
    next(run), next(run)
    return run


def looks_of_a_round(run) -> list[str]:
    with Looks() as looks:
        round_ = next(run)
    assert round_.num_draft_tokens > 0 or isinstance(run._loop.drafter, PromptLookup)
    return looks.found


CASES = [(rule, {"temperature": 0.7, "top_p": 0.95}) for rule in ONE_LOOK]
for others in ({"temperature": 0.0}, {"top_k": 9, "min_p": 0.01, "repetition_penalty": 1.2}):
    CASES += [("sps", others), ("cactus", others)]


@pytest.mark.parametrize(("rule", "sampling"), CASES, ids=str)
@pytest.mark.parametrize("drafter", PAIRS)
def test_a_round_waits_once(drafter, rule, sampling, far):
    run = begun(PAIRS[drafter](), rule, **sampling)
    assert [looks_of_a_round(run) for _ in range(3)] == [["tolist"]] * 3


def static_feature_pair() -> Pair:
    plain = feature_pair()
    new = cached_heads(plain.new_drafter().model.head, 512, static=True).new
    drafter = lambda: FeatureDrafter(new(), 300, torch.arange(0, 300, 2))  # noqa: E731
    return Pair("s", plain.model, plain.codec, drafter, static=True)


@pytest.mark.parametrize("rule", ["sps", "cactus"])
def test_a_round_on_static_caches_waits_once_too(rule, far):
    models = pair_from_models(tiny.model(), tiny.tokenizer(), tiny.near(), static=True)
    for pair in (static_feature_pair(), models):
        run = begun(pair, rule, temperature=0.7)
        assert [looks_of_a_round(run) for _ in range(3)] == [["tolist"]] * 3


@pytest.mark.parametrize("drafter", ["model", "feature"])
def test_an_automatic_length_looks_at_every_drafted_token_besides(drafter, far):
    pair = PAIRS[drafter]()
    pair.__dict__["costs"] = StepCosts(0.01, 1.0, 0.01)
    run = begun(pair, "cactus", "auto")
    with Looks() as looks:
        drafted = next(run).num_draft_tokens
    assert drafted > 0 and looks.found == ["__float__"] * drafted + ["tolist"]


def test_looks_are_seen_however_they_are_made():
    """What would make the tests above blind."""
    numbers = torch.arange(4.0)
    made = [
        lambda: numbers.tolist(), lambda: float(numbers[1]), lambda: bool(numbers[0] > 0), lambda: numbers.nonzero(),
        lambda: numbers[numbers > 1], lambda: numbers[torch.tensor(2)], lambda: range(numbers.long()[3]),
        lambda: numbers.numpy(), lambda: numbers.max().item(), lambda: numbers[0] in (1, 2),
        lambda: torch.where(numbers > 1), lambda: numbers.masked_select(numbers > 1), lambda: numbers.unique(),
    ]  # fmt: skip
    for look in made:
        for inference in (False, True):
            with Looks() as looks, torch.inference_mode(inference):
                look()
            assert looks.found, (made.index(look), inference)
    with Looks() as looks:
        numbers[torch.tensor([2])].mul_(2).cumsum(0).add(numbers.sum())
    assert looks.found == []


@pytest.mark.parametrize("rule", RULES)
def test_to_wait_or_not_makes_no_difference(rule, monkeypatch):
    near = begun(feature_pair(), rule, temperature=0.7)
    list(near)
    for module in ASKING:
        monkeypatch.setattr(module, "is_far", lambda device: True)
    far = begun(feature_pair(), rule, temperature=0.7)
    list(far)
    for mine, its in zip(near.rounds, far.rounds, strict=True):
        for one, other in zip(mine.tokens, its.tokens, strict=True):
            assert (one.id, one.status, one.uniform, one.accept_prob) == (
                other.id, other.status, other.uniform, other.accept_prob,
            )  # fmt: skip
            assert [one.kl, one.output_kl] == pytest.approx([other.kl, other.output_kl], abs=2e-6)


def test_an_end_drafted_without_a_look_ends_the_text_all_the_same(far):
    """Drafting goes on behind it; nothing behind it is emitted, counted or kept."""
    plain = decode(tiny.pair(draft="same"), PROMPT, None, 0, SamplingParams(temperature=0.0), 30, 0)
    plain._loop.writer.eos_ids = frozenset()
    ids = [token.id for round_ in plain for token in round_.tokens]
    end = next(token for token in ids[3:] if ids.index(token) >= 3)
    run = decode(tiny.pair(draft="same"), PROMPT, make_rule("sps"), 8, SamplingParams(temperature=0.0), 30, 0)
    run._loop.writer.eos_ids = frozenset({end})
    list(run)
    assert [token.id for token in run.trace.tokens] == ids[: ids.index(end) + 1] and run.stop_reason == "stop"
    assert run._loop.verifier.length == len(run._loop.committed) - 1 and run.trace.check() == []


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_only_new_tokens_are_handled(penalty, monkeypatch):
    """All that is sent to the device in a round is what it has not seen, however long the text."""
    sent = []
    real = transfer.send

    def send(tokens, device):
        sent.append(len(tokens))
        return real(tokens, device)

    for module in (loop, seen, adapter):
        monkeypatch.setattr(module, "send", send)
    run = begun(tiny.pair(), "sps", tokens=200, temperature=1.0, repetition_penalty=penalty)
    for _ in range(20):
        sent.clear()
        next(run)
        assert max(sent) <= 7
