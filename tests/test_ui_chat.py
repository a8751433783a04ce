"""Conversations of the Playground: what a reply asks, what is shown before an answer, which tokens are thoughts."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import tiny
from test_ui_handlers import lines, place, play, request, row
from ui_fakes import FakeSession, make_trace, token

from cactus.errors import CactusError
from cactus.pairs import Pair
from cactus.request import RunRequest
from cactus.session import Session
from cactus.trace import Round, Trace
from cactus.ui import chat, settings
from cactus.ui.api import Endpoints
from cactus.ui.desk import Desk, Loader
from cactus.ui.live import LiveHandlers
from cactus.ui.page import PageHandlers
from cactus.ui.replay import ReplayHandlers
from cactus.ui.thoughts import Thoughts
from cactus.ui.whatif import request_again

ASKED = {"role": "user", "content": "Explain a cactus."}
SYSTEM = {"role": "system", "content": "be brief"}


def said(shown: Any) -> list[list[str]]:
    return next((record["turns"] for record in lines(shown[0]) if "turns" in record), [])


def go(handler: Any) -> Any:
    return list(handler)[-1]


def test_a_reply_asks_with_the_turns_so_far_and_shows_them():
    session = FakeSession(count=3)
    live, desk = place(session)
    go(live.run(request(), *row(prompt="first")))
    trace = desk.visit("one").show.trace
    shown = list(live.reply(request(), *row(prompt="second")))
    asked = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": trace.text},
        {"role": "user", "content": "second"},
    ]
    assert list(session.requests[1].prompt) == asked
    assert said(shown[0]) == said(shown[-1]) == [[turn["role"], turn["content"]] for turn in asked]
    assert shown[0][-2] == "" and all(
        later[-2] != "" for later in shown[1:]
    )  # emptied once, not what is typed meanwhile
    go(live.reply(request(), *row(prompt="third")))
    assert [turn["content"] for turn in session.requests[2].prompt][::2] == ["first", "second", "third"]


def test_the_turns_of_one_conversation_go_by_one_name_that_others_do_not_know():
    session = FakeSession(count=1)
    live, _ = place(session)
    for name in ("one", "two"):
        go(live.run(request(name), *row()))
        go(live.reply(request(name), *row()))
    names = [asked.conversation for asked in session.requests]
    assert names[0] == names[1] != names[2] == names[3] and all(len(name) > 20 for name in names)
    go(live.run(request("one"), *row()))
    assert session.requests[-1].conversation not in names and names[0] in session.forgotten
    live.clear(request("two"))
    assert names[2] in session.forgotten
    live.leave(request("one"))
    assert session.requests[-1].conversation in session.forgotten
    go(live.run(request("one"), *row(prompt_as="completion")))
    assert session.requests[-1].conversation == ""


def test_a_system_prompt_stays_until_another_is_set():
    wanted = RunRequest(prompt="more", system="", seed=1)
    assert chat.reply(wanted, [SYSTEM, ASKED]).prompt[0] == SYSTEM
    other = chat.reply(RunRequest(prompt="more", system="rhyme"), [SYSTEM, ASKED])
    assert other.prompt[0] == {"role": "system", "content": "rhyme"} and other.system == ""
    assert [turn["role"] for turn in other.prompt] == ["system", "user", "user"]


def test_a_stopped_answer_is_kept_as_far_as_it_went():
    session = FakeSession(count=400, pause=0.02)
    live, desk = place(session)
    started = threading.Event()

    def run() -> None:
        for _ in live.run(request(), *row()):
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(20)
    before = desk.visit("one").show
    session.count = 2
    go(live.reply(request(), *row(prompt="go on")))
    thread.join(20)
    assert before.trace.stop_reason == "cancelled" and len(before.trace.rounds) < 400
    assert session.requests[1].prompt[1]["content"] == before.trace.text
    assert session.released == 2


def test_a_reply_that_fails_can_be_tried_again():
    session = FakeSession(count=2)
    live, desk = place(session)
    go(live.run(request(), *row(prompt="first")))
    text = desk.visit("one").show.trace.text
    session.error = "the prompt has 9,999 tokens"
    shown = go(live.reply(request(), *row(prompt="second")))
    assert lines(shown[0])[-1]["failed"] and said(shown)[-1] == ["user", "second"]
    session.error = ""
    go(live.reply(request(), *row(prompt="again")))
    assert [turn["content"] for turn in session.requests[-1].prompt] == ["first", text, "again"]


@pytest.mark.parametrize(
    ("before", "changes", "message"),
    [
        ({}, {}, "no answer to reply to"),
        ({"prompt_as": "completion"}, {}, "raw prompt"),
        ({"prompt": "hello"}, {"prompt_as": "completion"}, "choose Chat"),
        ({"prompt": "hello"}, {"temperature": 9}, "temperature"),
    ],
)
def test_what_cannot_be_replied_to_is_said_and_what_is_shown_stays(before, changes, message):
    session = FakeSession(count=2)
    live, desk = place(session)
    if before:
        go(live.run(request(), *row(**before)))
    show, runs = desk.visit("one").show, session.runs
    (shown,) = live.reply(request(), *row(**changes))
    assert message in shown[-1]
    assert shown[:6] == show.view.shown() and desk.visit("one").show is show
    assert session.runs == runs


def test_a_loaded_trace_shows_its_turns_and_can_be_replied_to(tmp_path):
    trace = make_trace(count=2, prompt=(SYSTEM, ASKED, {"role": "assistant", "content": "<b>"}, ASKED))
    path = tmp_path / "trace.json"
    path.write_text(trace.to_json(), encoding="utf-8")
    session, desk = FakeSession(count=1), Desk()
    shown = play(ReplayHandlers(desk).open(request(), str(path), "4×"))[-1]
    assert [role for role, _ in said(shown)] == ["system", "user", "assistant", "user"]
    live = LiveHandlers(session, Loader(session), desk)
    go(live.reply(request(), *row(prompt="more")))
    asked = session.requests[0].prompt
    assert list(asked[:4]) == list(trace.prompt) and asked[4]["content"] == trace.text
    again = request_again(desk.visit("one").show, session.requests[0].rule)
    assert (again.prompt, again.conversation) == (asked, "")


def test_hand_edited_messages_are_refused_by_name_and_no_fault_of_the_page():
    odd = make_trace(prompt=({"role": "user"}, {"content": "x"}, {"a": "b"}, ASKED))
    assert chat.shown_turns(odd.prompt, False) == [("user", ASKED["content"])]
    with pytest.raises(CactusError, match="prompt is"):
        chat.reply(RunRequest(prompt="more"), chat.history(odd, None))
    with pytest.raises(CactusError, match="raw prompt"):
        chat.history(make_trace(prompt=(1, 2, 3)), None)


def test_a_completion_goes_out_as_it_is_and_into_link_and_trace():
    session = FakeSession(count=1)
    live, desk = place(session)
    values = row(prompt="Once upon", prompt_as="completion", system="be brief")
    shown = go(live.run(request(), *values))
    asked = session.requests[0]
    assert (asked.prompt, asked.raw, asked.system) == ("Once upon", True, "")
    assert said(shown) == [["raw prompt", "Once upon"]]
    assert Trace.from_json(desk.visit("one").show.trace.to_json()).raw
    query = settings.to_query(settings.as_values(values))
    assert "prompt_as=completion" in query
    restored = settings.from_query({"prompt_as": "completion"}, {})
    assert restored == ({"prompt_as": "completion"}, [])
    assert "prompt_as" in settings.from_query({"prompt_as": "poem"}, {})[1][0]
    assert "prompt_as" not in settings.to_query(settings.as_values(row()))


def test_the_endpoint_takes_raw_prompts():
    session = FakeSession(count=1)
    *_, (_, trace) = Endpoints(session).generate("Once upon", raw=True)
    assert trace["raw"] and session.requests[0].raw


def test_a_link_carries_no_history():
    session = FakeSession(count=1)
    live, desk = place(session)
    go(live.run(request(), *row(prompt="secret")))
    go(live.reply(request(), *row(prompt="more")))
    assert "secret" not in PageHandlers(session, Loader(session), desk).share(*row(prompt=""))


def pieces(*texts: str) -> Round:
    """A round of accepted tokens; a text behind "!" was rejected."""
    tokens = [token(text.lstrip("!"), "rejected" if text.startswith("!") else "accepted", 0) for text in texts]
    return Round.model_construct(tokens=tuple(tokens))


def test_thoughts_are_what_stands_between_the_tags_at_the_beginning():
    follow = Thoughts()
    marks = [
        list(follow.marks(pieces(*texts))) for texts in (("\n", "<think>", " hm"), ("!</think>", " so", "</think>"))
    ]
    assert marks == [[0, 1, 1], [1, 1, 1]]
    assert list(follow.marks(pieces(" yes", "<think>", "no", "</think>"))) == [0, 0, 0, 0]


def test_a_thought_that_the_template_opened_is_known_by_its_end():
    follow = Thoughts()
    assert list(follow.marks(pieces("hm", " so", "</think>", "yes"))) == [0, 0, 2, 0]


def test_prose_about_the_tags_stays_prose_and_an_open_thought_stays_open():
    assert list(Thoughts().marks(pieces("Use ", "<think>", "x", "</think>"))) == [0, 0, 0, 0]
    assert list(Thoughts().marks(pieces("<", "think", ">", "x", "</", "think", ">"))) == [0] * 7
    assert list(Thoughts().marks(pieces("<think>", "a", "<think>", "b"))) == [1, 1, 1, 1]
    assert list(Thoughts().marks(pieces("!<think>", "a"))) == [0, 0]


def test_the_second_turn_of_a_real_session_reads_its_own_words_alone():
    def load(spec: Any, progress: Any) -> Pair:
        made = tiny.pair()
        return Pair(spec.name, made.model, made.codec, made.drafter)

    session = Session(load_pair=load)
    desk = Desk()
    live = LiveHandlers(session, Loader(session), desk)
    values = {"max_new_tokens": 8, "temperature": 1.0, "seed": 3}
    go(live.run(request(), *row(prompt="the cat sat", **values)))
    first = desk.visit("one").show.trace
    shown = go(live.reply(request(), *row(prompt="on the mat", **values)))
    second = desk.visit("one").show.trace
    assert first.cached_tokens == 0 and second.cached_tokens >= first.prompt_tokens
    facts = next(record["facts"] for record in lines(shown[0]) if "facts" in record)
    new = second.prompt_tokens - second.cached_tokens
    assert f"read {new} prompt tokens, {second.cached_tokens} kept from the turn before" in facts
    assert len(session._prefixes) == 1
    live.leave(request())
    assert len(session._prefixes) == 0
