"""Any value of any type for any argument of the library, the page or the API: taken, or a ValueError in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import gradio as gr
import pytest
import tiny
from hostile import TEXTS, THING
from hypothesis import given, settings
from hypothesis import strategies as st
from ui_fakes import FakeSession

import cactus
from cactus import SamplingParams, decode, load_pair, make_rule
from cactus.bench.methods import parse_draft_lengths, parse_method, parse_methods
from cactus.compare import MOST, lane_requests, parse_lane
from cactus.limits import MAX_NEW_TOKENS
from cactus.request import METHODS, VERIFIER_ONLY, RunRequest
from cactus.settings import MAX_DRAFT_TOKENS, MAX_SEED, parse_draft_length
from cactus.ui import settings as page
from cactus.ui.api import Endpoints

QUICK = settings(max_examples=100, deadline=None, derandomize=True)
SAMPLING = [field.name for field in fields(SamplingParams)]
REQUEST = [field.name for field in fields(RunRequest)]
PAIRS = {"pocket": "", "smollm2-135m": ""}  # with what hinders them
DECODE = {"num_draft_tokens", "sampling", "max_new_tokens", "seed", "system", "stop", "baseline_steps", "max_seconds"}


def said(action: Callable[[], Any], *kinds: type[Exception]) -> Any:
    """What it gives, or None where it refuses in words: some, on one line, and not the whole value."""
    try:
        return action()
    except (ValueError, *kinds) as error:
        assert 8 < len(str(error)) < 600 and "\n" not in str(error)
        return None


def some(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), st.one_of(THING, st.sampled_from(TEXTS)), min_size=1, max_size=2)


@QUICK
@given(some(SAMPLING))
def test_sampling(given_):
    made = said(lambda: SamplingParams(**given_))
    assert made is None or SamplingParams.from_dict(made.to_dict()) == made


@QUICK
@given(st.one_of(THING, st.dictionaries(st.text(max_size=4), THING, max_size=2)))
def test_sampling_from_anything(values):
    made = said(lambda: SamplingParams.from_dict(values))
    assert made is None or SamplingParams(**made.to_dict()) == made


@QUICK
@given(some(REQUEST))
def test_requests(given_):
    made = said(lambda: RunRequest(**({"prompt": "hello", "pair": "pocket"} | given_)))
    if made is not None:
        assert replace(made) == made and made.pair in cactus.PAIRS and made.method in METHODS
        assert (made.rule is None) == (made.method == VERIFIER_ONLY) and 1 <= made.max_new_tokens <= MAX_NEW_TOKENS


@QUICK
@given(some(sorted(DECODE)), st.booleans())
def test_arguments_of_decode(given_, with_rule):
    pair = tiny.pair()
    made = said(lambda: decode(pair, [5, 9], make_rule("sps") if with_rule else None, **given_))
    if made is not None:
        trace = made.trace
        assert trace.draft_limit in range(with_rule, MAX_DRAFT_TOKENS + 1) and trace.max_new_tokens >= 1
        assert 0 <= trace.seed <= MAX_SEED and trace.prompt == (5, 9) and trace.check() == []


@settings(max_examples=30, deadline=None, derandomize=True)
@given(some(["name", "draft", "verifier", "device", "dtype"]))
def test_arguments_of_load_pair(given_):
    """Of models on this machine alone: no test asks a hub."""
    given_ = {
        name: value for name, value in given_.items() if not isinstance(value, str) or name in ("device", "dtype")
    }
    made = said(lambda: load_pair(**({"name": "pocket"} | given_)))
    assert made is None or (made.name, made.device.type) == ("pocket", "cpu")


WORDS = st.sampled_from(
    ["cactus", "sps", "ar", ":", "=", ",", "delta", "m", "auto", "1", "-1", "1e999", "nan", "²", "٣", " ", "\n"]
)
LINES = st.one_of(st.lists(WORDS, max_size=8).map("".join), st.text(max_size=12), st.sampled_from(TEXTS))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(LINES)
def test_what_people_write(line):
    for parse in (parse_lane, parse_method, parse_methods, parse_draft_length, parse_draft_lengths):
        made = said(lambda parse=parse: parse(line))
        if parse is parse_method and made is not None:
            assert parse(str(made)) == made
        if parse in (parse_methods, parse_draft_lengths) and made is not None:
            assert made and all(made.count(one) == 1 for one in made)


@QUICK
@given(st.one_of(THING, st.lists(st.one_of(LINES, THING), max_size=4)))
def test_lanes(lanes):
    made = said(lambda: lane_requests(RunRequest(prompt="x", pair="pocket"), lanes))
    if made is not None:
        assert 2 <= len(made) <= 1 + MOST and made[0].method == VERIFIER_ONLY
        assert len({one.seed for one in made}) == 1 and all(made.count(one) == 1 for one in made)


GENERATE = ["prompt", "pair", "method", "params", "draft_length", "temperature", "top_p", "top_k", "max_new_tokens",
            "seed", "system", "raw"]  # fmt: skip


@QUICK
@given(some(GENERATE))
def test_the_endpoint_generate(given_):
    endpoints = Endpoints(FakeSession(count=1))
    said(lambda: list(endpoints.generate(**({"prompt": "hello"} | given_))), gr.Error)
    assert endpoints.session.runs == endpoints.session.released


@QUICK
@given(some([name for name in GENERATE if name not in ("method", "params")] + ["lanes"]))
def test_the_endpoint_compare(given_):
    endpoints = Endpoints(FakeSession(count=1))
    said(lambda: list(endpoints.compare(**({"prompt": "hello"} | given_))), gr.Error)
    assert endpoints.session.runs == endpoints.session.released


@QUICK
@given(some(page.control_keys()))
def test_the_controls_of_the_page(given_):
    values = page.defaults() | {"prompt": "hello"} | given_
    named = page.problems(values, PAIRS)
    if said(lambda: page.to_request(values, PAIRS)) is None:
        assert named
    assert all(0 < len(words) < 400 for words in named.values())


@QUICK
@given(st.dictionaries(st.one_of(st.sampled_from(page.control_keys()), st.text(max_size=6)), LINES, max_size=3))
def test_links(query):
    changed, ignored = page.from_query(query, PAIRS)
    said(lambda: page.to_request(page.defaults() | {"prompt": "x"} | changed, PAIRS))
    assert len(changed) + len(ignored) <= len(query) + 1


@pytest.mark.parametrize(
    "thing", [None, 5, 5.0, b"x", {"a": 1}, [None], [{"role": "user"}], [1.5], [True], [["x"]], object()]
)
def test_prompts_of_another_type(thing):
    with pytest.raises(ValueError, match="prompt|message|token"):
        decode(tiny.pair(), thing)
    with pytest.raises(ValueError, match="prompt|message|token"):
        list(decode(tiny.pair(), RunRequest(prompt=thing, pair="pocket").prompt))
