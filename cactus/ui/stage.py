"""The right side: what a run shows."""

from __future__ import annotations

import gradio as gr

from cactus.ui.parts import Parts, markup, widget
from cactus.ui.replay import NO_RECORD, SPEEDS, recordings
from cactus.ui.view import blank

PLOTS = ("plot-accepted", "plot-speedup", "plot-positions", "plot-divergence")


def build_stage(parts: Parts) -> None:
    """Tiles, text, what can be done with a run, plots."""
    text, figures, *plots = blank()
    tiles = widget("tiles", "tiles", figures)
    tokens = widget("tokens", "tokens", text, markup("stream.html"), event="pick")
    _tools(parts)
    with gr.Row(elem_id="plots"):
        drawn = [widget("plot", elem_id, value) for elem_id, value in zip(PLOTS, plots, strict=True)]
    parts.shown = [tokens, tiles, *drawn]
    parts.other["errand"] = widget("errand", "errand")


def _tools(parts: Parts) -> None:
    with gr.Row(elem_id="tools"):
        parts.other["share"] = gr.Button("Copy link", size="sm", min_width=60, elem_id="share")
        parts.other["trace"] = gr.Button("Save trace", size="sm", min_width=60, elem_id="save-trace")
        parts.other["table"] = gr.Button("Save table", size="sm", min_width=60, elem_id="save-table")
        parts.other["open"] = gr.UploadButton(
            "Load trace", file_types=[".json"], size="sm", min_width=60, elem_id="load-trace"
        )
        parts.other["again"] = gr.Button("Replay", size="sm", min_width=60, elem_id="replay")
        parts.other["speed"] = gr.Dropdown(
            list(SPEEDS), value=next(iter(SPEEDS)), show_label=False, container=False, filterable=False,
            min_width=100, elem_id="speed", label="Replay speed",
        )  # fmt: skip
        runs = recordings()
        parts.other["recorded"] = gr.Dropdown(
            [("Recorded runs…", NO_RECORD), *runs], value=NO_RECORD, show_label=False, container=False,
            filterable=False, min_width=150, elem_id="recorded", label="Recorded runs", visible=bool(runs),
        )  # fmt: skip
        parts.other["step"] = gr.Button("Next round", size="sm", min_width=60, elem_id="step", visible=False)
