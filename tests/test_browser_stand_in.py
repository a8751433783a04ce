"""A page without a network, in a real browser: another pair stands in, the wish can be chosen again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pages import DONE, Site, pale, run, visits
from ui_fakes import NO_NETWORK, Offline

from cactus.request import RunRequest
from cactus.session import STAND_IN_PAIR

PROMPT = "Tell a story about rain."


@pytest.fixture(scope="module")
def site() -> Iterator[Any]:
    opened = Site(Offline(count=2))
    yield opened
    opened.demo.close()


@pytest.fixture
def visit(browser: Any, site: Any) -> Iterator[Callable[..., Any]]:
    yield from visits(browser, site)


def chosen(page: Any, label: str) -> None:
    page.wait_for_function("label => document.querySelector('#pair input').value === label", arg=label)


def test_the_pair_that_stands_in_is_seen_and_the_wish_stays(visit, site):
    page = visit()
    chosen(page, "SmolLM2 135M")
    assert page.locator("#examples", has_text="Haiku").count() == 1
    run(page, PROMPT)
    chosen(page, "Pocket")
    assert "cannot be had here, so Pocket stands in" in page.inner_text("#tokens .stream-end")
    page.wait_for_function("text => document.querySelector('#pair-note').innerText.includes(text)", arg=NO_NETWORK)
    assert "To try again, choose it and press Run" in page.inner_text("#pair-note")
    assert pale(page, "#pair-note .note") == []
    assert page.input_value("#prompt textarea") == PROMPT
    assert site.session.requests[-1].pair == STAND_IN_PAIR
    page.wait_for_selector("#examples :text-is('Honey')")
    page.click("#examples :text-is('Honey')")
    page.wait_for_function("document.querySelector('#prompt textarea').value.includes('bees make honey')")

    site.session.reachable = True
    page.click("#pair input")
    page.click("[role=option]:has-text('SmolLM2 135M'):not(:has-text('lookup'))")
    chosen(page, "SmolLM2 135M")
    page.click("#run")
    page.wait_for_function("!document.querySelector('#tokens .stream-end').innerText.includes('stands in')")
    page.wait_for_function(DONE)
    assert site.session.requests[-1].pair == RunRequest.pair
    page.wait_for_selector("#examples :text-is('Haiku')")
