"""The door of the transformers library: `generate(custom_generate=generate_with(…))` against its own `generate`."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import tiny
import torch
from outcomes import Outcomes, distance
from transformers import (
    LogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
    TextIteratorStreamer,
    pipeline,
)
from transformers.generation.streamers import BaseStreamer

from cactus import Trace, generate_with, make_rule
from cactus.drafters import ModelDrafter, PromptLookup
from cactus.errors import CactusError
from cactus.models import HFModel
from cactus.pairs import Lookup
from cactus.sampling import NonFiniteLogits

IDS = torch.tensor([[5, 9, 30, 7, 9]])
GREEDY = {"do_sample": False, "max_new_tokens": 24}
VERIFIER, DRAFT = tiny.model(), tiny.near(noise=0.05)
TOKENIZER = tiny.tokenizer()


def plain(ids=IDS, model=VERIFIER, **options):
    return model.generate(ids, **{**GREEDY, **options})


def ours(ids=IDS, model=VERIFIER, rule=None, draft=DRAFT, m=4, door=None, **options):
    door = door or generate_with(rule or make_rule("sps"), draft, m, seed=1)
    return model.generate(ids, custom_generate=door, **{**GREEDY, **options})


def later_token(at: int = 5) -> int:
    """A token that the greedy text has for the first time so far behind its beginning."""
    new = plain(eos_token_id=299)[0, IDS.shape[1] :].tolist()
    return next(token for index, token in enumerate(new) if index >= at and new.index(token) == index)


@pytest.mark.parametrize("m", [1, 3, 8, "auto"])
def test_greedy_text_is_that_of_generate(m):
    door = generate_with(make_rule("sps"), DRAFT, m)
    assert torch.equal(ours(door=door), plain())
    assert door.trace.metrics().accepted_tokens > 0 and door.trace.check() == []


@pytest.mark.parametrize("family", ["smollm2", "qwen2", "gemma2", "gemma3 with images"])
def test_whatever_the_family(family):
    verifier, draft = tiny.model(family), tiny.near(family, noise=0.05)
    assert torch.equal(ours(model=verifier, draft=draft), plain(model=verifier))


DRAFTS = {
    "prompt lookup": lambda: None,
    "a pair": lambda: tiny.pair_from_models(VERIFIER, TOKENIZER, DRAFT),
    "a source": Lookup,
    "a function": lambda: lambda: ModelDrafter(HFModel(DRAFT), 300),
    "fewer columns": lambda: tiny.model(vocab_size=290),
    "more columns": lambda: tiny.model(vocab_size=310, seed=3),
}


@pytest.mark.parametrize("draft", DRAFTS)
def test_whatever_drafts(draft):
    assert torch.equal(ours(draft=DRAFTS[draft]()), plain())


OPTIONS = [
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 20, "eos_token_id": 62},
    {"bad_words_ids": [[62], [114, 240]]},
    {"sequence_bias": [[[7], 3.0], [[9, 30], 4.0]]},
    {"suppress_tokens": list(range(100, 300))},
    {"begin_suppress_tokens": [62, 114]},
    {"forced_eos_token_id": 2},
    {"exponential_decay_length_penalty": (5, 1.5)},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "renormalize_logits": True},
    {"prefix_allowed_tokens_fn": lambda batch, ids: [int(ids[-1] + 1) % 300, int(ids[-1] + 7) % 300]},
    {"max_length": 11, "max_new_tokens": None},
    {"max_new_tokens": 1},
    {"eos_token_id": 299},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_fault_8_settings_of_generate_mean_what_they_mean_there(options):
    expected = plain(**options)
    assert torch.equal(ours(**options), expected)
    assert torch.equal(ours(draft=None, **options), expected)
    assert not torch.equal(expected, plain())


def test_fault_9_a_list_of_eos_ids():
    stops = [299, later_token()]
    expected = plain(eos_token_id=stops)
    door = generate_with(make_rule("sps"), VERIFIER, 8)
    assert torch.equal(ours(door=door, eos_token_id=stops), expected)
    assert expected[0, -1] == stops[1] and expected.shape[1] < IDS.shape[1] + 24
    assert door.trace.stop_reason == "stop"
    assert [token.id for token in door.trace.tokens] == expected[0, IDS.shape[1] :].tolist()


class EndsBehind(StoppingCriteria):
    def __init__(self, token: int) -> None:
        self.token, self.lengths = token, []

    def __call__(self, input_ids, scores, **kwargs):
        self.lengths.append(input_ids.shape[1])
        return input_ids[:, -1] == self.token


def test_stopping_criteria_are_asked_behind_every_token_and_nothing_comes_behind_a_stop():
    theirs, mine = EndsBehind(later_token()), EndsBehind(later_token())
    expected = plain(stopping_criteria=[theirs])
    door = generate_with(make_rule("sps"), VERIFIER, 8)
    assert torch.equal(ours(door=door, stopping_criteria=[mine]), expected)
    assert mine.lengths == theirs.lengths and len(expected[0]) < IDS.shape[1] + 24
    assert door.trace.stop_reason == "stop" and len(door.trace.tokens) == len(mine.lengths)


def test_fault_10_stop_strings():
    new = plain(eos_token_id=299)[0, IDS.shape[1] :]
    text = TOKENIZER.decode(new, skip_special_tokens=True)
    end = text[6:9]
    criterion = StopStringCriteria(TOKENIZER, [end])
    expected = plain(eos_token_id=299, stopping_criteria=[criterion])
    assert expected.shape[1] < IDS.shape[1] + 24
    assert torch.equal(ours(draft=VERIFIER, m=8, eos_token_id=299, stopping_criteria=[criterion]), expected)
    door = generate_with(make_rule("sps"), VERIFIER, 8, tokenizer=TOKENIZER, stop=[end])
    assert torch.equal(ours(door=door, eos_token_id=299), expected)
    assert door.trace.text == text[: text.index(end) + len(end)]


def test_max_time_ends_the_text():
    assert ours(max_time=0.0).shape[1] == IDS.shape[1] + 1


def test_return_dict():
    made = ours(return_dict_in_generate=True)
    assert type(made).__name__ == "GenerateDecoderOnlyOutput" and torch.equal(made.sequences, plain())


class Listening(BaseStreamer):
    def __init__(self) -> None:
        self.heard, self.ended = [], 0

    def put(self, value):
        self.heard += value.flatten().tolist()

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("asked", [{}, {"max_new_tokens": 1}, {"repetition_penalty": 1.2}])
def test_a_streamer_gets_every_token_in_order(asked):
    streamer = Listening()
    assert ours(streamer=streamer, **asked)[0].tolist() == streamer.heard and streamer.ended == 1


def test_a_text_streamer_ends_even_where_the_call_is_refused():
    streamer = TextIteratorStreamer(TOKENIZER, skip_prompt=True, timeout=5, skip_special_tokens=True)
    made = ours(streamer=streamer)
    assert "".join(streamer) == TOKENIZER.decode(made[0, IDS.shape[1] :], skip_special_tokens=True)
    streamer = TextIteratorStreamer(TOKENIZER, skip_prompt=True, timeout=5)
    with pytest.raises(CactusError):
        ours(streamer=streamer, cache_implementation="static")
    assert "".join(streamer) == ""


def sampled(door, **options):
    return ours(door=door, do_sample=True, **options)


def test_seeds():
    def door(seed):
        return generate_with(make_rule("cactus"), DRAFT, seed=seed)

    one, other = door(3), door(None)
    assert torch.equal(sampled(one), sampled(one)) and torch.equal(sampled(one), sampled(door(3)))
    assert not torch.equal(sampled(other), sampled(other))
    drawing, again = (door(torch.Generator().manual_seed(5)) for _ in range(2))
    first, second = sampled(drawing), sampled(drawing)
    assert not torch.equal(first, second)
    assert torch.equal(sampled(again), first) and torch.equal(sampled(again), second)


SAMPLINGS = [
    {"temperature": 1.3, "top_k": 3},
    {"temperature": 0.7, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
    {"top_k": 4, "typical_p": 0.8},
    {"top_k": 3, "no_repeat_ngram_size": 1, "repetition_penalty": 1.4},
]


@pytest.mark.parametrize("options", SAMPLINGS, ids=lambda options: "-".join(options))
@pytest.mark.parametrize("rule", [make_rule("sps"), make_rule("cactus", delta=0.0)], ids=["sps", "delta 0"])
def test_fault_1_samples_have_exactly_the_law_of_generates_own_scores(options, rule, monkeypatch):
    """Two tokens: everything that can be drawn and judged is, against the scores that generate itself would sample."""
    options = {"do_sample": True, "eos_token_id": 299, **options}
    law = {}
    for first, chance in generates_law(IDS, options).items():
        following = torch.cat([IDS, torch.tensor([[first]])], 1)
        law |= {(first, then): chance * prob for then, prob in generates_law(following, options).items()}
    door, outcomes, found, going = generate_with(rule, DRAFT, 2), Outcomes(), {}, True
    monkeypatch.setattr("cactus.loop.pick", outcomes.draft)
    monkeypatch.setattr("cactus.verdict.pick", outcomes.follow)
    monkeypatch.setattr("cactus.verdict.uniforms", outcomes.uniforms)
    while going:
        outcomes.begin()
        tokens = tuple(ours(door=door, **{**options, "max_new_tokens": 2})[0, -2:].tolist())
        found[tokens] = found.get(tokens, 0.0) + outcomes.chance(door.trace.rounds)
        going = outcomes.next()
    assert len(law) > 3 and distance(found, law) < 2e-6


def generates_law(ids, options) -> dict[int, float]:
    made = VERIFIER.generate(
        ids, **{**options, "max_new_tokens": 1, "return_dict_in_generate": True, "output_scores": True}
    )
    probs = made.scores[0][0].softmax(-1)
    return {int(token): float(probs[token]) for token in probs.nonzero()[:, 0]}


def test_settings_that_sampling_params_know_are_in_the_trace():
    door = generate_with(make_rule("cactus"), DRAFT, seed=0)
    sampled(door, temperature=0.7, top_k=9, top_p=0.9, min_p=0.1, repetition_penalty=1.1)
    sampling = dict(door.trace.sampling)
    assert sampling == {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1}
    assert door.trace.method == "cactus" and Trace.from_json(door.trace.to_json()) == door.trace


def test_a_drafter_that_can_draft_nothing_allowed_does_not_break_the_run():
    even = torch.arange(0, 300, 2)

    def trimmed():
        return ModelDrafter(HFModel(tiny.shared_draft(VERIFIER, even)), 300, even)

    options = {"suppress_tokens": even.tolist()}
    assert torch.equal(ours(draft=trimmed, **options), plain(**options))


class Counting(LogitsProcessor):
    """Writes into what it is given, and notes the shortest context."""

    shortest = 1000

    def __call__(self, input_ids, scores):
        self.shortest = min(self.shortest, input_ids.shape[1])
        scores[:, 100:] = -torch.inf
        return scores


def test_processors_see_contexts_from_the_end_of_the_prompt_on_and_may_write_into_scores():
    processor, prompt = Counting(), torch.arange(5, 40)[None]
    assert torch.equal(ours(prompt, logits_processor=[processor]), plain(prompt, logits_processor=[Counting()]))
    assert processor.shortest == 35


def test_pipeline():
    made = pipeline("text-generation", model=VERIFIER, tokenizer=TOKENIZER)
    options = {"max_new_tokens": 12, "do_sample": False}
    door = generate_with(make_rule("sps"), DRAFT, tokenizer=TOKENIZER)
    chat = [{"role": "user", "content": "the cat"}]
    for prompt in ("the cat sat", ["the cat", "once upon"], chat):
        assert made(prompt, custom_generate=door, **options) == made(prompt, **options)
    answer = made(chat, custom_generate=door, **options)[0]["generated_text"][-1]["content"]
    assert answer.strip() == door.trace.text.strip()


def test_fault_16_model_settings_and_the_global_generator_stay_as_they_were():
    model = copy.deepcopy(VERIFIER).train()
    settings = model.generation_config.to_dict()
    torch.manual_seed(4)
    before = torch.get_rng_state()
    ours(model=model, do_sample=True, temperature=0.5)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training and model.generation_config.to_dict() == settings
    assert torch.equal(plain(model=model.eval()), plain())


REFUSED = {
    "num_beams=2": {"num_beams": 2},
    "num_return_sequences=2": {"num_return_sequences": 2, "do_sample": True},
    "assistant_model": {"assistant_model": DRAFT},
    "guidance_scale": {"guidance_scale": 1.5},
    "negative_prompt_ids": {"negative_prompt_ids": IDS},
    "assisted_generation": {"prompt_lookup_num_tokens": 3},
    "output_scores": {"return_dict_in_generate": True, "output_scores": True},
    "cache_implementation='static'": {"cache_implementation": "static"},
    "padding": {"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])},
    "position_ids": {"position_ids": torch.tensor([[3, 4, 5, 6, 7]])},
    "inputs_embeds": {"inputs_embeds": torch.zeros(1, 5, 32)},
    "a batch of 2": {"ids": IDS.repeat(2, 1)},
}


@pytest.mark.parametrize("named", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_it_cannot_do_is_refused_by_name(named):
    with pytest.raises(CactusError, match=named):
        ours(**REFUSED[named])


def test_a_cache_of_the_callers_is_refused():
    from transformers import DynamicCache

    with pytest.raises(CactusError, match="a cache"):
        ours(cache=DynamicCache(config=VERIFIER.config))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "cactus"}, "rule is 'cactus'"),
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0"),
        ({"stop": ["."]}, "tokenizer"),
        ({"stop": "."}, "stop is '.'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(CactusError, match=message):
        generate_with(**{"rule": make_rule("sps"), **arguments})


def test_bad_drafts_are_named():
    with pytest.raises(CactusError, match="PromptLookup"):
        ours(draft=PromptLookup(300, torch.device("cpu")))
    with pytest.raises(CactusError, match="another verifier"):
        ours(draft=tiny.pair("qwen3"))


def test_fault_27_an_error_leaves_a_trace_and_a_door_that_works():
    broken = copy.deepcopy(DRAFT)
    broken.lm_head.weight.data[7] = float("nan")
    door = generate_with(make_rule("sps"), broken)
    with pytest.raises(NonFiniteLogits):
        ours(door=door)
    assert door.trace.stop_reason == "error"
    broken.lm_head.weight.data[7] = 0.0
    assert torch.equal(ours(door=door), plain())


def test_importing_cactus_does_not_wait_for_it():
    code = "import sys, cactus; assert 'generate_with' in cactus.__all__; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
