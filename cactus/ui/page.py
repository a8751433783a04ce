"""What surrounds a run: the state of the pair, the settings in the link, downloads."""

from __future__ import annotations

import secrets
from typing import Any

import gradio as gr

from cactus.trace import Trace
from cactus.ui import examples, notes, pair_list, render, settings, stand_in
from cactus.ui.desk import Desk, Loader, Runs
from cactus.ui.notes import errand, say

RECOMMENDED = ("draft_length", "temperature", "top_p", "top_k")
NOTHING_TO_SAVE = "Nothing to save yet: run something first."


class PageHandlers:
    """The events that need no model."""

    def __init__(self, session: Runs, loader: Loader, desk: Desk) -> None:
        self.session = session
        self.loader = loader
        self.desk = desk

    def ready(self, pair: str) -> tuple[Any, ...]:
        """The link's settings are there: runs may begin. Then as `watch`."""
        return gr.update(interactive=True), *self.watch(pair)

    def watch(self, pair: str) -> tuple[str, gr.Timer, Any]:
        """The state of the pair, whether to look again soon (while something is being loaded), and the pair to choose
        instead if this one cannot be had.
        """
        if self.loader.busy:
            return self.pair_note(pair), gr.Timer(active=True), gr.skip()
        note, instead = self.settle(pair)
        return note, gr.Timer(active=False), instead

    def settle(self, pair: str) -> tuple[str, Any]:
        """The note of the pair, or of the one that stands in for it; and that one, to be chosen."""
        instead = stand_in.substitute(pair, self.session.states())
        return self.pair_note(instead or pair), gr.update(value=instead) if instead else gr.skip()

    def pair_note(self, pair: str) -> str:
        """The state of the pair now."""
        return notes.pair_note(pair, self.session.states(), self.loader)

    def chosen(self, pair: str) -> tuple[str, gr.Dataset]:
        """The state of the pair, and prompts that suit it."""
        return self.pair_note(pair), gr.Dataset(**examples.choice(pair, self.session.states()))

    def restore(self, request: gr.Request) -> list[Any]:
        """The settings of the link the page was opened with; bad ones are ignored, and said to be."""
        query, states = dict(request.query_params or {}), self.session.states()
        values, complaints = settings.from_query(query, dict.fromkeys((state.name for state in states), ""))
        note = say("Ignored in the link: " + "; ".join(complaints)) if complaints else gr.skip()
        updates = {key: gr.update(value=value) for key, value in values.items()}
        updates["pair"] = gr.update(choices=pair_list.choices(states)) | updates.get("pair", {})
        return [*(updates.get(key, gr.skip()) for key in settings.control_keys()), note]

    def recommend(self, pair: str, before: str, *values: Any) -> list[Any]:
        """The settings that the chosen pair brings with it, and that pair, to be remembered."""
        given = dict(zip(RECOMMENDED, values, strict=True))
        found = pair_list.recommended(self.session.states(), pair, before, given)
        return [*(gr.update(value=found[key]) if key in found else gr.skip() for key in RECOMMENDED), pair]

    def choose(self, name: str) -> list[Any]:
        """The note of a method, and which methods' own controls are to be seen."""
        shown = [gr.update(visible=method.name == name) for method in settings.methods().values() if method.parameters]
        return [notes.method_note(name), *shown]

    def share(self, *row: Any) -> str:
        """Tell the page to put the settings into its address and onto the clipboard."""
        values = settings.as_values(row)
        long = [key for key in settings.TEXTS if len(values[key] or "") > settings.MAX_LINK_TEXT]
        note = f"Too long for a link, so left out of it: {', '.join(long)}." if long else ""
        return errand(kind="link", query=settings.to_query(values), note=note)

    def trace_file(self, request: gr.Request) -> str:
        """Tell the page to save the trace."""
        trace = self._trace(request)
        return errand(kind="save", name="trace.json", text=trace.to_json()) if trace else say(NOTHING_TO_SAVE)

    def table_file(self, request: gr.Request) -> str:
        """Tell the page to save the table."""
        trace = self._trace(request)
        return errand(kind="save", name="tokens.csv", text=render.to_csv(trace)) if trace else say(NOTHING_TO_SAVE)

    def _trace(self, request: gr.Request) -> Trace | None:
        return self.desk.visit(request.session_hash).show.trace


def new_seed() -> int:
    """For the dice."""
    return secrets.randbelow(1_000_000)
