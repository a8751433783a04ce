"""The theory lab and the steps through a run in a real browser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pages import DONE, open_tab, pale, run
from test_browser import load
from ui_fakes import make_trace

from cactus import theory
from cactus.acceptance import RULES, make_rule
from cactus.ui import lab, render

CELL = "#lab .lab-matrix tbody tr:nth-child({row}) > :nth-child({column})"
DELTA = '#lab .lab-rule:has(.lab-rule-name:text-is("Cactus")) input[type=number]'


def cell(page: Any, row: int, column: int) -> str:
    return page.inner_text(CELL.format(row=row, column=column))


def shows(page: Any, row: int, column: int, text: str) -> None:
    selector = CELL.format(row=row, column=column)
    page.wait_for_function("([at, text]) => document.querySelector(at)?.textContent === text", arg=[selector, text])


def test_what_is_entered_is_worked_out_at_once_without_a_model(visit, site):
    page = visit(tab="Theory lab")
    page.wait_for_selector("#lab .cells")
    preset = theory.PRESETS[0]
    assert page.locator("#lab .lab-matrix tbody tr").count() == 2 + len(RULES)
    page.fill(DELTA, "0.7")
    rule = make_rule("cactus", delta=0.7)
    step = theory.work_out(preset.draft_probs, preset.verifier_probs, 0, [rule]).rules[0]
    row = 3 + list(RULES).index("cactus")
    shows(page, row, 2, render.number(step.accept_probs[0]))
    page.click("#lab .lab-quantity button:has-text('output')")
    shows(page, row, 2, render.number(step.output_probs[0]))
    page.fill("#lab .lab-row:nth-child(2) input[aria-label='verifier probability of token 1']", "0.9")
    weights = [0.9, *preset.verifier_probs[1:]]
    step = theory.work_out(preset.draft_probs, weights, 0, [rule]).rules[0]
    shows(page, row, 2, render.number(step.output_probs[0]))
    page.wait_for_function("document.querySelector('#lab .lab-facts').innerText.includes('Σq = 1.560')")
    page.click("#lab .lab-norm")
    page.wait_for_function("!document.querySelector('#lab .lab-facts').innerText.includes('Σq')")
    page.wait_for_selector("#lab .lab-plot .scatterlayer .trace path.point")
    assert site.session.runs == 0 and not site.session.loaded


def test_presets_tokens_and_the_marked_token(visit):
    page = visit(tab="Theory lab")
    page.wait_for_selector("#lab .cells")
    page.select_option("#lab .lab-preset", "equal")
    shows(page, 1, 2, "0.500")
    page.click("#lab .lab-add")
    assert page.locator("#lab .lab-row").count() == 5
    page.click("#lab .lab-row:last-child .lab-drop")
    page.check("#lab .lab-row:nth-child(3) input[type=radio]")
    page.wait_for_function("document.querySelector('#lab .lab-verdicts thead').innerText.includes('accepts no')")
    assert page.input_value("#lab .lab-preset") == ""
    page.click("#lab .lab-row:nth-child(2) .lab-drop")
    assert page.is_disabled("#lab .lab-row:nth-child(2) .lab-drop")
    page.fill(DELTA, "99")
    page.wait_for_function("document.querySelector('#lab .lab-error').textContent.includes('between 0 and 10')")
    page.fill(DELTA, "1")
    page.wait_for_function("document.querySelector('#lab .lab-error').textContent === ''")


def test_the_lab_by_keys(visit):
    page = visit(tab="Theory lab")
    page.wait_for_selector("#lab .cells")
    before = cell(page, 1, 2)
    page.focus("#lab .of-draft >> nth=0")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        f"{json.dumps(before)} !== document.querySelector({json.dumps(CELL.format(row=1, column=2))}).textContent"
    )
    assert cell(page, 1, 2) != before
    page.focus("#lab .lab-quantity button >> nth=1")
    page.keyboard.press("Enter")
    page.wait_for_function(
        f"document.querySelector('#lab .lab-what').textContent === {json.dumps(lab.QUANTITIES['adjusted_probs'][1])}"
    )
    assert page.inner_text("#lab .lab-what") == lab.QUANTITIES["adjusted_probs"][1]


def test_steps_tell_each_verdict_and_send_its_token_to_the_lab(visit, tmp_path):
    page, trace = visit(), make_trace(count=6)
    load(page, trace, tmp_path)
    tokens = [(token, round_, place) for round_ in trace.rounds for place, token in enumerate(round_.tokens)]
    for token, round_, place in tokens[:7]:
        page.click("[data-step=token][data-way='1']")
        assert page.inner_text(".stream-step") == render.explanation(token, round_, place)
    page.click("[data-step=round][data-way='1']")
    third = trace.rounds[tokens[6][1].index + 1]
    assert page.inner_text(".stream-step") == render.explanation(third.tokens[0], third, 0)
    page.click("[data-step=round][data-way='-1']")
    page.click("[data-step=token][data-way='-1']")
    second = trace.rounds[third.index - 1]
    before = trace.rounds[second.index - 1]
    assert page.inner_text(".stream-step") == render.explanation(before.tokens[-1], before, len(before.tokens) - 1)
    page.click("[data-step=token][data-way='1']")
    page.click(".to-lab")
    page.wait_for_selector("#lab .cells")
    position = theory.position(second.tokens[0])
    page.wait_for_function("document.querySelector('#lab .lab-note').textContent.startsWith('From a run')")
    names = page.eval_on_selector_all("#lab .lab-row input[maxlength]", "all => all.map(node => node.value)")
    assert names == list(position.tokens)
    assert page.is_checked(f"#lab .lab-row:nth-child({position.drafted + 2}) input[type=radio]")
    open_tab(page, "Playground")
    assert page.inner_text(".stream-step") == render.explanation(second.tokens[0], second, 0)


def test_a_new_run_forgets_the_step(visit):
    page = visit()
    run(page)
    page.click("[data-step=token][data-way='1']")
    assert page.inner_text(".stream-step")
    page.click("#run")
    page.wait_for_function("document.querySelector('.stream-step').textContent === ''")
    page.wait_for_function(DONE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_lab_is_legible_and_fits(visit, scheme, width):
    page = visit(tab="Theory lab", color_scheme=scheme, width=width, height=844)
    page.wait_for_selector("#lab .cells")
    texts = (
        ".cells th, .cells td, .lab-note, .lab-what, .lab-facts dt, .dial-name, .lab-rule-name, .lab h2, .lab button, "
        "[role=tab]"
    )
    assert pale(page, texts) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
