"""The page in a real browser: a run of the default pair, hostile text, keys, links, downloads, a second visitor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import WAIT, app_process
from pages import CONTRAST, DONE, Site, run, visits, watch
from ui_fakes import FakeSession, make_trace, token

from cactus.limits import Limits
from cactus.trace import Round, TopToken, Trace

HOSTILE = [
    "<img src=x onerror=\"window.hacked='img'\">",
    "</script><script>window.hacked='script'</script>",
    "${(window.hacked='template')}",
    "{{#with this}}{{window.hacked}}{{/with}}",
    "[a](javascript:alert(1))",
    "\u202eright to left\u202c",
    "\u0000\u0007",
    "שלום עולם",
    "<think>",
]


def load(page: Any, trace: Trace | str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(trace if isinstance(trace, str) else trace.to_json(), encoding="utf-8")
    page.set_input_files("#load-trace input, input[type=file]", str(path))
    page.wait_for_function(DONE)


def shown_text(page: Any) -> str:
    """What is to be read, as the page lays it out."""
    return page.eval_on_selector("#tokens .stream-text", "node => node.innerText")


def test_the_default_pair_runs_from_the_page(browser):
    faults: list[str] = []
    with app_process() as address:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(10 * WAIT)
        watch(page, address, faults)
        page.goto(address + "/?max_new_tokens=24&draft_length=3&seed=1")
        page.wait_for_function("document.querySelector('#max-new-tokens input[type=number]')?.value === '24'")
        run(page, "List the planets of the solar system.")
        statuses = page.eval_on_selector_all("#tokens .tok", "all => all.map(node => node.dataset.status)")
        rounds = page.eval_on_selector_all("#tokens .tok", "all => all.map(node => Number(node.dataset.round))")
        emitted = [status for status in statuses if status in ("accepted", "recovered", "bonus", "sampled")]
        assert page.locator("#tokens .stream.failed").count() == 0, page.inner_text("#tokens .stream-end")
        assert 1 <= len(emitted) <= 24
        assert rounds == sorted(rounds) and rounds[0] == 1
        assert page.inner_text("#tokens .stream-end").startswith(f"{len(emitted)} tokens in {rounds[-1]} rounds")
        values = page.eval_on_selector_all("#tiles .tile-value", "all => all.map(node => node.textContent)")
        assert len(values) == 6 and all(float(value) >= 0 for value in values)
        assert float(values[0]) > 0 and float(values[1]) > 0
        assert int(values[5]) == len(emitted) - rounds[-1]
        for plot in ("plot-accepted", "plot-speedup", "plot-positions", "plot-divergence"):
            page.wait_for_selector(f"#{plot} .cartesianlayer .trace", state="attached", timeout=WAIT)
        page.wait_for_selector("#plot-positions .bars .point path", state="attached", timeout=WAIT)
        page.hover("#tokens .tok >> nth=0")
        assert page.locator(".token-card .bar").count() == 10
        page.close()
    assert faults == []


def test_tokens_tiles_and_plots_are_those_of_the_trace(visit, tmp_path):
    page, trace = visit(), make_trace(count=9)
    load(page, trace, tmp_path)
    tokens = page.eval_on_selector_all(
        "#tokens .tok", "all => all.map(node => [node.dataset.status, Number(node.dataset.round)])"
    )
    assert tokens == [[t.status, r.index + 1] for r in trace.rounds for t in r.tokens]
    assert page.inner_text("#tiles .tile:nth-child(2) .tile-value") == f"{trace.metrics().speedup:.2f}"
    page.wait_for_function("document.querySelectorAll('#plot-accepted .bars .point path').length === 9")


def test_hidden_rejections_leave_clean_text_to_read_and_to_copy(visit, tmp_path):
    page, trace = visit(), make_trace(count=30)
    assert "\n" in trace.text and any(t.status == "rejected" for r in trace.rounds for t in r.tokens)
    load(page, trace, tmp_path)
    assert shown_text(page) != trace.text
    page.check("#tokens .hide-rejected")
    assert shown_text(page) == trace.text
    page.uncheck("#tokens .hide-rejected")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#tokens .stream-text'))")
    page.keyboard.press("Control+c")
    assert page.evaluate("navigator.clipboard.readText()") == trace.text
    page.evaluate("navigator.clipboard.writeText('')")
    page.click("#tokens .copy-text")
    page.wait_for_function("document.querySelector('#tokens .copy-text').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == trace.text


def hostile_trace() -> Trace:
    rounds, position = [], 0
    for index, text in enumerate(HOSTILE):
        top = (TopToken(id=1, text=text, prob=0.5),)
        pieces = (
            token(text, "accepted", position, top_draft=top, top_verifier=top),
            token(text, "rejected", position + 1),
            token(text, "recovered", position + 1),
        )
        rounds.append(
            Round(
                index=index, num_draft_tokens=2, accepted_length=1, draft_seconds=0.001, verify_seconds=0.001,
                judge_seconds=0.0, tokens=pieces,
            )
        )  # fmt: skip
        position += 2
    names = {"pair": HOSTILE[0], "method": HOSTILE[1], "params": {HOSTILE[2]: HOSTILE[3]}, "device": HOSTILE[0]}
    return make_trace(rounds=tuple(rounds), prompt=HOSTILE[0], **names)


def test_hostile_text_is_inert(visit, tmp_path):
    page = visit()
    load(page, hostile_trace(), tmp_path)
    texts = page.eval_on_selector_all("#tokens .tok[data-status=accepted]", "all => all.map(node => node.textContent)")
    assert texts == HOSTILE
    for index in range(len(HOSTILE)):
        page.hover(f"#tokens .tok[data-status=accepted] >> nth={index}")
        assert json.loads(page.inner_text(".token-card .card-token")) == HOSTILE[index]
    assert page.locator("#tokens .stream-text img, #tokens .stream-text script, .token-card img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_a_direction_override_ends_with_its_own_character(visit, tmp_path):
    page = visit()
    pieces = (token("\u202eabc", "sampled", 0),), (token("<plain>", "sampled", 1),)
    rounds = [
        Round(
            index=index, num_draft_tokens=0, accepted_length=0, draft_seconds=0.0, verify_seconds=0.001,
            judge_seconds=0.0, tokens=tokens,
        )
        for index, tokens in enumerate(pieces)
    ]  # fmt: skip
    load(page, make_trace(method="ar", drafted=0, rounds=tuple(rounds)), tmp_path)
    left = page.eval_on_selector_all("#tokens .tok", "all => all.map(node => node.getBoundingClientRect().left)")
    assert left == sorted(left)


@pytest.mark.parametrize("text", ["", "{", '{"schema": "<img src=x onerror=window.hacked=1>"}'])
def test_a_broken_trace_file_gets_a_message(visit, tmp_path, text):
    page = visit()
    load(page, text, tmp_path)
    assert "not a usable trace" in page.inner_text("#tokens .stream-end")
    assert page.evaluate("window.hacked") is None
    run(page)
    assert page.locator("#tokens .stream.failed").count() == 0


def test_an_empty_prompt_is_said_at_its_control_and_the_next_run_works(visit, site):
    page = visit()
    page.click("#run")
    page.wait_for_selector("#prompt .validation-error")
    assert "the prompt is empty" in page.inner_text("#prompt")
    assert site.session.runs == 0
    run(page)
    assert site.session.runs == 1


def test_an_error_of_the_session_is_shown_as_text(visit, site):
    page = visit()
    site.session.error = "no network <img src=x onerror=window.hacked=1>"
    page.fill("#prompt textarea", "hello")
    page.click("#run")
    page.wait_for_selector("#tokens .stream.failed")
    assert site.session.error in page.inner_text("#tokens .stream-end")
    assert page.evaluate("window.hacked") is None


def test_stop_frees_the_model_and_shows_what_there_is(visit, site):
    page = visit()
    site.session.count, site.session.pause = 5000, 0.05
    page.fill("#prompt textarea", "hello")
    page.click("#run")
    page.wait_for_selector("#tokens .tok[data-round='3']")
    page.click("#stop")
    page.wait_for_function(DONE)
    assert "stopped" in page.inner_text("#tokens .stream-end")
    assert site.session.released == 1
    page.click("#clear")
    page.wait_for_selector("#tokens .stream-empty")
    assert page.locator("#tokens .tok").count() == 0
    site.session.count = 3
    run(page)
    assert site.session.released == 2


def test_closing_the_tab_frees_the_model(visit, site):
    page = visit()
    site.session.count, site.session.pause = 5000, 0.05
    page.fill("#prompt textarea", "hello")
    page.click("#run")
    page.wait_for_selector("#tokens .tok")
    page.close()
    other = visit()
    site.session.count = 3
    run(other)
    assert site.session.released == 2


@pytest.fixture
def one_at_a_time(browser):
    """Visits to a page whose models serve one run at a time, and its session."""
    session = FakeSession(pause=0.05, count=5000)
    session.limits = Limits(max_runs=1)
    opened = Site(session)
    for visit in visits(browser, opened):
        yield visit, session
    opened.demo.close()


def test_a_second_visitor_sees_the_queue_and_can_leave_it(one_at_a_time):
    visit, session = one_at_a_time
    first, second = visit(), visit()
    first.fill("#prompt textarea", "first")
    first.click("#run")
    first.wait_for_selector("#tokens .tok")
    second.fill("#prompt textarea", "second")
    second.click("#run")
    second.wait_for_function("document.querySelector('#tokens').innerText.includes('queue')")
    second.click("#stop")
    first.click("#stop")
    first.wait_for_function(DONE)
    assert [asked.prompt for asked in session.requests] == ["first"]


def test_keys_walk_the_tokens_and_run(visit, site, tmp_path):
    page, trace = visit(), make_trace(count=4)
    load(page, trace, tmp_path)
    tokens = [t for r in trace.rounds for t in r.tokens]
    page.focus("#tokens .tok >> nth=0")
    page.keyboard.press("ArrowRight")
    assert json.loads(page.inner_text(".token-card .card-token")) == tokens[1].text
    page.keyboard.press("End")
    assert json.loads(page.inner_text(".token-card .card-token")) == tokens[-1].text
    assert page.locator("#tokens .tok[tabindex='0']").count() == 1
    page.keyboard.press("Escape")
    assert not page.is_visible(".token-card")
    page.fill("#prompt textarea", "by key")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#tokens .tok[data-round='12']")
    assert [asked.prompt for asked in site.session.requests] == ["by key"]


def test_the_card_tells_what_the_trace_holds(visit, tmp_path):
    page, trace = visit(), make_trace(count=6)
    load(page, trace, tmp_path)
    rejected = next(t for r in trace.rounds for t in r.tokens if t.status == "rejected")
    page.hover("#tokens .tok[data-status=rejected] >> nth=0")
    card = page.inner_text(".token-card")
    assert "u = 0.70 ≥ 0.20: rejected" in card
    for label, value in (("draft probability", rejected.draft_prob), ("verifier probability", rejected.verifier_prob)):
        assert label in card and f"{value:.3f}" in card
    assert page.locator(".token-card .bar").count() == 10


def test_the_legend_filters(visit, tmp_path):
    page = visit()
    load(page, make_trace(count=6), tmp_path)
    faint = "node => Number(getComputedStyle(node).opacity) < 0.5"
    page.click("#tokens .legend [data-filter=recovered]")
    assert page.eval_on_selector("#tokens .tok[data-status=accepted]", faint)
    assert not page.eval_on_selector("#tokens .tok[data-status=recovered]", faint)
    page.click("#tokens .legend [data-filter=recovered]")
    assert not page.eval_on_selector("#tokens .tok[data-status=accepted]", faint)


def test_only_the_chosen_methods_controls_are_seen(visit):
    page = visit("?method=tas&epsilon=0.2")
    page.wait_for_selector("#tas-epsilon")
    assert page.locator("#delta").count() == 0 or not page.is_visible("#delta")
    assert page.input_value("#tas-epsilon input[type=number]") == "0.2"
    page.click("#method input")
    page.click("text=Verifier only")
    page.wait_for_selector("#tas-epsilon", state="hidden")


def test_a_link_restores_settings_and_names_what_it_ignores(visit):
    page = visit("?draft_length=3&temperature=9&prompt=Hello%20%3Cb%3E&seed=random")
    page.wait_for_function("document.querySelector('#prompt textarea').value === 'Hello <b>'")
    assert page.input_value("#draft-length input[type=number]") == "3"
    assert page.input_value("#temperature input[type=number]") == "0.7"
    assert page.input_value("#seed input") == ""
    assert "temperature" in page.inner_text("#tokens .stream-end")
    page.click("#share")  # the address it came by had the temperature
    page.wait_for_function("location.search.includes('draft_length=3') && !location.search.includes('temperature')")
    page.wait_for_function("document.querySelector('#share').textContent.includes('copied')")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_downloads_hold_the_run(visit, tmp_path):
    page = visit()
    run(page)
    with page.expect_download() as saved:
        page.click("#save-trace")
    trace = Trace.from_json(Path(saved.value.path()).read_text(encoding="utf-8"))
    assert len(trace.rounds) == 12 and trace.stop_reason == "length"
    with page.expect_download() as saved:
        page.click("#save-table")
    table = Path(saved.value.path()).read_text(encoding="utf-8")
    assert table.startswith("round,position,status") and "cactus" in table


def test_replay_round_by_round(visit, tmp_path):
    page = visit()
    load(page, make_trace(count=3), tmp_path)
    page.click("#speed input")
    page.click("text=round by round")
    page.wait_for_selector("#step")
    page.click("#replay")
    page.wait_for_function("document.querySelectorAll('#tokens .tok').length === 0")
    for number in (1, 2, 3):
        page.click("#step")
        page.wait_for_selector(f"#tokens .tok[data-round='{number}']")
        assert page.locator(f"#tokens .tok[data-round='{number + 1}']").count() == 0
    page.wait_for_function(DONE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(visit, tmp_path, scheme):
    page = visit(color_scheme=scheme)
    load(page, make_trace(count=9), tmp_path)
    page.hover("#tokens .tok >> nth=0")
    selector = (
        ".sample, .tok, .tile-label, .tile-value, .tile-note, .tile-unit, .note-line0, .note-line1, .info-text, "
        ".stream-facts, .stream-end, .card-numbers dt, .card-numbers dd, .bars h4, .card-place, #run, #stop, #clear"
    )
    measured = page.evaluate(CONTRAST, selector)
    assert len(measured) > 50
    assert [entry for entry in measured if entry[1] < 4.5] == []
    dark = page.evaluate("document.body.classList.contains('dark')")
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("width", [390, 820, 1280])
def test_nothing_sticks_out_sideways(visit, tmp_path, width):
    page = visit(width=width, height=844)
    load(page, make_trace(count=12), tmp_path)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_everything_is_above_the_fold(visit):
    page = visit()
    for hook in ("run", "pair", "method", "delta", "seed", "tiles", "tokens", "plot-accepted", "plot-divergence"):
        box = page.locator(f"#{hook}").bounding_box()
        assert box["y"] + box["height"] <= 800, hook
