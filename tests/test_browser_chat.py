"""Conversations in a real browser: two turns of a real pair, earlier turns as plain text, thoughts folded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import WAIT, app_process
from pages import CONTRAST, DONE, run, watch
from test_browser import HOSTILE, load
from ui_fakes import make_trace, token

from cactus.trace import Round, Trace

BOTTOM = "id => document.getElementById(id).getBoundingClientRect().bottom"


def reply(page: Any, text: str) -> None:
    page.fill("#prompt textarea", text)
    page.click("#reply")
    page.wait_for_function(
        f"text => [...document.querySelectorAll('#tokens .turn p')].some(p => p.textContent === text) && {DONE}",
        arg=text,
    )


def turns(page: Any) -> list[str]:
    return page.eval_on_selector_all("#tokens .turn p", "all => all.map(node => node.textContent)")


def test_two_turns_of_a_real_pair_and_the_second_reads_its_own_words_alone(browser):
    faults: list[str] = []
    with app_process() as address:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(2 * WAIT)
        watch(page, address, faults)
        page.goto(address + "/?pair=pocket&max_new_tokens=16&seed=1")
        page.wait_for_function("document.querySelector('#max-new-tokens input[type=number]')?.value === '16'")
        assert not page.is_visible("#reply")
        run(page, "Tell a story about a frog.")
        first = page.evaluate(
            "[...document.querySelectorAll('#tokens .tok')]"
            ".filter(n => !['rejected', 'discarded'].includes(n.dataset.status)).map(n => n.textContent).join('')"
        )
        reply(page, "And a bird?")
        assert turns(page) == ["Tell a story about a frog.", first, "And a bird?"]
        assert "kept from the turn before" in page.inner_text("#tokens .stream-facts")
        assert page.input_value("#prompt textarea") == ""
        for hook in ("run", "seed", "tokens", "plot-divergence"):
            assert page.evaluate(BOTTOM, hook) <= 800, hook
        with page.expect_download() as saved:
            page.click("#save-trace")
        trace = Trace.from_json(Path(saved.value.path()).read_text(encoding="utf-8"))
        assert 0 < trace.prompt_tokens - trace.cached_tokens < 20 < trace.cached_tokens
        page.click("#clear")
        page.wait_for_selector("#tokens .stream-empty")
        assert turns(page) == [] and not page.is_visible("#reply")
        page.close()
    assert faults == []


def test_turns_are_plain_text_and_long_ones_closed(visit, tmp_path):
    page = visit()
    messages = tuple({"role": "user", "content": text} for text in [*HOSTILE, "long " * 200])
    load(page, make_trace(count=2, prompt=messages), tmp_path)
    assert turns(page) == [message["content"] for message in messages]
    assert page.locator("#tokens .turn img, #tokens .turn script, #tokens .turn a").count() == 0
    assert page.evaluate("window.hacked") is None
    opened = page.eval_on_selector_all("#tokens .turn", "all => all.map(node => node.open)")
    assert opened == [True] * len(HOSTILE) + [False]
    page.eval_on_selector(".stream-body", "node => { node.scrollTop = node.scrollHeight; }")
    measured = page.evaluate(CONTRAST, "#tokens .turn p, #tokens .turn summary, #reply")
    assert [entry for entry in measured if entry[1] < 4.5] == []


def thinking(*texts: str) -> Trace:
    rounds = [
        Round(
            index=index, num_draft_tokens=0, accepted_length=0, draft_seconds=0.0, verify_seconds=0.001,
            judge_seconds=0.0, tokens=(token(text, "sampled", index),),
        )
        for index, text in enumerate(texts)
    ]  # fmt: skip
    return make_trace(method="ar", drafted=0, rounds=tuple(rounds))


def test_a_thought_is_folded_and_its_tokens_are_all_there(visit, tmp_path):
    page, texts = visit(), ("<think>", "\n", "<b>so</b>", " it", "</think>", "Yes", ".")
    load(page, thinking(*texts), tmp_path)
    fold = "#tokens details.thought"
    assert page.inner_text(f"{fold} summary") == "thought for 5 tokens"
    assert not page.is_visible(f"{fold} .tok >> nth=2") and page.is_visible("#tokens .tok >> nth=5")
    page.click("#tokens [data-step=token][data-way='1']")  # the first that is to be seen
    assert page.eval_on_selector("#tokens .tok.here", "node => node.textContent") == "Yes"
    page.click(f"{fold} summary")
    page.hover(f"{fold} .tok >> nth=2")
    assert json.loads(page.inner_text(".token-card .card-token")) == "<b>so</b>"
    page.keyboard.press("Escape")
    page.click("#tokens .copy-text")
    page.wait_for_function("document.querySelector('#tokens .copy-text').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == "".join(texts)


@pytest.mark.parametrize(
    ("texts", "folded", "opened"),
    [
        (("<think>", "hm", " hm"), ["<think>", "hm", " hm"], [True]),  # not at its end yet
        (("hm", " hm", "</think>", "Yes"), ["hm", " hm", "</think>"], [False]),  # begun by the chat template
        (("Use ", "<think>", "x", "</think>"), [], []),  # prose
    ],
)
def test_thoughts_without_an_end_or_a_beginning(visit, tmp_path, texts, folded, opened):
    page = visit()
    load(page, thinking(*texts), tmp_path)
    assert page.eval_on_selector_all("#tokens .thought .tok", "all => all.map(node => node.textContent)") == folded
    assert page.eval_on_selector_all("#tokens .thought", "all => all.map(node => node.open)") == opened
    assert page.eval_on_selector_all("#tokens .tok", "all => all.map(node => node.textContent)") == list(texts)
