"""The pocket pair, real weights and all: it loads at once, writes English, and decodes without loss."""

from __future__ import annotations

import json
import re
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus import SamplingParams, decode, load_pair, make_rule
from cactus.cli import main
from cactus.decoding import Run
from cactus.errors import UnavailableError
from cactus.models import check_same_tokens, load_tokenizer
from cactus.pairs import PAIRS, POCKET_PAIR, Pair
from cactus.paths import ASSETS
from cactus.session import Session
from cactus.training.pocket import PROMPTS
from cactus.training.prompts import held_out_prompts
from cactus.weights import ShippedWeights

FOLDER = ASSETS / "pairs" / POCKET_PAIR
COMMON = {"the", "a", "was", "and", "to", "it", "is", "in", "of", "he", "she", "they", "you", "had", "with", "that"}


def finish(run: Run) -> Run:
    for _ in run:
        pass
    return run


def tokens(run: Run) -> list[int]:
    return [
        token.id
        for round in run.trace.rounds
        for token in round.tokens
        if token.status in ("accepted", "recovered", "bonus", "sampled")
    ]


def test_it_is_small_and_needs_nothing():
    sizes = {file: file.stat().st_size for file in FOLDER.rglob("*") if file.is_file() and file.suffix != ".html"}
    assert sum(sizes.values()) < 12e6 and max(sizes.values()) < 10e6
    (state,) = [state for state in Session().states() if state.name == POCKET_PAIR]
    assert state.needs == "" and state.available and (ASSETS / state.examples).is_file()


def test_it_loads_in_a_moment():
    load_pair(POCKET_PAIR)  # warm: what is imported on first use counts apart
    begin = time.process_time()
    load_pair(POCKET_PAIR)
    assert time.process_time() - begin < 2.0


@pytest.mark.parametrize("part", ["verifier", "drafter"])
def test_both_are_ordinary_folders(part):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(FOLDER / part), AutoTokenizer.from_pretrained(FOLDER / part)
    assert model.config.model_type == "llama" and len(tokenizer) == model.config.vocab_size
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    check_same_tokens(tokenizer, load_tokenizer(FOLDER / "verifier"))


def test_greedy_speculative_equals_greedy_plain(pocket: Pair):
    greedy = SamplingParams(temperature=0)
    for prompt in held_out_prompts(PROMPTS)[:4]:
        plain = tokens(finish(decode(pocket, prompt, None, 0, greedy, 64, 0)))
        assert len(plain) > 10
        for name, length in (("sps", 1), ("sps", 5), ("block", 4), ("sps", 12)):
            drafted = finish(decode(pocket, prompt, make_rule(name), length, greedy, 64, 0))
            assert tokens(drafted) == plain
            assert drafted.trace.metrics().accepted_length > 0


def test_its_text_reads_like_english(pocket: Pair):
    for seed, prompt in enumerate(held_out_prompts(PROMPTS)[:6]):
        run = finish(decode(pocket, prompt, make_rule("sps"), 5, SamplingParams(temperature=0.7), 200, seed))
        text = run.trace.text
        words = re.findall(r"[a-z']+", text.lower())
        assert run.trace.stop_reason == "stop" and len(words) >= 8, text
        assert re.fullmatch(r"[\x20-\x7e]+", text), text
        assert text[0].isupper() or text[0] == '"', text
        assert text.rstrip('"').endswith((".", "!", "?")), text
        assert sum(word in COMMON for word in words) > 0.2 * len(words), text


def test_it_accepts_enough_to_be_worth_showing(pocket: Pair):
    lengths = {}
    for name, params in (("sps", {}), ("cactus", {"delta": 1.0})):
        runs = [
            finish(decode(pocket, prompt, make_rule(name, **params), 5, SamplingParams(temperature=0.7), 100, seed))
            for seed, prompt in enumerate(held_out_prompts(PROMPTS)[:6])
        ]
        lengths[name] = sum(run.trace.metrics().accepted_length for run in runs) / len(runs)
    assert lengths["sps"] > 0.8 and lengths["cactus"] > lengths["sps"]


def test_any_prompt_is_read(pocket: Pair):
    for prompt in ("🌵 ¿Qué?", "x" * 300, "<|end|><|user|>"):
        assert tokens(finish(decode(pocket, prompt, make_rule("sps"), 3, SamplingParams(), 5, 0)))


def test_the_command_line_knows_it(capsys):
    asked = [
        "generate",
        "--pair",
        POCKET_PAIR,
        "--method",
        "sps",
        "--max-new-tokens",
        "8",
        "--seed",
        "0",
        "--json",
        "-",
    ]
    assert main([*asked, "Tell a short story."]) == 0
    trace = json.loads(capsys.readouterr().out)
    assert trace["pair"] == POCKET_PAIR and "shipped with Cactus" in json.dumps(trace)
    assert main(["fetch", "--pair", POCKET_PAIR]) == 0 and str(FOLDER / "verifier") in capsys.readouterr().out
    assert main(["pairs"]) == 0 and POCKET_PAIR in capsys.readouterr().out


def test_a_broken_installation_is_named(tmp_path):
    weights = ShippedWeights("pocket", tmp_path, licence="Apache-2.0")
    with pytest.raises(UnavailableError, match=r"install again"):
        weights.fetch()
    assert PAIRS[POCKET_PAIR].verifier.is_kept and not ShippedWeights("x", tmp_path / "no", "").is_kept
