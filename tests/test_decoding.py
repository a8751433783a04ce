"""The loop: equality with the verifier alone, stops, lengths, seeds. (Caches, family by family: test_architectures.)"""

from __future__ import annotations

import threading

import pytest
import tiny
import torch

from cactus import RULES, SamplingParams, Trace, decode, make_rule
from cactus.errors import CactusError, PromptError
from cactus.sampling import NonFiniteLogits

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 9, 30, 7, 12, 9, 30]
LOSSLESS = [("sps", {}), ("block", {}), ("cactus", {"delta": 0.0})]


def run(pair, rule=None, m=0, tokens=40, prompt=PROMPT, sampling=GREEDY, seed=0, **options):
    made = decode(pair, prompt, rule, m, sampling, tokens, seed, **options)
    list(made)
    return made


def ids(made) -> list[int]:
    return [token.id for token in made.trace.tokens]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("draft", ["near", "same", "other", "lookup"])
def test_fault_14_greedy_speculative_equals_greedy_plain(family, draft):
    pair = tiny.pair(family, draft)
    plain = run(pair)
    for m in range(1, 9):
        assert ids(run(pair, make_rule("sps"), m)) == ids(plain), f"m = {m}"
    for name, params in LOSSLESS[1:]:
        assert ids(run(pair, make_rule(name, **params), 4)) == ids(plain), name


def test_acceptance_is_partial_with_a_near_draft_model():
    """The equality tests above mean something only if drafts are sometimes accepted and sometimes not."""
    metrics = run(tiny.pair(), make_rule("sps"), 5).trace.metrics()
    assert 0.1 < metrics.acceptance_rate < 0.95


def test_context_end_stops_the_run_and_shrinks_the_draft():
    pair = tiny.pair(max_position_embeddings=24)
    made = run(pair, make_rule("sps"), 8, tokens=100)
    assert made.stop_reason == "context"
    assert len(PROMPT) + len(ids(made)) == 24
    assert ids(made) == ids(run(tiny.pair(), tokens=24 - len(PROMPT)))


def test_fault_12_draft_model_with_a_shorter_context():
    pair = tiny.pair_from_models(tiny.model(), tiny.tokenizer(), tiny.model(seed=7, max_position_embeddings=16))
    made = run(pair, make_rule("sps"), 5, tokens=30)
    assert ids(made) == ids(run(tiny.pair(), tokens=30))
    drafted = [round_.num_draft_tokens for round_ in made.rounds]
    assert max(drafted) > 0 and drafted[-1] == 0
    long = run(pair, make_rule("sps"), 5, tokens=10, prompt=PROMPT * 4)
    assert all(round_.num_draft_tokens == 0 for round_ in long.rounds)


def test_fault_12_prompt_longer_than_the_context_is_refused():
    with pytest.raises(PromptError, match=r"512 tokens.*at most 511"):
        decode(tiny.pair(), [5] * 512)
    assert len(ids(run(tiny.pair(), make_rule("sps"), 5, prompt=[5] * 511))) == 1


BAD_PROMPTS = [("", "empty"), ("  \n", "empty"), ([], "empty"), ([5, 300], "300"), ([-1], "-1")]


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS)
def test_fault_12_bad_prompts_are_named(prompt, message):
    with pytest.raises(PromptError, match=message):
        decode(tiny.pair(), prompt)


def test_fault_12_prompt_with_eos_and_pad_tokens_runs_on():
    prompt = [5, 2, 0, 9, 2]
    assert ids(run(tiny.pair(), make_rule("sps"), 4, prompt=prompt)) == ids(run(tiny.pair(), prompt=prompt))


@pytest.mark.parametrize("limit", [1, 2, 7])
@pytest.mark.parametrize("draft", ["near", "same", "lookup"])
def test_fault_11_exactly_max_new_tokens(limit, draft):
    made = run(tiny.pair(draft=draft), make_rule("sps"), 5, tokens=limit)
    assert len(ids(made)) == limit
    assert made.stop_reason == "length"


def eos_run(m: int, stop_ids: frozenset[int], tokens: int = 40, draft: str = "same", seed: int = 0):
    made = decode(tiny.pair(draft=draft), PROMPT, make_rule("sps") if m else None, m, SamplingParams(), tokens, seed)
    made._loop.writer.eos_ids = stop_ids
    list(made)
    return made


@pytest.mark.parametrize("m", [1, 3, 8])
def test_fault_9_nothing_behind_an_accepted_eos(m):
    plain = ids(run(tiny.pair(draft="same"), tokens=30))
    later = next(token for token in plain[3:] if plain.index(token) >= 3)
    made = decode(tiny.pair(draft="same"), PROMPT, make_rule("sps"), m, GREEDY, 30, 0)
    made._loop.writer.eos_ids = frozenset({later, 299})  # a list of EOS ids
    list(made)
    assert ids(made) == plain[: plain.index(later) + 1]
    assert made.stop_reason == "stop"
    assert made._loop.committed[-1] == later
    assert made._loop.verifier.length == len(made._loop.committed) - 1


