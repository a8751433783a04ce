"""What surrounds a run: the state of the pair, the settings in the link, downloads."""

from __future__ import annotations

import asyncio
import html
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from cactus.trace import Trace
from cactus.ui import notes, render, settings
from cactus.ui.desk import Desk, Loader, Runs

LOAD_SECONDS = 0.5


class PageHandlers:
    """The events that need no model."""

    def __init__(self, session: Runs, loader: Loader, desk: Desk) -> None:
        self.session = session
        self.loader = loader
        self.desk = desk

    async def watch(self, pair: str) -> AsyncIterator[str]:
        """The state of the pair, until nothing is being loaded."""
        while self.loader.busy:
            yield notes.pair_note(pair, self.session.states(), self.loader)
            await asyncio.sleep(LOAD_SECONDS)
        yield notes.pair_note(pair, self.session.states(), self.loader)

    def pair_note(self, pair: str) -> str:
        """The state of the pair now."""
        return notes.pair_note(pair, self.session.states(), self.loader)

    def restore(self, request: gr.Request) -> list[Any]:
        """The settings of the link the page was opened with; bad ones are ignored, and said to be."""
        query = dict(request.query_params or {})
        values, complaints = settings.from_query(query, [state.name for state in self.session.states()])
        if complaints:
            gr.Warning("Ignored in the link: " + html.escape("; ".join(complaints)), title="Link")
        return [gr.update(value=values[key]) if key in values else gr.skip() for key in settings.control_keys()]

    def choose(self, name: str) -> list[Any]:
        """The note of a method, and which methods' own controls are to be seen."""
        shown = [gr.update(visible=method.name == name) for method in settings.methods().values() if method.parameters]
        return [notes.method_note(name), *shown]

    def share(self, *row: Any) -> str:
        """Tell the page to put the settings into its address and onto the clipboard."""
        values = settings.as_values(row)
        if len(values["prompt"] or "") > settings.MAX_LINK_TEXT:
            gr.Warning(f"The prompt is longer than {settings.MAX_LINK_TEXT:,} characters and is left out of the link.")
        return _errand(kind="link", query=settings.to_query(values))

    def trace_file(self, request: gr.Request) -> Any:
        """Tell the page to save the trace."""
        trace = self._trace(request)
        return gr.skip() if trace is None else _errand(kind="save", name="trace.json", text=trace.to_json())

    def table_file(self, request: gr.Request) -> Any:
        """Tell the page to save the table."""
        trace = self._trace(request)
        return gr.skip() if trace is None else _errand(kind="save", name="tokens.csv", text=render.to_csv(trace))

    def _trace(self, request: gr.Request) -> Trace | None:
        trace = self.desk.visit(request.session_hash).show.trace
        if trace is None:
            gr.Warning("Nothing to save yet: run something first.")
        return trace


def new_seed() -> int:
    """For the dice."""
    return secrets.randbelow(1_000_000)


def _errand(**what: Any) -> str:
    """Something for the page to do once; the number makes two equal errands differ."""
    return json.dumps({"errand": secrets.token_hex(8), **what}).replace("<", "\\u003c")
