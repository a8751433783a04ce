"""The pairs to choose from, those that cannot be used here marked, and a table of all with what each needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradio as gr

from cactus.pairs.state import PairState
from cactus.request import RunRequest
from cactus.ui.desk import Runs
from cactus.ui.events import AT_ONCE
from cactus.ui.notes import pair_label, sentence
from cactus.ui.parts import Parts, widget
from cactus.ui.table import cell, table, to_json

HEADINGS = ("Pair", "Models", "Size", "Licence", "Here", "What it needs")
KINDS = {"ready": "good", "can download": ""}  # of a state's cell; any other stands in the way


def choices(states: Sequence[PairState]) -> list[tuple[str, str]]:
    """For the list of pairs."""
    return [(pair_label(state), state.name) for state in states]


def first(states: Sequence[PairState]) -> str:
    """The name of the pair to begin with: the usual one, where it is among these."""
    names = [state.name for state in states]
    return RunRequest.pair if RunRequest.pair in names else names[0]


def reasons(states: Sequence[PairState], brief: bool = False) -> dict[str, str]:
    """By name, why a pair cannot be used here; empty where it can. brief: where the pair's note is in sight."""
    return {state.name: "" if state.usable else _reason(state, brief) for state in states}


def recommended(states: Sequence[PairState], pair: str, before: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that choosing `pair` brings: its own, but not for those that were set by hand meanwhile.

    before: the pair chosen until then; a value that is not its own was set by hand.
    """
    known = {state.name: state.settings for state in states}
    own, former = known.get(pair, {}), known.get(before, {})
    return {key: own[key] for key, value in values.items() if key in own and former.get(key, value) == value}


def listing(states: Sequence[PairState]) -> str:
    """The table of all pairs, as the page draws it."""
    return to_json(table(HEADINGS, [_row(state) for state in states]))


def build_pair_list(parts: Parts, session: Runs) -> None:
    """Folded away below the Playground."""
    with gr.Accordion("All model pairs", open=False, elem_id="all-pairs", elem_classes="card") as fold:
        parts.other["all-pairs"] = widget("table", "pairs-table", listing(session.states()))
    fold.expand(lambda: listing(session.states()), None, parts.other["all-pairs"], **AT_ONCE)


def _row(state: PairState) -> list[Any]:
    here = "loaded" if state.loaded else state.state
    sizes = state.size.replace(" verifier", "").replace(" drafter", "")
    kind = KINDS.get(state.state, "bad") if state.available else "bad"
    return [state.label, state.description, sizes, state.licence, cell(here, kind=kind), _needs(state)]


def _needs(state: PairState) -> str:
    return ". ".join(sentence(part.rstrip(".")) for part in (state.needs, state.notes) if part)


def _reason(state: PairState, brief: bool) -> str:
    if brief:
        return f"{state.state.capitalize()}, see below"
    return f"{state.label} cannot be used here ({state.state}): {state.needs}. Choose another pair."