def test_fault_9_a_rejected_drafted_eos_does_not_end_the_run():
    """The draft model is sure of EOS everywhere, the verifier never says it."""
    sure, never = tiny.FAMILIES["llama"](**tiny.SIZES, vocab_size=300), tiny.model()
    sure.load_state_dict(never.state_dict())
    sure.lm_head.weight.data.zero_()
    sure.eval()
    pair = tiny.pair_from_models(never, tiny.tokenizer(), sure)
    plain = ids(run(pair, tokens=12))
    eos = next(token for token in range(3, 300) if token not in plain)
    sure.lm_head.weight.data[eos] = 10.0 * torch.sign(sure.model.norm.weight.data)
    made = decode(pair, PROMPT, make_rule("sps"), 4, GREEDY, 12, 0)
    made._loop.writer.eos_ids = frozenset({eos, 0})
    list(made)
    assert ids(made) == plain and made.stop_reason == "length"


def test_fault_11_stop_wins_over_the_limit_in_the_same_block():
    plain = ids(run(tiny.pair(draft="same"), tokens=8))
    made = decode(tiny.pair(draft="same"), PROMPT, make_rule("sps"), 8, GREEDY, 8, 0)
    made._loop.writer.eos_ids = frozenset({plain[-1]})
    list(made)
    assert made.stop_reason == "stop"


@pytest.mark.parametrize("m", [0, 1, 4, 8])
def test_fault_10_stop_strings_end_text_and_records_alike(m):
    plain = run(tiny.pair(draft="same"), tokens=30)
    text = plain.trace.text
    for start in range(2, len(text) - 4, 3):
        stop = text[start : start + 3]
        made = run(tiny.pair(draft="same"), make_rule("sps") if m else None, m, tokens=30, stop=[stop])
        assert made.stop_reason == "stop"
        assert made.trace.text == text[: text.index(stop) + len(stop)]
        assert made.trace.check() == []
        assert made._loop.verifier.length == len(made._loop.committed) - 1
        assert made._loop.committed == PROMPT + ids(made)


def test_a_seed_gives_the_same_text_here_and_in_another_thread_and_leaves_the_global_generator_alone():
    pair, found = tiny.pair(), []
    torch.manual_seed(5)
    before = torch.get_rng_state()

    def work():
        found.append(ids(run(pair, make_rule("cactus", delta=1.0), 4, sampling=SamplingParams(), seed=3)))

    work()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5 and all(one == found[0] for one in found)
    assert torch.equal(torch.get_rng_state(), before)
    assert found[0] != ids(run(pair, make_rule("cactus", delta=1.0), 4, sampling=SamplingParams(), seed=4))


def test_without_a_seed_runs_differ_and_the_seed_is_recorded():
    first, second = (run(tiny.pair(), sampling=SamplingParams(), seed=None) for _ in range(2))
    assert ids(first) != ids(second)
    assert ids(run(tiny.pair(), sampling=SamplingParams(), seed=first.trace.seed)) == ids(first)


def test_fault_16_settings_do_not_leak_into_the_next_run():
    pair = tiny.pair()
    before = ids(run(pair, make_rule("sps"), 4, sampling=SamplingParams(), seed=1))
    run(pair, make_rule("cactus_budget", delta=5.0, budget=3.0), 8, sampling=SamplingParams(temperature=2.0, top_k=3))
    assert ids(run(pair, make_rule("sps"), 4, sampling=SamplingParams(), seed=1)) == before


def test_fault_8_repetition_penalty_counts_committed_tokens_only():
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.5)
    for draft in ("near", "other", "lookup"):
        pair = tiny.pair(draft=draft)
        plain = run(pair, sampling=sampling)
        assert ids(run(pair, make_rule("sps"), 5, sampling=sampling)) == ids(plain)
        assert ids(plain) != ids(run(pair))


def test_fault_4_nothing_outside_the_verifiers_nucleus_is_emitted():
    sampling = SamplingParams(temperature=1.0, top_k=3)
    for rule in (make_rule("sps"), make_rule("block")):
        for seed in range(5):
            made = run(tiny.pair(draft="other"), rule, 4, sampling=sampling, seed=seed)
            for token in made.trace.tokens:
                assert token.id in {top.id for top in token.top_verifier}, token
                assert len(token.top_verifier) == 3


def test_fault_27_nan_logits_end_the_run_with_a_clear_error_and_the_next_run_is_fine():
    pair = tiny.pair(draft="same")
    broken = tiny.FAMILIES["llama"](**tiny.SIZES, vocab_size=300)
    broken.load_state_dict(tiny.model().state_dict())
    broken.lm_head.weight.data[7] = float("nan")
    made = decode(tiny.pair_from_models(broken.eval(), tiny.tokenizer(), tiny.model()), PROMPT, make_rule("sps"), 3)
    with pytest.raises(NonFiniteLogits):
        list(made)
    assert made.stop_reason == "error"
    assert len(ids(run(pair, make_rule("sps"), 3, tokens=5))) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0"),
        ({"num_draft_tokens": 50}, "num_draft_tokens is 50"),
        ({"num_draft_tokens": 2.5}, "num_draft_tokens is 2.5"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": True}, "seed is True"),
        ({"stop": [""]}, "stop is"),
        ({"stop": "END"}, "stop is 'END'"),
    ],
)
def test_settings_out_of_range_are_named(options, message):
    with pytest.raises(CactusError, match=message):
        decode(tiny.pair(), PROMPT, make_rule("sps"), **options)
    with pytest.raises(CactusError, match="without a rule"):
        decode(tiny.pair(), PROMPT, None, 3)


