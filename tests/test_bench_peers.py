"""transformers' own generation as a peer, on tiny models."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import tiny
import torch
from transformers import LlamaForCausalLM

from cactus.bench.contest import Answer, Contestant
from cactus.bench.peers import PEERS, Task, find_peer
from cactus.bench.peers.transformers import ASSISTED, LOOKUP, Clock
from cactus.decoding import decode
from cactus.drafters import ModelDrafter
from cactus.errors import CactusError, PromptError
from cactus.models import HFModel, shared
from cactus.models.quantized import can_quantize, quantized
from cactus.pairs import Pair, pair_from_models
from cactus.sampling import SamplingParams

MESSAGES = [{"role": "user", "content": "the cat sat"}]


def enter(pair: Pair, temperature: float = 0.7, tokens: int = 24) -> tuple[list[Contestant], list[str]]:
    entry = find_peer("transformers").enter(Task(pair, SamplingParams(temperature=temperature), tokens))
    return list(entry.contestants), list(entry.notes)


def by_method(contestants: list[Contestant], method: str) -> list[Contestant]:
    return [contestant for contestant in contestants if contestant.label.method == method]


def trimmed_pair() -> Pair:
    """A draft model that borrows the verifier's embeddings and 40 rows of its head."""
    verifier = tiny.model("llama")
    assert isinstance(verifier, LlamaForCausalLM)
    token_ids = torch.arange(3, 43)
    draft = shared.build(verifier, token_ids)
    pair = tiny.pair()
    return replace(pair, drafter=lambda: ModelDrafter(HFModel(draft), pair.codec.vocab_size, token_ids))


def test_all_settings_take_part_where_the_drafter_is_a_model() -> None:
    contestants, notes = enter(tiny.pair())
    keys = [contestant.label.key for contestant in contestants]
    assert keys[0] == "transformers plain" and contestants[0].label.num_draft_tokens == 0
    assert len(by_method(contestants, "assisted")) == len(ASSISTED)
    assert len(by_method(contestants, "prompt lookup")) == len(LOOKUP)
    assert len(keys) == len(set(keys)) and "prefill is left out" in notes[0]


def test_a_drafter_that_is_no_model_is_left_out_and_said_to_be() -> None:
    contestants, notes = enter(tiny.pair(draft="lookup"))
    assert not by_method(contestants, "assisted") and by_method(contestants, "prompt lookup")
    assert "PromptLookup is no causal language model" in notes[1]


def test_a_trimmed_head_is_replaced_by_the_verifiers_and_said_to_be() -> None:
    pair = trimmed_pair()
    contestants, notes = enter(pair)
    assert "draft over the whole vocabulary" in notes[1]
    contestant = by_method(contestants, "assisted")[0]
    assert len(contestant.answer(MESSAGES, 1).tokens) == 24
    drafter = pair.new_drafter()
    assert drafter.model.model.lm_head.weight.shape[0] == 40  # the pair's own is as it was
    widened = contestant.assistant
    assert widened.lm_head is pair.model.lm_head and widened.model is drafter.model.model.model


def test_a_drafter_in_eight_bits_takes_part_and_is_said_to_be() -> None:
    verifier = copy.deepcopy(tiny.model("llama")).bfloat16()
    if not can_quantize(verifier):
        pytest.skip("no eight-bit kernel on this machine")
    draft, token_ids = quantized(shared.build(verifier, torch.arange(3, 43))), torch.arange(3, 43)
    pair = pair_from_models(verifier, tiny.tokenizer())
    pair = replace(
        pair, drafter=lambda: ModelDrafter(HFModel(draft), pair.codec.vocab_size, token_ids), draft_weights="int8"
    )
    contestants, notes = enter(pair)
    assert "weights held as int8" in notes[2]
    assert len(by_method(contestants, "assisted")[0].answer(MESSAGES, 1).tokens) == 24


@pytest.mark.parametrize("make", [tiny.pair, trimmed_pair])
def test_greedy_texts_are_the_verifiers_own(make) -> None:
    pair = make()
    run = decode(pair, MESSAGES, sampling=SamplingParams(temperature=0.0), max_new_tokens=24, num_draft_tokens=0)
    list(run)
    expected = tuple(token.id for token in run.trace.tokens)
    for contestant in enter(pair, temperature=0.0)[0]:
        answer = contestant.answer(MESSAGES, 0)
        assert answer.tokens == expected, contestant.label.key
        assert answer.text == run.trace.text and answer.prompt_tokens == run.trace.prompt_tokens


