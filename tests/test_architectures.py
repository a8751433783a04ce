"""One code path for every listed family of models: tiny ones of each, with random weights, against transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import tiny
import torch
from outcomes import distance, exact_law, verifier_law
from transformers import DynamicCache

from cactus import RULES, SamplingParams, decode, make_rule
from cactus.drafters import FeatureDrafter, ModelDrafter
from cactus.models import HFModel, check_rewindable, feature
from cactus.pairs import Pair, pair_from_models

FAMILIES = list(tiny.ARCHITECTURES)
GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 9, 30, 7, 12, 9, 30, 8, 5, 9, 41, 6]  # longer than the windows, and with repetitions to look up
HALF = torch.arange(0, 300, 2)
# At temperature 0 these accept the verifier's first choice alone; interp and mentored give in to the draft model.
GREEDY_EXACT = sorted(RULES.keys() - {"interp", "mentored"})


@cache
def head_of(family: str) -> feature.FeatureHead:
    return feature.build(tiny.model(family), HALF).requires_grad_(False)


DRAFTERS: dict[str, Callable[[str, int], Any]] = {
    "draft model": lambda family, size: ModelDrafter(HFModel(tiny.near(family, noise=0.05)), size),
    "borrowed embeddings": lambda family, size: ModelDrafter(
        HFModel(tiny.shared_draft(tiny.model(family), HALF)), size, HALF
    ),
    "feature head": lambda family, size: FeatureDrafter(feature.HFFeatureHead(head_of(family), 512), size, HALF),
}
KINDS = [*DRAFTERS, "prompt lookup"]


@cache
def pair_of(family: str, kind: str = "draft model") -> Pair:
    lookup = pair_from_models(tiny.model(family), tiny.tokenizer(), name=family)
    if kind == "prompt lookup":
        return lookup
    return Pair(family, lookup.model, lookup.codec, lambda: DRAFTERS[kind](family, lookup.codec.vocab_size))


def run(pair, rule=None, m=0, tokens=24, prompt=PROMPT, sampling=GREEDY, seed=0, eos=frozenset()):
    made = decode(pair, prompt, make_rule(rule) if rule else None, m, sampling, tokens, seed)
    made._loop.writer.eos_ids = eos
    list(made)
    return made


def ids(made) -> list[int]:
    return [token.id for token in made.trace.tokens]


@cache
def generated(family: str, tokens: int = 24) -> list[int]:
    """By transformers alone."""
    settings = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None}
    return tiny.model(family).generate(torch.tensor([PROMPT]), **settings)[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_taken_and_says_something(family):
    check_rewindable(tiny.model(family))
    assert len(set(generated(family))) > 10  # a text that repeats one token would hide a broken cache


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_fault_14_greedy_texts_are_those_of_transformers(family, kind):
    pair, expected = pair_of(family, kind), generated(family)
    assert ids(run(pair)) == expected
    for m in (1, 3, 8):
        assert ids(run(pair, "sps", m)) == expected, f"m = {m}"


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_14_with_every_rule_that_is_exact_at_temperature_0(family):
    accepted = set()
    for rule in GREEDY_EXACT:
        made = run(pair_of(family), rule, 3)
        assert ids(made) == generated(family), rule
        accepted.add(made.trace.metrics().acceptance_rate)
    assert len(accepted) == 1 and 0.1 < accepted.pop() < 0.95  # some drafts pass and some do not


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_13_identical_models_accept_everything(family):
    made = run(pair_from_models(tiny.model(family), tiny.tokenizer(), tiny.model(family)), "sps", 5, 60)
    assert all(round_.accepted_length == round_.num_draft_tokens for round_ in made.rounds)


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_13_caches_hold_the_committed_tokens_after_each_of_200_rounds(family):
    verifier = tiny.model(family, max_position_embeddings=2048)
    draft = tiny.near(family, noise=0.05, max_position_embeddings=2048)
    pair = pair_from_models(verifier, tiny.tokenizer(), draft)
    made = decode(pair, PROMPT, make_rule("sps"), 3, SamplingParams(), 1500, 1)
    loop = made._loop
    loop.writer.eos_ids = frozenset()
    text = PROMPT[:]
    for _ in range(200):
        round_ = next(made)
        text += [token.id for token in round_.tokens if token.emitted]
        verifier, drafter = loop.verifier, loop.drafter.model
        full = round_.accepted_length == round_.num_draft_tokens == 3
        assert loop.committed == text
        assert verifier.length == len(loop.committed) - 1 == verifier._cache.get_seq_length()
        assert drafter.length == len(loop.committed) - (2 if full else 1) == drafter._cache.get_seq_length()


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_13_a_feature_heads_cache_holds_verified_pairs_after_every_round(family):
    rounds = seed = 0
    while rounds < 70:
        made = decode(pair_of(family, "feature head"), PROMPT, make_rule("sps"), 2, SamplingParams(), 80, seed)
        made._loop.writer.eos_ids = frozenset()
        head = made._loop.drafter.model
        for round_ in made:
            if round_.num_draft_tokens:
                assert head.length == len(made._loop.committed) - 2 - round_.accepted_length
                assert head.length == head._cache.get_seq_length()
            rounds += 1
        seed += 1


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_15_rewound_caches_give_the_logits_of_fresh_ones(family):
    """Drafts longer than the window, rewound far past it; with hidden states."""
    text = torch.randint(3, 300, (60,), generator=torch.Generator().manual_seed(3)).tolist()
    model = HFModel(tiny.model(family))
    model.feed(text[:20])
    model.rewind(20)
    for start in range(20, 50, 3):
        model.feed([*text[start : start + 3], *[4] * (start % 16)])
        model.rewind(start + 3)
    found = model.feed(text[50:], keep=10, want_hidden=True)
    fresh = HFModel(tiny.model(family)).feed(text, keep=10, want_hidden=True)
    torch.testing.assert_close(found.logits, fresh.logits, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(found.hidden, fresh.hidden[50:], atol=2e-4, rtol=2e-4)
    whole = tiny.model(family)(input_ids=torch.tensor([text])).logits[0, -10:]
    torch.testing.assert_close(found.logits, whole, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", ["gemma2", "gemma3", "gemma3 with images"])
def test_fault_15_the_window_is_one(family):
    """What lies before it makes no difference to a layer that slides, and the text is long enough to show it."""
    text = list(range(5, 45))
    layers = DynamicCache(config=tiny.model(family).config).layers
    assert {type(layer).__name__ for layer in layers} == {"DynamicSlidingWindowLayer", "DynamicLayer"}
    model = HFModel(tiny.model(family))
    model.feed(text)
    model.rewind(len(text))
    assert min(layer.keys.shape[-2] for layer in model._cache.layers) < len(text)


def test_soft_caps_bound_the_logits_and_are_in_the_distribution():
    bare = copy.deepcopy(tiny.model("gemma2"))
    bare.config.final_logit_softcapping = None
    capped, free = (HFModel(model).feed(PROMPT).logits for model in (tiny.model("gemma2"), bare))
    assert capped.abs().max() < 4.0 < free.abs().max()
    torch.testing.assert_close(capped, 4.0 * torch.tanh(free / 4.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_1_the_law_of_two_tokens_is_the_verifiers(family, monkeypatch):
    """Exactly: everything that can be drawn and judged is, with real caches."""
    monkeypatch.setattr("outcomes.PROMPT", PROMPT)
    sampling = SamplingParams(temperature=1.4, top_k=2)
    law = exact_law(monkeypatch, pair_of(family), make_rule("sps"), 2, sampling)
    assert len(law) >= 3 and distance(law, verifier_law(pair_of(family), sampling)) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_12_a_draft_model_with_a_shorter_context(family):
    short = tiny.model(family, 7, max_position_embeddings=20)
    made = run(pair_from_models(tiny.model(family), tiny.tokenizer(), short), "sps", 5)
    assert ids(made) == generated(family)
    drafted = [round_.num_draft_tokens for round_ in made.rounds]
    assert max(drafted) > 0 and drafted[-1] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_12_the_verifiers_context_is_filled_to_the_last_token(family):
    verifier = tiny.model(family, max_position_embeddings=30)
    made = run(pair_from_models(verifier, tiny.tokenizer(), tiny.near(family, noise=0.05)), "sps", 8, tokens=100)
    assert made.stop_reason == "context" and ids(made) == generated(family)[: 30 - len(PROMPT)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("m", [1, 8])
def test_fault_9_a_list_of_eos_ids(family, m):
    """The second of the list comes in mid-draft: nothing stays behind it, in text or caches."""
    model, expected = copy.deepcopy(tiny.model(family)), generated(family)
    eos = next(token for token in expected[5:] if expected.index(token) >= 5)
    model.generation_config.eos_token_id = [299, eos] if 299 not in expected else [298, eos]
    made = decode(pair_from_models(model, tiny.tokenizer(), model), PROMPT, make_rule("sps"), m, GREEDY, 24, 0)
    made._loop.writer.eos_ids -= {2}  # the tokenizer's own
    list(made)
    assert ids(made) == expected[: expected.index(eos) + 1]
    assert made.stop_reason == "stop" and made._loop.verifier.length == len(PROMPT) + len(ids(made)) - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_17_unequal_padded_vocabularies(family):
    verifier, draft = tiny.model(family, vocab_size=320), tiny.model(family, vocab_size=304)
    pair = pair_from_models(verifier, tiny.tokenizer(), draft)
    assert ids(run(pair, "sps", 4)) == ids(run(pair))
    hot = run(pair, "sps", 4, 40, sampling=SamplingParams(temperature=5.0))
    everything = [token.id for round_ in hot.rounds for token in round_.tokens]
    assert max(everything) <= max(tiny.tokenizer().get_vocab().values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fault_7_half_precision(family, dtype):
    """Distributions are float32 whatever the weights are; every verdict of the trace can be checked again."""
    verifier, draft = (copy.deepcopy(model).to(dtype) for model in (tiny.model(family), tiny.near(family, noise=0.05)))
    pair = pair_from_models(verifier, tiny.tokenizer(), draft)
    made = run(pair, "cactus", 4, sampling=SamplingParams(top_p=0.9), seed=3)
    assert made.trace.dtype == str(dtype).removeprefix("torch.") and made.trace.check() == []
    assert len(ids(made)) == 24 and made.trace.metrics().accepted_tokens > 0
    feeding = HFModel(verifier)
    assert feeding.feed(PROMPT).logits.dtype == torch.float32


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_8_repetition_penalty_counts_committed_tokens_only(family):
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.5)
    plain = run(pair_of(family), sampling=sampling)
    settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "repetition_penalty": 1.5}
    assert ids(plain) == tiny.model(family).generate(torch.tensor([PROMPT]), **settings)[0, len(PROMPT) :].tolist()
    for kind in KINDS:
        assert ids(run(pair_of(family, kind), "sps", 5, sampling=sampling)) == ids(plain), kind
