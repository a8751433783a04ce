"""Models of one's own on the page: progress, named errors, the pair in the list; and not on a public page."""

from __future__ import annotations

import json

import pytest
import tiny
from ui_fakes import FakeSession

import app
from cactus.limits import Limits
from cactus.pairs.added import ADDED
from cactus.request import RunRequest
from cactus.session import Session
from cactus.ui.custom import CustomHandlers
from cactus.ui.layout import build

pytestmark = pytest.mark.usefixtures("none_added")


def session() -> Session:
    return Session("cpu", "float32", Limits(max_pairs=1))


def notes(steps) -> list[dict]:
    return [json.loads(step[0]) for step in steps]


def load(made: Session, verifier="", draft="", quantize="", spread=False):
    return list(CustomHandlers(made).load(str(verifier), str(draft), quantize, spread))


def test_loading_tells_what_goes_on_and_puts_the_pair_into_the_list(folders):
    made = session()
    steps = load(made, folders / "verifier", folders / "draft")
    said = notes(steps)
    assert said[0] == {"lines": ["looking at draft + verifier"], "share": None, "busy": True, "bad": False}
    assert said[-1]["lines"] == ["draft + verifier is loaded, and chosen above."] and not said[-1]["busy"]
    update = steps[-1][1]
    assert update["value"] == "draft + verifier" and update["value"] in [name for _, name in update["choices"]]
    with made.start(RunRequest(pair="draft + verifier", prompt="hi", max_new_tokens=6)) as live:
        assert list(live)


def test_without_a_draft_model_it_is_prompt_lookup_and_a_spread_one_works(folders):
    made = session()
    assert load(made, folders / "verifier", " ", spread=True)[-1][1]["value"] == "prompt lookup + verifier"
    pair = made.load("prompt lookup + verifier")
    assert pair.weights == "verifier (given), placed by a device map"


WRONG = {
    "nothing": ({}, "the verifier is ''"),
    "no such place": ({"verifier": "/srv/secret/place"}, "there is no file or folder 'place' here"),
    "no draft": ({"verifier": "verifier", "draft": "~/secret/gone"}, "there is no file or folder 'gone' here"),
    "no library": ({"verifier": "verifier", "quantize": "4bit"}, "needs bitsandbytes: not installed"),
    "other tokenizer": ({"verifier": "verifier", "draft": "other"}, "token 5 is"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_beside_the_button_and_leaves_no_trace(case, folders, monkeypatch):
    monkeypatch.setattr("cactus.models.placement.find_spec", lambda name: None)
    if not (folders / "other").exists():
        tiny.near().save_pretrained(folders / "other")
        tiny.tokenizer(vocab_size=299).save_pretrained(folders / "other")
        text = (folders / "other" / "tokenizer.json").read_text()
        first, second = tiny.tokenizer().convert_ids_to_tokens([5, 6])
        text = text.replace(f'"{first}": 5,', '"@@": 5,').replace(f'"{second}": 6,', f'"{first}": 6,')
        (folders / "other" / "tokenizer.json").write_text(text)
    given, message = WRONG[case]
    places = {
        key: folders / value if key != "quantize" and value[0] not in "/~" else value for key, value in given.items()
    }
    made = session()
    last = notes(load(made, **places))[-1]
    assert last["bad"] and not last["busy"] and message in last["lines"][0]
    assert "secret" not in last["lines"][0] and str(folders) not in last["lines"][0]
    assert ADDED.all() == []


def test_a_load_that_fails_after_the_look_takes_the_pair_out_of_the_list_again(folders):
    made = session()
    made.load = lambda name, progress=None: (_ for _ in ()).throw(ValueError(f"no room for {name}"))
    last = notes(load(made, folders / "verifier"))[-1]
    assert last["bad"] and last["lines"] == ["no room for prompt lookup + verifier"]
    assert ADDED.all() == []


def ids(demo) -> set[str]:
    return {getattr(block, "elem_id", None) for block in demo.blocks.values()}


def test_a_public_page_has_neither_the_fields_nor_the_event_behind_them():
    private, public = FakeSession(), FakeSession()
    public.limits = Limits(public=True)
    fields = {"own-pair", "own-verifier", "own-draft", "own-load"}
    pages = build(private), build(public)
    assert fields <= ids(pages[0]) and not fields & ids(pages[1])
    of_own = [
        [fn for fn in page.fns.values() if getattr(fn.fn, "__qualname__", "").startswith("CustomHandlers")]
        for page in pages
    ]
    assert of_own[0] and not of_own[1]


@pytest.mark.parametrize(
    ("flags", "public"), [([], False), (["--share"], True), (["--share", "--no-public"], False), (["--public"], True)]
)
def test_a_page_with_a_public_link_is_public_unless_it_is_said_not_to_be(flags, public):
    assert app.parse_args(flags).limits.public == public


@pytest.mark.parametrize("name", ["org/draft + org/model", "/srv/models/qwen", "verifier"])
def test_a_request_names_pairs_that_are_known_never_models(name):
    with pytest.raises(ValueError, match="are allowed"):
        RunRequest(pair=name, prompt="hi")