def test_a_seed_repeats_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    for contestant in enter(tiny.pair())[0]:
        answers = [contestant.answer(MESSAGES, seed).tokens for seed in (3, 3, 4)]
        assert answers[0] == answers[1] != answers[2], contestant.label.key
    assert torch.equal(torch.random.get_rng_state(), before)


def test_settings_of_one_run_do_not_leak_into_the_next() -> None:
    contestants = by_method(enter(tiny.pair())[0], "assisted")
    first = [contestant.answer(MESSAGES, 5).rounds for contestant in contestants]
    assert [contestant.answer(MESSAGES, 5).rounds for contestant in reversed(contestants)] == first[::-1]
    assert first[1] < first[0]  # five tokens without a confidence threshold draft more than it lets through


def test_the_pairs_own_models_keep_their_settings() -> None:
    pair = tiny.pair(draft="same")
    before = pair.model.generation_config.to_dict()
    for contestant in by_method(enter(pair)[0], "assisted"):
        contestant.answer(MESSAGES, 5)
    assert pair.model.generation_config.to_dict() == before


def test_timing_begins_with_the_first_delivery() -> None:
    for contestant in enter(tiny.pair())[0]:
        answer: Answer = contestant.answer(MESSAGES, 3)
        assert 0 < answer.timed_tokens < len(answer.tokens) == 24
        assert answer.timed_seconds == answer.wall_seconds > 0 and answer.prefill_seconds > 0
        if contestant.label.method == "plain":
            assert answer.timed_tokens == answer.rounds == 23


def test_one_token_gives_no_rate() -> None:
    answer = enter(tiny.pair())[0][0].answer(MESSAGES, 3, max_new_tokens=1)
    assert (len(answer.tokens), answer.timed_tokens, answer.timed_seconds) == (1, 0, 0.0)


def test_the_clock_leaves_the_prompt_out() -> None:
    clock = Clock()
    clock.put(torch.zeros(1, 9))
    clock.put(torch.zeros(1, 3))
    clock.put(torch.zeros(1))
    assert [count for _, count in clock.deliveries] == [3, 1]


def test_prompts_beyond_the_context_are_refused_like_ours() -> None:
    contestant = enter(tiny.pair())[0][0]
    with pytest.raises(PromptError, match="more than the context holds"):
        contestant.answer([{"role": "user", "content": "word " * 600}], 0)


def test_what_the_library_raises_is_a_named_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ValueError("the cache cannot be cropped")

    contestant = enter(tiny.pair())[0][0]
    monkeypatch.setattr(type(tiny.model()), "generate", fail)
    with pytest.raises(CactusError, match="transformers: the cache cannot be cropped"):
        contestant.answer(MESSAGES, 0)


def test_an_unknown_peer_is_named() -> None:
    assert list(PEERS) == ["transformers"]
    with pytest.raises(CactusError, match="peer is 'llama'; transformers are allowed"):
        find_peer("llama")


def test_the_report_compares_with_the_peer_at_its_best(tmp_path, monkeypatch) -> None:
    from cactus import cli, session
    from cactus.bench import command, images
    from cactus.errors import UnavailableError

    def make(device: str, dtype: str, limits: object, static: bool) -> session.Session:
        return session.Session(device, dtype, limits, load_pair=lambda spec, progress: tiny.pair())

    def no_browser() -> str:
        raise UnavailableError("no browser")

    monkeypatch.setattr(command, "Session", make)
    monkeypatch.setattr(images, "find_browser", no_browser)
    (tmp_path / "p.jsonl").write_text('{"id": "a", "kind": "qa", "turns": ["the cat sat"]}\n')
    flags = f"--prompts {tmp_path}/p.jsonl --out {tmp_path}/out --methods ar,sps --draft-lengths 2 --repeat 1"
    assert cli.main(["bench", *flags.split(), "--max-new-tokens", "8", "--peer", "transformers"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    best = {row["label"]["method"] for row in report["rows"] if row["best"] and row["label"]["family"] != "cactus"}
    assert best == {"plain", "prompt lookup", "assisted"}
    assert len(report["versus"]) == 6
    assert "## Against other libraries" in (tmp_path / "out" / "report.md").read_text()
