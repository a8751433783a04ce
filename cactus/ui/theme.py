"""Colours, fonts and the files that the browser loads. Everything comes from this server; nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
import plotly

from cactus.paths import ASSETS

PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
STYLES = ASSETS / "app.css"
SCRIPTS = tuple(ASSETS / name for name in ("tokens.js", "plots.js", "tables.js", "page.js", "lab.js"))


def theme() -> gr.themes.Base:
    """A calm, compact theme on the system's fonts."""
    base = gr.themes.Base(
        primary_hue="emerald",
        neutral_hue="stone",
        spacing_size="sm",
        radius_size="sm",
        text_size="sm",
        font=("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"),
        font_mono=("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Liberation Mono", "monospace"),
    )
    return base.set(
        body_background_fill="#f7f6f3",
        body_background_fill_dark="#121413",
        block_background_fill="#ffffff",
        block_background_fill_dark="#1b1e1c",
        block_border_color="#e5e2db",
        block_border_color_dark="#2e3330",
        border_color_primary="#e5e2db",
        border_color_primary_dark="#2e3330",
        input_background_fill="#fbfaf8",
        input_background_fill_dark="#141716",
        body_text_color="#1e2421",
        body_text_color_dark="#e7ebe8",
        body_text_color_subdued="#5c655f",
        body_text_color_subdued_dark="#a3ada7",
        block_info_text_color="#5c655f",
        block_info_text_color_dark="#a3ada7",
        block_label_text_color="#1e2421",
        block_label_text_color_dark="#e7ebe8",
        block_title_text_color="#1e2421",
        block_title_text_color_dark="#e7ebe8",
        block_shadow="none",
        button_primary_background_fill="#17713f",
        button_primary_background_fill_hover="#115c32",
        button_primary_background_fill_dark="#1d7f48",
        button_primary_background_fill_hover_dark="#17713f",
        button_primary_text_color="#ffffff",
        slider_color="#17713f",
        slider_color_dark="#3fbf78",
    )


def head() -> str:
    """What goes into the page's head: plotly from this machine, and our own scripts."""
    plotly_tag = f'<script defer src="gradio_api/file={PLOTLY_JS.as_posix()}"></script>'
    own = "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    return f"{plotly_tag}\n<script>\n{own}\n</script>"
