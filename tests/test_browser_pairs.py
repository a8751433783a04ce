"""In a browser: a pair that cannot be used here says why and starts nothing; choosing one sets what it recommends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser import chromium
from pages import Site, pale, run, visits
from test_ui_pair_list import WHY, Mixed


@pytest.fixture(scope="module")
def site() -> Iterator[Any]:
    chromium()
    opened = Site(Mixed(pause=0.01))
    yield opened
    opened.demo.close()


@pytest.fixture
def visit(browser, site):
    yield from visits(browser, site)


def choose(page, name: str) -> None:
    page.click("#pair input")
    page.get_by_role("option", name=name, exact=True).click()


def test_an_unusable_pair_is_refused_where_it_is_chosen_and_nothing_is_lost(visit, site):
    page = visit()
    run(page)
    text, runs = page.inner_text("#tokens .stream-text"), site.session.runs
    choose(page, "⊘ Big (too large here)")
    page.wait_for_selector(f"#pair-note .bad:has-text('{WHY[1:]}')")
    page.wait_for_function("document.querySelector('#temperature input[type=number]').value === '0.6'")
    page.click("#run")
    page.wait_for_selector("#pair .validation-error:has-text('Too large here, see below')")
    assert page.inner_text("#tokens .stream-text") == text and site.session.runs == runs
    assert pale(page, "#pair-note .note-line1, #pair .validation-error") == []
    choose(page, "SmolLM2 135M")
    page.wait_for_function("document.querySelector('#temperature input[type=number]').value === '0.7'")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_all_pairs_are_listed_with_what_they_need(visit, width, scheme):
    page = visit(f"?__theme={scheme}", width=width, color_scheme=scheme)
    page.click("#all-pairs > button")
    page.wait_for_selector("#all-pairs tbody tr:nth-child(4)")
    assert WHY[1:] in page.inner_text("#all-pairs tbody tr:nth-child(3)")
    assert pale(page, "#all-pairs tbody :is(th, td):not(:empty)") == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
