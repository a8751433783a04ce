"""The components of the page by what they are for, and how the ones drawn by our own scripts are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from cactus.ui import settings, theme


@dataclass
class Parts:
    """controls: what can be set, by key. groups: the rows of each method's own controls. shown: what a run fills
    (text, tiles, plots). other: buttons and notes.
    """

    controls: dict[str, Any] = field(default_factory=dict)
    groups: list[gr.Row] = field(default_factory=list)
    shown: list[gr.HTML] = field(default_factory=list)
    other: dict[str, Any] = field(default_factory=dict)

    def row(self) -> list[Any]:
        """All controls in the order in which their values travel."""
        return [self.controls[key] for key in settings.control_keys()]


def widget(
    kind: str,
    elem_id: str,
    value: str = "",
    template: str = "",
    server: tuple[Callable[..., Any], ...] = (),
    event: str = "",
) -> gr.HTML:
    """An element that `Cactus.<kind>` of our scripts fills from its value, which is data and never markup.

    The template is a constant of ours: text must not go into one, as it would be executed. `server`: functions that
    the script may call by name. `event`: an event of the element that the script may trigger, with data.
    """
    more = f", (data) => trigger('{event}', data)" if event else ""
    return gr.HTML(
        value,
        elem_id=elem_id,
        elem_classes=["widget", f"widget-{kind}"],
        html_template=template or "<div></div>",
        js_on_load=f"Cactus.{kind}(element, props, watch{', server' if server else ''}{more})",
        server_functions=list(server) or None,
        apply_default_css=False,
    )


def markup(name: str) -> str:
    """A piece of static HTML from the assets."""
    return (theme.ASSETS / name).read_text(encoding="utf-8")
