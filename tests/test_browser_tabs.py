"""Compare, What if and Learn in a real browser: the main path of each."""

from __future__ import annotations

import pytest
from pages import open_tab, pale, run
from test_ui_learn import KEYS, quick_trace

from cactus import recorded
from cactus.recorded import RecordedRun


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Recorded runs for all lessons, where the page looks for them."""
    runs = [
        (RecordedRun(f"1-{i}.json.gz", key, "Why spines?", key, key, 4, 3, 20), quick_trace(key))
        for i, key in enumerate(KEYS)
    ]
    recorded.write(tmp_path, runs, "made in a test")
    monkeypatch.setattr(recorded, "RUNS", tmp_path)


def test_lanes_race_and_are_played_on_one_clock(visit, site):
    page = visit(tab="Compare", width=1280)
    page.fill("#compare-prompt textarea", "Why spines?")
    page.click("#compare-run")
    page.wait_for_selector("#compare-table tbody tr:nth-child(4)")
    assert [asked.method for asked in site.session.requests] == ["ar", "sps", "cactus", "tas"]
    labels = page.eval_on_selector_all("#compare-table tbody th", "all => all.map(node => node.textContent)")
    assert labels[0] == "Verifier only" and labels[2] == "Cactus, delta = 1, m = 5"
    for lane in range(1, 5):
        assert page.inner_text(f"#lane-{lane}-note .note-line0") == labels[lane - 1]
        assert page.locator(f"#lane-{lane} .tok").count() > 10
    assert page.locator("#compare-plot .scatterlayer .points path").count() >= 4
    assert page.evaluate("document.documentElement.dataset.cactus") == "empty"  # the Playground is not touched
    with page.expect_download() as saved:
        page.click("#compare-save")
    assert saved.value.suggested_filename == "comparison.json"
    assert (
        pale(page, "#compare .cells td, #compare .note-line0, #compare .note-line1, #compare .tok, #compare-table th")
        == []
    )
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_if_of_a_run_and_the_real_run_over_it(visit, site):
    page = visit()
    run(page)
    open_tab(page, "What if")
    page.wait_for_function("document.querySelector('#whatif-told')?.innerText.includes('Expected accepted length')")
    before = page.inner_text("#whatif-told")
    page.fill("#whatif-cactus-delta input[type=number]", "0")
    page.press("#whatif-cactus-delta input[type=number]", "Tab")
    page.wait_for_function("before => document.querySelector('#whatif-told').innerText !== before", arg=before)
    page.click("#whatif-rerun")
    page.wait_for_function("document.querySelector('#whatif-told').innerText.includes('For real')")
    assert site.session.requests[-1].params["delta"] == 0 and site.session.runs == 2
    page.wait_for_selector("#whatif-length .scatterlayer .points path")
    page.wait_for_selector("#whatif-spent .scatterlayer .lines path")


def test_a_lesson_plays_and_can_be_tried(visit, site, records):
    page = visit(tab="Learn", width=390, height=844)
    page.wait_for_function("document.querySelector('#learn-note')?.innerText.startsWith('Prompt')")
    assert page.locator("#learn-text .tok[data-status=sampled]").count() == 8
    page.click("#lessons label >> nth=3")
    page.wait_for_selector("#try-cactus")
    page.wait_for_selector("#learn-text .tok[data-status=accepted]")
    answer = "second-order"
    assert answer not in page.inner_text("#learn")
    page.click(".lesson-question:visible button")
    page.wait_for_function("text => document.querySelector('#learn').innerText.includes(text)", arg=answer)
    assert site.session.runs == 0 and not site.session.loaded
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#try-cactus")
    page.wait_for_function("document.querySelector('#prompt textarea')?.value === 'Why spines?'")
    page.wait_for_function("document.querySelector('#delta input[type=number]')?.value === '0.2'")