def test_should_stop_ends_the_run_within_one_round():
    stop = threading.Event()
    made = decode(tiny.pair(), PROMPT, make_rule("sps"), 3, max_new_tokens=100, seed=0, should_stop=stop.is_set)
    next(made)
    stop.set()
    assert list(made) == [] and made.stop_reason == "cancelled" and len(made.rounds) == 1


def test_time_limit_ends_the_run():
    made = decode(tiny.pair(), PROMPT, max_new_tokens=400, seed=0, max_seconds=0.0)
    assert list(made) == [] and made.stop_reason == "time"


def test_close_ends_the_run():
    made = decode(tiny.pair(), PROMPT, make_rule("sps"), 3, seed=0)
    next(made)
    made.close()
    assert made.stop_reason == "cancelled" and list(made) == []


def test_what_slows_the_steps_behind_a_run_alone_does_not_make_it_look_fast(monkeypatch):
    steps = iter([[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]])
    monkeypatch.setattr("cactus.loop.Loop.time_single_steps", lambda *args: next(steps))
    baseline = run(tiny.pair(), make_rule("sps"), 4, tokens=8, baseline_steps=3).trace.baseline
    assert (baseline.seconds_per_token, baseline.steps) == (2.0, 6)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_measured_baseline_does_not_move_the_run(family):
    with_baseline = run(tiny.pair(family), make_rule("sps"), 4, sampling=SamplingParams(), baseline_steps=4)
    assert ids(with_baseline) == ids(run(tiny.pair(family), make_rule("sps"), 4, sampling=SamplingParams()))
    trace = with_baseline.trace
    assert trace.baseline.steps == 8
    seconds_per_token = trace.metrics().seconds / len(trace.tokens)
    assert trace.metrics().speedup == pytest.approx(trace.baseline.seconds_per_token / seconds_per_token)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_runs_through_the_loop_and_its_trace_is_consistent(rule):
    made = run(tiny.pair(), make_rule(rule), 5, tokens=60, sampling=SamplingParams(temperature=0.8), seed=2)
    trace = made.trace
    assert trace.check() == []
    assert Trace.from_json(trace.to_json()) == trace
    assert trace.method == rule
    tested = [token for round_ in trace.rounds for token in round_.tokens if token.judged]
    assert tested and all((token.uniform < token.accept_prob) == (token.status == "accepted") for token in tested)
    assert all(token.boosted_prob is not None and token.kl is not None for token in tested)


def test_a_budget_is_not_overspent_over_the_whole_run():
    rule = make_rule("cactus_budget", delta=1.0, budget=2.0)
    trace = run(tiny.pair(), rule, 5, tokens=80, sampling=SamplingParams(), seed=1).trace
    assert 0.5 < trace.metrics().total_kl <= 2.0 + 1e-4


def test_fault_1_lossless_rules_draw_from_the_truncated_verifier_through_the_whole_loop():
    """χ² of the second emitted token (7 categories at most) against the exact two-step distribution."""
    sampling = SamplingParams(temperature=1.3, top_k=2)
    pair = tiny.pair(draft="near")
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(600):
        pairs = tuple(ids(run(pair, make_rule("sps"), 2, tokens=2, sampling=sampling, seed=seed)))
        counts[pairs] = counts.get(pairs, 0) + 1
    expected = _two_token_law(pair, sampling)
    assert set(counts) <= set(expected)
    statistic = sum((counts.get(key, 0) - 600 * prob) ** 2 / (600 * prob) for key, prob in expected.items())
    assert statistic < 16.3  # 99.9 % of χ² with 3 degrees of freedom


def _two_token_law(pair, sampling) -> dict[tuple[int, ...], float]:
    from cactus.sampling import probs_from_logits

    def law(tokens):
        logits = pair.new_verifier().feed(tokens).logits
        probs = probs_from_logits(logits, sampling, None)[0]
        return {int(i): float(probs[i]) for i in probs.nonzero()}

    first = law(PROMPT)
    return {(a, b): pa * pb for a, pa in first.items() for b, pb in law([*PROMPT, a]).items()}


@pytest.mark.parametrize("m", [0, 1, 8])
def test_fault_10_ends_hears_every_emitted_token_in_order_and_nothing_comes_behind(m):
    heard: list[int] = []

    def ends(token: int) -> bool:
        heard.append(token)
        return len(heard) == 11

    rule = make_rule("sps") if m else None
    made = run(tiny.pair(draft="same"), rule, m, tokens=30, ends=ends, baseline_steps=3)
    assert ids(made) == heard == ids(run(tiny.pair(), tokens=11)) and made.stop_reason == "stop"
    assert made._loop.committed == PROMPT + heard and made._loop.verifier.length == len(PROMPT) + 10
