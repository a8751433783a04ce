"""Turns of a conversation: what the turn before has read is not read again, and nothing else changes."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace
from itertools import chain, repeat

import pytest
import tiny
import torch

from cactus import SamplingParams, decode, make_rule
from cactus.drafters import FeatureDrafter
from cactus.errors import PromptError, RewindError
from cactus.models import HFModel, feature
from cactus.pairs import Pair
from cactus.prefix import Prefix, Prefixes

TOKEN_IDS = torch.arange(0, 300, 2)
ASKED = [{"role": "user", "content": "the cat sat on the mat"}]
AGAIN = {"role": "user", "content": "and the dog sat on the cat"}
SAMPLED = SamplingParams(temperature=1.0)


def feature_pair() -> Pair:
    made = tiny.pair()
    head = feature.build(made.model, TOKEN_IDS)
    size = made.codec.vocab_size
    return replace(
        made, drafter=lambda: FeatureDrafter(feature.HFFeatureHead(head, 512), size, TOKEN_IDS), name="tiny-feature"
    )


PAIRS = {
    "draft model": lambda: tiny.pair(),
    "prompt lookup": lambda: tiny.pair(draft="lookup"),
    "feature head": feature_pair,
    "sliding window": lambda: tiny.pair("gemma3"),
    "static cache": lambda: tiny.pair_from_models(tiny.model(), tiny.tokenizer(), tiny.near(), static=True),
}


def turn(pair, messages, reuse=None, m=4, tokens=12, **options):
    rule = make_rule("cactus", delta=0.5) if m else None
    run = decode(pair, messages, rule, m, SAMPLED, tokens, 7, reuse=reuse, **options)
    list(run)
    return run


def then(run, *more):
    """The conversation after this run, as token ids: how a text would be tokenized again is another matter."""
    tail = [7, 2, 9] if not more else list(more)
    return run._loop.committed + tail


def verdicts(run):
    return [
        [(token.id, token.status, token.text, token.uniform) for token in round_.tokens] for round_ in run.trace.rounds
    ]


def numbers(run):
    names = ("draft_prob", "verifier_prob", "boosted_prob", "accept_prob", "entropy", "kl", "output_kl")
    flat = [getattr(token, name) for round_ in run.trace.rounds for token in round_.tokens for name in names]
    return torch.tensor([-1.0 if value is None else value for value in flat])


def assert_same(kept, fresh):
    assert verdicts(kept) == verdicts(fresh)
    torch.testing.assert_close(numbers(kept), numbers(fresh), atol=2e-4, rtol=2e-4)
    own = {"cached_tokens", "rounds", "timings"}
    assert kept.trace.model_dump(exclude=own) == fresh.trace.model_dump(exclude=own)


class Counting:
    """How many tokens the verifiers of a pair are fed."""

    def __init__(self, pair, monkeypatch) -> None:
        self.fed = 0
        feed = HFModel.feed

        def counted(model, tokens, *args, **options):
            self.fed += len(tokens) if model.model is pair.model else 0
            return feed(model, tokens, *args, **options)

        monkeypatch.setattr(HFModel, "feed", counted)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_turn_that_goes_on_is_the_turn_read_from_the_start(kind):
    pair, chat = PAIRS[kind](), Prefix()
    first = turn(pair, ASKED, chat)
    prompt = then(first)
    for _ in range(2):
        kept, fresh = turn(pair, prompt, chat), turn(pair, prompt)
        assert kept.trace.cached_tokens == len(prompt) - 4
        assert fresh.trace.cached_tokens == 0
        assert_same(kept, fresh)
        prompt = then(kept)


def test_the_second_turn_feeds_the_new_tokens_alone(monkeypatch):
    pair, chat = tiny.pair(), Prefix()
    first = turn(pair, ASKED, chat)
    counting = Counting(pair, monkeypatch)
    prompt = then(first, 7, 2, 9, 5, 6)
    run = decode(pair, prompt, make_rule("sps"), 4, SAMPLED, 24, 0, reuse=chat)
    run.prefill()
    assert counting.fed == 5  # the newest token of the first turn and four of the five new ones
    assert run.trace.cached_tokens + counting.fed == run.trace.prompt_tokens - 1


def test_text_turns_go_through_the_chat_template():
    pair, chat = tiny.pair(), Prefix()
    first = turn(pair, ASKED, chat)
    said = [*ASKED, {"role": "assistant", "content": first.trace.text}, AGAIN]
    kept, fresh = turn(pair, said, chat), turn(pair, said)
    assert kept.trace.cached_tokens >= first.trace.prompt_tokens
    assert_same(kept, fresh)
    assert kept.trace.prompt == tuple(said)


@pytest.mark.parametrize("kind", PAIRS)
def test_another_history_goes_back_to_what_is_common(kind):
    """Edited anywhere: at the end of the answer, in the answer, in the prompt, in the first word."""
    pair, chat = PAIRS[kind](), Prefix()
    history = turn(pair, ASKED, chat)._loop.committed
    for place in (len(history) - 1, len(history) - 4, 9, 1):
        edited = [*history, 30, 31]
        edited[place] = (edited[place] + 1) % 300 or 1
        kept, fresh = turn(pair, edited, chat, tokens=6), turn(pair, edited, tokens=6)
        assert_same(kept, fresh)
        if kind == "sliding window" and place < len(history) - 1:
            assert kept.trace.cached_tokens == 0
        else:
            assert place - 1 <= kept.trace.cached_tokens <= place


def test_another_system_prompt_and_a_shorter_prompt_keep_what_they_can():
    pair, chat = tiny.pair(), Prefix()
    first = turn(pair, ASKED, chat)
    other = turn(pair, ASKED, chat, system="be brief")
    assert 0 < other.trace.cached_tokens < first.trace.prompt_tokens
    assert_same(other, turn(pair, ASKED, system="be brief"))
    same = turn(pair, other._loop.committed[:9], chat)
    assert same.trace.cached_tokens == 8
    assert_same(same, turn(pair, other._loop.committed[:9]))


@pytest.mark.parametrize("kind", PAIRS)
def test_methods_may_change_between_turns(kind):
    pair, chat = PAIRS[kind](), Prefix()
    prompt = then(turn(pair, ASKED, chat))
    for m in (0, 3):
        kept, fresh = turn(pair, prompt, chat, m=m, tokens=6), turn(pair, prompt, m=m, tokens=6)
        assert_same(kept, fresh)
        prompt = then(kept)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_run_that_was_stopped_leaves_what_it_had_read(kind, monkeypatch):
    monkeypatch.setattr("cactus.loop.PREFILL_CHUNK", 5)
    pair, chat = PAIRS[kind](), Prefix()
    asked = chain([False, False], repeat(True))
    run = decode(pair, ASKED, make_rule("sps"), 3, SAMPLED, 40, 3, should_stop=lambda: next(asked), reuse=chat)
    run.prefill()
    run.close()
    going_on = decode(pair, ASKED, make_rule("sps"), 3, SAMPLED, 40, 3, reuse=chat)
    next(going_on), next(going_on)
    going_on.close()
    assert going_on.trace.cached_tokens == 10
    prompt = then(going_on)
    kept, fresh = turn(pair, prompt, chat, tokens=6), turn(pair, prompt, tokens=6)
    assert kept.trace.cached_tokens == len(prompt) - 4
    assert_same(kept, fresh)


def test_an_error_in_a_step_leaves_nothing(monkeypatch):
    pair, chat = tiny.pair(), Prefix()
    run = decode(pair, ASKED, make_rule("sps"), 3, SAMPLED, 40, 3, reuse=chat)
    next(run)
    monkeypatch.setattr(run._loop, "_commit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(run)
    run.close()
    assert chat.take(pair) is None


def test_caches_go_with_their_pair_and_fit_no_other():
    chat, pair = Prefix(), tiny.pair()
    turn(pair, ASKED, chat)
    cache = weakref.ref(chat._held[0][1].verifier)
    assert turn(tiny.pair(), ASKED, chat).trace.cached_tokens == 0
    turn(pair, ASKED, chat)
    del pair
    gc.collect()
    assert cache() is None and not chat._held


def test_a_long_conversation_keeps_one_cache_and_many_keep_the_latest(monkeypatch):
    alive = weakref.WeakSet()
    create = Pair.new_verifier
    monkeypatch.setattr(Pair, "new_verifier", lambda pair: (made := create(pair), alive.add(made))[0])
    pair, chat, prompt = tiny.pair(), Prefix(), [5, 9, 30]
    for _ in range(50):
        run = turn(pair, prompt, chat, tokens=4)
        prompt = then(run, 7)
        del run
    gc.collect()
    assert len(alive) == 1
    store = Prefixes(3)
    for number in range(50):
        turn(pair, ASKED, store.of(f"visitor {number}"), tokens=2)
    gc.collect()
    assert len(store) == 3 and len(alive) == 1 + 3
    store.forget("visitor 49")
    gc.collect()
    assert len(store) == 2 and len(alive) == 1 + 2


def test_a_conversation_forgotten_during_its_run_keeps_nothing():
    pair, store = tiny.pair(), Prefixes()
    run = decode(pair, ASKED, make_rule("sps"), 3, SAMPLED, 9, 3, reuse=store.of("one"))
    next(run)
    place = run._reuse
    store.forget("one")
    list(run)
    assert place.take(pair) is None and store.of("one").take(pair) is None
    assert store.of("") is None


def test_two_runs_of_one_conversation_never_share_a_cache():
    pair, chat = tiny.pair(), Prefix()
    prompt = then(turn(pair, ASKED, chat))
    taken = [decode(pair, prompt, make_rule("sps"), 3, SAMPLED, 24, seed, reuse=chat) for seed in (1, 2)]
    assert [run.trace.cached_tokens > 0 for run in taken] == [True, False]
    threads = [threading.Thread(target=list, args=(run,)) for run in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, run in zip((1, 2), taken, strict=True):
        fresh = decode(pair, prompt, make_rule("sps"), 3, SAMPLED, 24, seed)
        list(fresh)
        assert_same(run, fresh)


def test_a_window_that_has_lost_its_past_says_so_and_forgets_nothing():
    model = HFModel(tiny.model("gemma3"))  # windows of 8
    model.feed(list(range(20, 50)))
    model.rewind(30)
    with pytest.raises(RewindError, match="sliding window"):
        model.rewind(28)
    assert model.length == 30
    model.feed([60, 61, 62])
    model.rewind(31)  # what was fed since is still there
    fresh = HFModel(tiny.model("gemma3"))
    expected = fresh.feed([*range(20, 50), 60, 70]).logits
    torch.testing.assert_close(model.feed([70]).logits, expected, atol=1e-4, rtol=1e-4)


def test_a_raw_prompt_is_not_put_into_the_template():
    pair = tiny.pair()
    run = turn(pair, "once upon a <|end|>", raw=True)
    expected = pair.codec.tokenizer("once upon a <|end|>")["input_ids"]
    assert run._loop.committed[: len(expected)] == expected and expected[-1] == 2
    assert (run.trace.raw, run.trace.prompt_tokens) == (True, len(expected))
    for prompt, options in ((ASKED, {}), ([5, 6], {}), ("x", {"system": "be brief"}), ("", {})):
        with pytest.raises(PromptError):
            turn(pair, prompt, raw=True, **options)
