"""Static caches: the logits of growing ones, whatever is fed, rewound, forked or run by turns; graphs replayed."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from itertools import zip_longest

import pytest
import tiny
import torch
from tape import TapeRecorder

from cactus import SamplingParams, decode, make_rule
from cactus.errors import CactusError
from cactus.models import HFModel, pools
from cactus.models.pools import CHUNK
from cactus.models.slots import WIDEST
from cactus.models.static import StaticModel, StaticPool, cached_models, can_be_static
from cactus.pairs import Pair, pair_from_models

FAMILIES = ["llama", "qwen3"]
GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 9, 30, 41, 7]


@pytest.fixture(params=[None, TapeRecorder], ids=["launched", "replayed"])
def recorder(request):
    return request.param


def text(length: int, seed: int = 3) -> list[int]:
    return torch.randint(3, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def static_pair(family: str = "llama", draft_seed: int | None = None) -> Pair:
    draft = tiny.near(family) if draft_seed is None else tiny.model(family, draft_seed)
    return pair_from_models(tiny.model(family), tiny.tokenizer(), draft, static=True)


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_feeds_of_every_length_give_the_logits_and_hidden_states_of_a_growing_cache(family, attention, recorder):
    with torch.random.fork_rng():
        model = tiny.FAMILIES[family](**{**tiny.SIZES, "vocab_size": 300, "attn_implementation": attention})
    model = model.eval().double()  # no rounding to speak of
    ours, theirs = StaticPool(model, recorder).new(), HFModel(model)
    fed = text(200)
    for width in range(1, WIDEST + 3):
        begin = ours.length
        keep, wanted = 1 + width // 2, bool(width % 2)
        tokens = fed[begin : begin + width]
        found, expected = ours.feed(tokens, keep, wanted), theirs.feed(tokens, keep, wanted)
        assert found.logits.shape == expected.logits.shape == (keep, 300)
        assert_same(found.logits, expected.logits)
        assert (found.hidden is None) == (expected.hidden is None) == (not wanted)
        if wanted:
            assert_same(found.hidden, expected.hidden)
        assert ours.length == theirs.length == begin + width


@pytest.mark.parametrize("family", FAMILIES)
def test_fault_13_logits_after_each_of_200_random_rewinds_are_those_of_a_fresh_forward(family, recorder):
    model, choice = copy.deepcopy(tiny.model(family)).double(), random.Random(family)
    ours, held = StaticPool(model, recorder).new(), text(20)
    ours.feed(held)
    for _ in range(200):
        length = choice.randint(max(1, len(held) - 17), len(held)) if len(held) < 280 else 10
        ours.rewind(length)
        new = [choice.randrange(3, 300) for _ in range(choice.randint(1, WIDEST))]
        held = held[:length] + new
        keep = choice.randint(1, len(new))
        fresh = model(torch.tensor([held]), logits_to_keep=keep).logits[0].float()
        torch.testing.assert_close(ours.feed(new, keep).logits, fresh, atol=1e-6, rtol=1e-6)
        assert ours.length == len(held)


def test_grouped_queries_see_what_each_alone_would_see_and_no_key_is_copied(monkeypatch):
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def watched(query, key, *given, **named):
        seen.append((query.shape[1:3], key.shape[1]))
        return attend(query, key, *given, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    model = StaticPool(tiny.model()).new()
    model.feed(PROMPT)
    assert set(seen[tiny.SIZES["num_hidden_layers"] :]) == {((2, 2 * len(PROMPT)), 2)}  # 2 of 4 heads share a key head
    plain = HFModel(tiny.model())  # the same model, as the library would have it
    plain.feed(PROMPT)
    seen.clear()
    plain.feed(PROMPT)
    assert {key_heads for _, key_heads in seen} == {4}


def test_graphs_are_made_once_for_a_length_and_replayed_from_then_on():
    made: list[TapeRecorder] = []

    def new_recorder(device):
        made.append(TapeRecorder())
        return made[-1]

    pool = StaticPool(tiny.model(), new_recorder)
    for _ in range(3):
        model = pool.new()
        model.feed(text(40))
        for width in (1, 4, 1, 4, 4):
            model.feed(text(width))
    assert [(tape.made, tape.played) for tape in made] == [(2, 15)]


def test_a_pool_prepared_ahead_makes_no_graph_in_a_run():
    pool = StaticPool(tiny.model(), TapeRecorder)
    pool.prepare(range(1, WIDEST + 1))
    model = pool.new()
    model.feed(text(100))
    assert model.cache._slot.widths == list(range(1, WIDEST + 1))
    assert_same(model.feed([8]).logits, HFModel(tiny.model()).feed([*text(100), 8]).logits)


def test_a_run_gets_the_slot_with_most_graphs_and_its_fork_another():
    pool = StaticPool(tiny.model(), TapeRecorder)
    pool.prepare(range(1, WIDEST + 1))
    for _ in range(3):
        model = pool.new()
        model.feed(text(100))
        fork = model.fork()
        fork.feed([8])
        assert (len(model.cache._slot.widths), fork.cache._slot.widths) == (WIDEST, [1])
        del fork
        del model


class Refusing(TapeRecorder):
    """Captures two passes, and no more."""

    def __call__(self, work):
        if self.made == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return super().__call__(work)


def test_what_cannot_be_recorded_is_launched_and_said_once():
    made = []

    def new_recorder(device):
        made.append(Refusing())
        return made[-1]

    pool = StaticPool(tiny.model(), new_recorder)
    model, plain = pool.new(), HFModel(tiny.model())
    for width in (1, 2):
        assert_same(model.feed(text(width), width).logits, plain.feed(text(width), width).logits)
    assert pool.kind == "static caches and CUDA graphs" and model.cache.widths == [1, 2]
    with pytest.warns(RuntimeWarning, match="LlamaForCausalLM runs without CUDA graphs: operation not permitted"):
        found = model.feed(PROMPT, keep=5).logits
    assert_same(found, plain.feed(PROMPT, keep=5).logits)
    # The others go with it: their memory and stream are not to be shared with a capture that failed.
    assert model.cache.widths == [] and made[0].dropped == 1
    assert_same(model.feed([8]).logits, plain.feed([8]).logits)
    assert pool.kind == "static caches, no CUDA graphs (operation not permitted when stream is capturing)"
    pool.new().feed(PROMPT)
    assert len(made) == 1  # nor is it tried again in another run


def test_no_graphs_where_nothing_can_record():
    def none_left(device):
        raise RuntimeError("all 32 streams are in use")

    pool = StaticPool(tiny.model(), none_left)
    with pytest.warns(RuntimeWarning, match="all 32 streams"):
        found = pool.new().feed(PROMPT).logits
    assert_same(found, HFModel(tiny.model()).feed(PROMPT).logits)


def test_a_model_that_looks_at_its_positions_is_launched():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    with torch.random.fork_rng():
        model = tiny.FAMILIES["llama"](**{**tiny.SIZES, "vocab_size": 300, "rope_parameters": scaling}).eval()
    ours = StaticPool(model, TapeRecorder).new()
    with pytest.warns(RuntimeWarning, match="LlamaForCausalLM runs without CUDA graphs"):
        found = ours.feed(PROMPT, keep=5).logits
    assert_same(found, HFModel(model).feed(PROMPT, keep=5).logits)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "work",
    [
        lambda numbers: bool(numbers[0] > 0),
        lambda numbers: float(numbers[0]),
        lambda numbers: numbers.tolist(),
        lambda numbers: numbers[0].item(),
        lambda numbers: numbers.nonzero(),
        lambda numbers: torch.tensor([1.0]),
    ],
)
def test_the_tape_refuses_what_a_graph_refuses(mode, work):
    with mode(), pytest.raises(RuntimeError, match="capturing"):
        TapeRecorder()(lambda: work(torch.ones(3)))


def test_outputs_stay_what_they_are_when_more_is_fed(recorder):
    model = StaticPool(tiny.model(), recorder).new()
    first = model.feed([5, 9], keep=2, want_hidden=True)
    logits, hidden = first.logits.clone(), first.hidden.clone()
    model.rewind(0)
    model.feed([70, 80], keep=2, want_hidden=True)
    assert torch.equal(first.logits, logits) and torch.equal(first.hidden, hidden)


def test_long_feeds_go_through_in_chunks(recorder):
    model = tiny.model(max_position_embeddings=4096)
    tokens = text(2 * CHUNK + 3)
    found = StaticPool(model, recorder).new().feed(tokens, keep=CHUNK + 10, want_hidden=True)
    wanted = HFModel(model).feed(tokens, keep=CHUNK + 10, want_hidden=True)
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.hidden, wanted.hidden, atol=1e-4, rtol=1e-4)


def test_a_text_that_outgrows_its_cache_moves_to_a_larger_one(recorder, monkeypatch):
    monkeypatch.setattr(pools, "SLACK", 8)
    monkeypatch.setattr(pools, "SMALLEST", 16)
    model, tokens = StaticPool(tiny.model(), recorder).new(), text(120)
    seen = []
    for begin in range(0, 120, 5):
        model.feed(tokens[begin : begin + 5])
        seen.append(model.cache.capacity)
    assert sorted(set(seen)) == [16, 32, 64, 128] and seen == sorted(seen)
    assert_same(model.feed([8]).logits, HFModel(tiny.model()).feed([*tokens, 8]).logits)


def test_the_context_ends_where_it_ends_for_a_growing_cache(recorder):
    model = StaticPool(tiny.model(max_position_embeddings=24), recorder).new()
    assert (model.context_length, model.device) == (24, torch.device("cpu"))
    model.feed(text(20))
    with pytest.raises(CactusError, match="25 tokens do not fit into the context of 24 tokens"):
        model.feed([5] * 5)
    assert model.length == 20
    wanted = HFModel(tiny.model(max_position_embeddings=24)).feed([*text(20), 5, 5, 5, 5], keep=4).logits
    assert_same(model.feed([5] * 4, keep=4).logits, wanted)
    with pytest.raises(CactusError, match="cannot rewind to 25"):
        model.rewind(25)
    with pytest.raises(CactusError, match="at least one token"):
        model.feed([])


def test_a_fork_and_its_original_leave_each_other_alone(recorder):
    model = StaticPool(tiny.model(), recorder).new()
    assert model.fork().length == 0
    model.feed(PROMPT)
    other = model.fork()
    other.feed(text(20))
    model.feed([50, 60])
    other.rewind(8)
    assert (model.length, other.length) == (7, 8)
    assert_same(model.feed([8]).logits, HFModel(tiny.model()).feed([*PROMPT, 50, 60, 8]).logits)
    assert_same(other.feed([8]).logits, HFModel(tiny.model()).feed([*PROMPT, *text(20)[:3], 8]).logits)


def test_runs_by_turns_do_not_mix_and_a_later_run_finds_nothing_of_an_earlier_one(recorder):
    pool = StaticPool(tiny.model(), recorder)
    runs = [pool.new() for _ in range(3)]
    for begin in range(0, 30, 3):
        for seed, run in enumerate(runs):
            run.feed(text(30, seed)[begin : begin + 3])
            run.rewind(begin + 3)
    assert len({id(run.cache._slot) for run in runs}) == 3
    for seed, run in enumerate(runs):
        assert_same(run.feed([8]).logits, HFModel(tiny.model()).feed([*text(30, seed), 8]).logits)
    slots = {id(run.cache._slot) for run in runs}
    for layer in runs[0].cache._slot._layers:
        with torch.inference_mode():
            layer.keys.fill_(float("nan"))  # as a run leaves them that ended in NaN
            layer.values.fill_(float("nan"))
    del runs, run
    gc.collect()
    later = pool.new()
    assert_same(later.feed(PROMPT).logits, HFModel(tiny.model()).feed(PROMPT).logits)
    assert recorder is None or id(later.cache._slot) in slots


def test_fault_25_only_so_many_caches_are_kept_for_later_and_none_without_the_pool():
    pool = StaticPool(tiny.model(), TapeRecorder)
    runs = [pool.new() for _ in range(pools.IDLE + 3)]
    for run in runs:
        run.feed(PROMPT)
    del runs, run
    gc.collect()
    assert len(pool._idle) == pools.IDLE
    kept = [weakref.ref(pool), *map(weakref.ref, pool._idle)]
    del pool
    gc.collect()
    assert not any(reference() for reference in kept)


def test_caches_that_a_long_prompt_grows_out_of_are_not_kept():
    pool = StaticPool(tiny.model(max_position_embeddings=4096), TapeRecorder)
    model = pool.new()
    for begin in range(0, 3000, CHUNK):
        model.feed(text(3000)[begin : begin + CHUNK])
    assert (model.cache.capacity, len(pool._idle)) == (4096, 0)


def test_what_a_static_cache_cannot_rewind_gets_a_growing_one():
    assert all(can_be_static(tiny.model(family)) for family in FAMILIES)
    assert not can_be_static(tiny.model("gemma3"))
    assert type(cached_models(tiny.model("gemma3"), static=True).new()) is HFModel
    assert type(cached_models(tiny.model(), static=True).new()) is StaticModel
    assert type(cached_models(tiny.model()).new()) is HFModel  # on a CPU nothing is gained by it


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("draft_seed", [None, 7], ids=["near", "other"])
def test_fault_14_greedy_speculative_equals_greedy_autoregressive(family, count, draft_seed):
    pair = static_pair(family, draft_seed)
    assert type(pair.new_verifier()) is StaticModel and type(pair.new_drafter().model) is StaticModel
    alone = [
        token.id for round_ in decode(tiny.pair(family), PROMPT, None, 0, GREEDY, 48, 0) for token in round_.tokens
    ]
    drafted = decode(pair, PROMPT, make_rule("sps"), count, GREEDY, 48, 0, baseline_steps=2)
    for _ in drafted:
        pass
    assert [token.id for token in drafted.trace.tokens if token.emitted] == alone
    assert drafted.trace.baseline is not None


@pytest.mark.parametrize("method", ["sps", "cactus", "block"])
def test_a_seed_gives_the_same_text_on_either_kind_of_cache(method):
    def sampled(pair):
        run = decode(pair, PROMPT, make_rule(method), 4, SamplingParams(), 60, 5)
        return [token.id for round_ in run for token in round_.tokens]

    assert sampled(static_pair()) == sampled(tiny.pair())


def test_two_runs_of_one_pair_by_turns_give_the_texts_of_each_alone():
    def run(pair, prompt):
        return decode(pair, prompt, make_rule("sps"), 4, SamplingParams(), 40, 5)

    def ids(rounds):
        return [token.id for round_ in rounds for token in round_.tokens]

    prompts = [PROMPT, text(30)]
    wanted = [ids(run(static_pair(), prompt)) for prompt in prompts]
    pair = static_pair()
    runs = [run(pair, prompt) for prompt in prompts]
    rounds = list(zip_longest(*runs, fillvalue=None))  # a round of one, a round of the other
    assert [ids(filter(None, column)) for column in zip(*rounds, strict=True)] == wanted


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_on_a_cuda_device_compute_what_the_cpu_does(family):
    model = copy.deepcopy(tiny.model(family)).to("cuda")
    ours, theirs = cached_models(model, static=True).new(), HFModel(tiny.model(family))
    assert type(ours) is StaticModel
    for begin, width in enumerate([40, *range(1, WIDEST + 1), *range(1, WIDEST + 1)]):
        tokens = text(width, begin)
        found, wanted = ours.feed(tokens, width, True), theirs.feed(tokens, width, True)
        torch.testing.assert_close(found.logits.cpu(), wanted.logits, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(found.hidden.cpu(), wanted.hidden, atol=1e-3, rtol=1e-3)
        for either in (ours, theirs):
            either.rewind(either.length - width // 3)
    assert ours.cache._slot.widths == list(range(1, WIDEST + 1))
