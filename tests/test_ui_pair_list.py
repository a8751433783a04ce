"""The list of pairs: what cannot be used here is marked, refused with its reason, and brings its own settings."""

from __future__ import annotations

import json
from dataclasses import replace

from test_ui_handlers import lines, page, place, request, row
from ui_fakes import FakeSession

from cactus.pairs.state import PairState
from cactus.ui import notes, pair_list, settings
from cactus.ui.desk import Loader

USUAL = {"draft_length": 5, "temperature": 0.7, "top_p": 1.0, "top_k": 0}
QWEN = {"draft_length": 5, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
WHY = "it needs about 19.9 GB of memory; 5.0 GB of main memory are free"


class Mixed(FakeSession):
    """A pair that can be used, and three that cannot or not yet."""

    def states(self) -> list[PairState]:
        first, second = super().states()
        return [
            replace(first, settings=USUAL, licence="Apache-2.0"),
            replace(second, state="can download", needs="its weights are downloaded first (4.1 GB)", settings=USUAL),
            replace(
                second, name="big", label="Big", state="too large here", needs=WHY, settings=QWEN, notes="it thinks"
            ),
            replace(second, name="gated", label="Gated", state="gated", needs="accept its licence", settings={}),
        ]


def test_pairs_that_cannot_be_used_are_marked_in_the_list():
    labels = [label for label, _ in pair_list.choices(Mixed().states())]
    assert labels == ["SmolLM2 135M", "SmolLM2 135M, prompt lookup", "⊘ Big (too large here)", "⊘ Gated (gated)"]


def test_choosing_one_shows_why_and_running_it_is_refused_at_the_control_and_starts_nothing():
    session = Mixed(count=2)
    live, desk = place(session)
    list(live.run(request(), *row()))
    kept, started = desk.visit("one").show.trace, session.runs
    assert WHY[1:] in page(session).pair_note("big") and json.loads(page(session).pair_note("big"))["bad"]
    answers = dict(zip(settings.control_keys(), live.check(*row(pair="big")), strict=True))
    assert not answers["pair"]["is_valid"]
    assert answers["pair"]["message"] == "Too large here, see below"  # where the note says why
    assert [key for key, answer in answers.items() if not answer["is_valid"]] == ["pair"]
    assert session.runs == started and desk.visit("one").show.trace is kept


def test_past_the_check_it_is_refused_too():
    session = Mixed()
    live, _ = place(session)
    (shown,) = live.run(request(), *row(pair="gated"))
    assert (
        "Gated cannot be used here (gated): accept its licence. Choose" in lines(shown[0])[-1]["end"]
        and session.runs == 0
    )


def test_a_pair_brings_its_settings_except_where_they_were_changed_by_hand():
    states = Mixed().states()
    assert pair_list.recommended(states, "big", "smollm2-135m", USUAL) == QWEN
    by_hand = USUAL | {"temperature": 1.3}
    assert "temperature" not in pair_list.recommended(states, "big", "smollm2-135m", by_hand)
    back = pair_list.recommended(states, "smollm2-135m", "big", QWEN | {"top_k": 50})
    assert back == {"draft_length": 5, "temperature": 0.7, "top_p": 1.0}
    assert pair_list.recommended(states, "gated", "smollm2-135m", USUAL) == {}


def test_the_page_remembers_which_pair_was_chosen():
    *updates, before = page(Mixed()).recommend("big", "smollm2-135m", *USUAL.values())
    assert [update.get("value") for update in updates] == [5, 0.6, 0.95, 20] and before == "big"


def test_the_table_has_every_pair_with_size_licence_state_and_needs():
    table = json.loads(pair_list.listing(Mixed().states()))
    assert table["head"] == ["Pair", "Models", "Size", "Licence", "Here", "What it needs"]
    first, second, big, gated = table["rows"]
    assert (first[0], first[2], first[3], first[4]) == (
        "SmolLM2 135M", "269 MB + 14 MB", "Apache-2.0", {"text": "ready", "kind": "good"},
    )  # fmt: skip
    assert second[4] == {"text": "can download"} and second[5] == "Its weights are downloaded first (4.1 GB)"
    assert big[4] == {"text": "too large here", "kind": "bad"} and big[5].endswith("are free. It thinks")
    assert gated[4]["text"] == "gated"


def test_a_link_may_name_an_unusable_pair_and_the_list_is_fresh():
    session = Mixed()
    updates = dict(zip(settings.control_keys(), page(session).restore(request(pair="big"))[:-1], strict=True))
    assert updates["pair"]["value"] == "big" and len(updates["pair"]["choices"]) == 4
    loaded = notes.pair_note("smollm2-135m", session.states(), Loader(session))
    assert not json.loads(loaded)["bad"]
