"""What the page is told besides runs: a pair's state, a method's formula, something to do or to say once."""

from __future__ import annotations

import json
import secrets
from typing import Any

from cactus.pairs.state import PairState
from cactus.session import STAND_IN_PAIR
from cactus.ui import stand_in
from cactus.ui.desk import Loader
from cactus.ui.settings import methods


def note(*lines: str, share: float | None = None, busy: bool = False, bad: bool = False) -> str:
    """Lines of plain text; with a progress bar while `busy` (`share` is None where the end is not known)."""
    record = {"lines": [line for line in lines if line], "share": share, "busy": busy, "bad": bad}
    return json.dumps(record, ensure_ascii=False).replace("<", "\\u003c")


def method_note(name: object) -> str:
    """What a method does and its formula."""
    method = methods().get(name) if isinstance(name, str) else None
    return note(method.summary, method.formula) if method else note("unknown method", bad=True)


def pair_note(name: object, states: list[PairState], loader: Loader) -> str:
    """What a pair is, where it runs, whether it is loaded and what it needs."""
    state = next((state for state in states if state.name == name), None)
    if state is None:
        return note("unknown pair", bad=True)
    if loader.busy and loader.name == name:
        return note(f"{state.size} · {loader.message}", share=loader.share, busy=True)
    lines = [f"{state.size} · {_where(state)}", sentence(state.needs or state.notes)]
    if state.name == STAND_IN_PAIR:
        lines += [line for lost in stand_in.missed(states) for line in _missed(lost, states)]
    return note(*lines, bad=not state.available or not state.usable or len(lines) > 2)


def sentence(text: str) -> str:
    """With a capital letter at its head."""
    return text[:1].upper() + text[1:]


def _where(state: PairState) -> str:
    if not state.usable:
        return state.state
    return f"loaded on {state.device}" if state.loaded else "not loaded yet: Run loads it"


def _missed(lost: PairState, states: list[PairState]) -> tuple[str, str]:
    """Why a pair stands in for `lost`, and how to try that one again."""
    what = f"{stand_in.sentence(lost.name, states)} To try again, choose it and press Run."
    return what, f"Why: {_briefly(lost.needs)}"


def _briefly(reason: str) -> str:
    """Its first two sentences; the pair's own note has the rest, which is advice."""
    return ". ".join(reason.split(". ")[:2])


def pair_label(state: PairState) -> str:
    """A pair in the list, and whether it can be used here."""
    return state.label if state.usable else f"⊘ {state.label} ({state.state})"


def errand(**what: Any) -> str:
    """Something for the page to do once; the number makes two equal errands differ."""
    return json.dumps({"errand": secrets.token_hex(8), **what}).replace("<", "\\u003c")


def say(text: str) -> str:
    """A line for the visitor, as plain text."""
    return errand(kind="say", note=text)
