"""The lessons: each has its recorded run, plays without a model, says what it shows, and sets up what to try."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from ui_fakes import make_rounds, make_trace, token

from cactus import compare, notable, recorded, theory
from cactus.acceptance import make_rule
from cactus.recorded import RecordedRun
from cactus.trace import Round, Trace
from cactus.ui import lab, settings
from cactus.ui.desk import Desk
from cactus.ui.learn import NO_RECORD, LearnHandlers, lessons, live, told

ASKED = SimpleNamespace(session_hash="a")
KEYS = {"ar": {}, "sps": {}, "cactus:delta=1": {"delta": 1.0}, "cactus:delta=10": {"delta": 10.0}}


def quick_trace(key: str) -> Trace:
    method = key.partition(":")[0]
    rounds = [
        round_.model_copy(update={"draft_seconds": 0.0, "verify_seconds": 0.002, "judge_seconds": 0.0})
        for round_ in make_rounds(8, 0 if method == "ar" else 4)
    ]
    drafted = 0 if method == "ar" else 4
    return make_trace(method=method, drafted=drafted, params=KEYS[key], rounds=tuple(rounds), prompt="Why spines?")


@pytest.fixture
def records(tmp_path) -> Path:
    """A folder of recorded runs for all lessons."""
    runs = [
        (RecordedRun(f"1-{i}.json.gz", key, "Why spines?", key, key, 4, 3, 20), quick_trace(key))
        for i, key in enumerate(KEYS)
    ]
    recorded.write(tmp_path, runs, "made in a test")
    return tmp_path


def played(handlers: LearnHandlers, name: str) -> list[tuple]:
    async def collect() -> list[tuple]:
        return [shown async for shown in handlers.play(ASKED, name)]

    return asyncio.run(collect())


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.name)
def test_a_lesson_plays_its_recorded_run(lesson, records):
    shown = played(LearnHandlers(Desk(), records), lesson.name)
    texts = [text for _, text, _, _ in shown if isinstance(text, str)]
    lines = [json.loads(line) for line in texts[-1].splitlines()]
    words = [record[0] for line in lines if "round" in line for record in line["tokens"]]
    trace = quick_trace(lesson.run)
    assert words == [token.text for round_ in trace.rounds for token in round_.tokens]
    assert "end" in lines[-1]
    assert json.loads(shown[-1][0])["lines"] == told(
        lesson, recorded.read(f"1-{list(KEYS).index(lesson.run)}.json.gz", records)
    )
    assert json.loads(shown[-2][2])[2]["label"] == "Accepted length"


def test_there_are_five_lessons_and_each_is_whole():
    assert [lesson.name for lesson in lessons()] == ["alone", "draft", "strict", "cactus", "toomuch"]
    for lesson in lessons():
        assert all((lesson.title, lesson.text, lesson.watch, lesson.question, lesson.answer, lesson.try_))
        assert lesson.notable in ("", *notable.KINDS) and 0 <= lesson.plot < 4
        words = len(" ".join((*lesson.text, lesson.watch, lesson.question, lesson.answer)).split())
        assert words < 300  # two minutes at an easy pace


def test_the_numbers_that_the_lessons_state():
    preset = next(preset for preset in theory.PRESETS if preset.name == "synonyms")
    step = theory.work_out(preset.draft_probs, preset.verifier_probs, 0, [make_rule("sps")])
    strict = next(lesson for lesson in lessons() if lesson.name == "strict")
    assert f"{step.rules[0].expected_acceptance:.2f} of the time" in strict.answer
    assert step.rules[0].expected_acceptance == pytest.approx(1 - step.tv)


@pytest.mark.parametrize("lesson", lessons(), ids=lambda lesson: lesson.name)
def test_what_to_try_is_set_up(lesson, records):
    *controls, opening, first, second, third, tabs = live(lesson, records)
    values = settings.defaults()
    for key, update in zip(settings.control_keys(), controls, strict=True):
        values[key] = update.get("value", values[key])
    request = settings.to_request(values, {"smollm2-135m": ""})
    assert request.prompt == "Why spines?"
    for name, value in lesson.settings.items():
        asked = {"method": request.method, "draft_length": request.num_draft_tokens, **request.params}
        assert asked[name] == value
    if lesson.preset:
        assert json.loads(opening) == json.loads(lab.opening(preset=theory.PRESETS[0]))
    if lesson.lanes:
        assert [update["value"] for update in (first, second, third)] == list(lesson.lanes)
        assert compare.lane_requests(request, lesson.lanes)
    assert tabs.selected == lesson.tab


def test_without_records_the_lesson_says_how_to_make_them(tmp_path):
    *_, (said, *_rest) = played(LearnHandlers(Desk(), tmp_path), "draft")
    assert json.loads(said)["lines"] == [NO_RECORD] and json.loads(said)["bad"]


def test_another_lesson_ends_the_one_before(records):
    handlers = LearnHandlers(Desk(), records)

    async def two() -> int:
        first = handlers.play(ASKED, "draft")
        await anext(first)
        second = handlers.play(ASKED, "cactus")
        await anext(second)
        rest = [shown async for shown in first]
        await second.aclose()
        return len(rest)

    assert asyncio.run(two()) <= 1


def test_a_lesson_opens_once(records):
    handlers = LearnHandlers(Desk(), records)

    async def opened() -> int:
        return len([shown async for shown in handlers.open(ASKED, "draft")])

    assert asyncio.run(opened()) > 1 and asyncio.run(opened()) == 0


def judged_trace() -> Trace:
    tokens = (
        token(" boosted", "accepted", 0, draft_prob=0.8, verifier_prob=0.2, accept_prob=0.9, uniform=0.6),
        token(" rare", "accepted", 1, draft_prob=0.1, verifier_prob=0.05, accept_prob=0.9, uniform=0.1),
        token(" good", "rejected", 2, draft_prob=0.9, verifier_prob=0.45, accept_prob=0.5, uniform=0.8),
        token(" x", "recovered", 2),
    )
    round_ = Round(
        index=0, num_draft_tokens=3, accepted_length=2, draft_seconds=0.0, verify_seconds=0.0, judge_seconds=0.0,
        tokens=tokens,
    )  # fmt: skip
    return make_trace(rounds=(round_,))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("likeliest_rejected", " good"), ("only_boosted", " boosted"), ("unlikeliest_accepted", " rare")],
)
def test_notable_tokens(kind, text):
    found = notable.KINDS[kind](judged_trace())
    assert found is not None and found.token.text == text
    assert found.among == (2 if kind == "unlikeliest_accepted" else 1)
    assert found.round.tokens[found.place] == found.token
    assert notable.KINDS[kind](make_trace(method="ar", drafted=0)) is None


def test_the_token_is_named_with_its_verdict():
    lesson = next(lesson for lesson in lessons() if lesson.notable == "likeliest_rejected")
    assert told(lesson, judged_trace()) == [
        'Tokens refused: 1. The verifier\'s likeliest was " good" with q = 0.450.',
        "Round 1, draft 3 of 3: u = 0.80 ≥ 0.50: rejected.",
    ]
