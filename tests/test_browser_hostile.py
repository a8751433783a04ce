"""Hostile text in every tab of a real browser: prompt, tokens, names of pairs, lanes and recorded runs stay text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from browser import chromium
from pages import Site, open_tab, run, visits
from test_ui_learn import KEYS, quick_trace
from ui_fakes import FakeSession

from cactus import recorded
from cactus.recorded import RecordedRun

HOSTILE = (
    "<img src=x onerror=\"window.hacked='img'\"></script><script>window.hacked='script'</script>"
    "${(window.hacked='template')}{{window.hacked='braces'}}<svg onload=\"window.hacked='svg'\">"
)
SET_BY_TEXT = "document.querySelectorAll('img[src=\"x\"], svg[onload], script:not([src])[data-hostile]').length"


class HostileSession(FakeSession):
    """Every text that it gives is hostile."""

    def states(self) -> list[Any]:
        words = {"label": HOSTILE, "description": HOSTILE, "size": HOSTILE, "device": HOSTILE, "needs": HOSTILE}
        return [replace(state, **words) for state in super().states()]

    def start(self, request: Any, **options: Any) -> Any:
        started = super().start(request, **options)
        rounds = [
            round_.model_copy(update={"tokens": tuple(map(self._spoilt, round_.tokens))})
            for round_ in started._whole.rounds
        ]
        words = {"pair": HOSTILE, "device": HOSTILE, "dtype": HOSTILE, "prompt": HOSTILE, "rounds": tuple(rounds)}
        started._whole = started._whole.model_copy(update=words | {"versions": {HOSTILE: HOSTILE}})
        return started

    @staticmethod
    def _spoilt(token: Any) -> Any:
        tops = {
            name: tuple(top.model_copy(update={"text": HOSTILE}) for top in getattr(token, name))
            for name in ("top_draft", "top_verifier")
        }
        return token.model_copy(update={"text": HOSTILE} | tops)


@pytest.fixture(scope="module")
def hostile_site() -> Any:
    chromium()
    opened = Site(HostileSession(pause=0.01, count=3))
    yield opened
    opened.demo.close()


def inert(page: Any) -> None:
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    assert page.evaluate(SET_BY_TEXT) == 0


def test_fault_29_hostile_text_is_inert_in_every_tab(browser, hostile_site, tmp_path, monkeypatch):
    runs = [
        (RecordedRun(f"1-{i}.json.gz", HOSTILE, HOSTILE, key, key, 4, 3, 20), quick_trace(key))
        for i, key in enumerate(KEYS)
    ]
    recorded.write(tmp_path, runs, "made in a test")
    monkeypatch.setattr(recorded, "RUNS", tmp_path)
    for go in visits(browser, hostile_site):
        page = go()
        inert(page)
        run(page, HOSTILE)
        assert HOSTILE in page.inner_text("#tokens .stream-text")
        page.hover("#tokens .tok >> nth=0")
        inert(page)
        open_tab(page, "What if")
        page.wait_for_function("document.querySelector('#whatif-told')?.innerText.includes('accepted length')")
        inert(page)
        open_tab(page, "Compare")
        page.fill("#compare-prompt textarea", HOSTILE)
        page.click("#compare-run")
        page.wait_for_selector("#compare-table tbody tr:nth-child(4)")
        inert(page)
        page.fill("#compare-lane-2 input", HOSTILE)
        page.press("#compare-lane-2 input", "Enter")
        page.click("#compare-run")
        page.wait_for_function("document.querySelector('#compare-status').innerText.includes('method is')")
        inert(page)
        open_tab(page, "Learn")
        page.wait_for_function("document.querySelector('#learn-note')?.innerText.startsWith('Prompt')")
        inert(page)
        open_tab(page, "Theory lab")
        inert(page)
