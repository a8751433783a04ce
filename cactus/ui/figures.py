"""How our figures look: colours, and the parts the four plots share. Knows no record."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

# Mid-tones that keep 3:1 on white and on near-black; the page colours text and grid to its theme.
GREEN, ORANGE, BLUE, RED, GREY, VIOLET = "#2c9c5d", "#d9730d", "#3f83f0", "#e0474c", "#858b94", "#8f6ae0"


def line(name: str, color: str, width: float, dash: str, hover: str) -> go.Scatter:
    return go.Scatter(
        x=[], y=[], name=name, mode="lines", line={"color": color, "width": width, "dash": dash},
        hovertemplate=hover + "<extra></extra>",
    )  # fmt: skip


def dots(name: str, color: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        x=[], y=[], name=name, mode="markers", marker={"color": color, "symbol": symbol, "size": 5},
        hovertemplate="token %{x}: %{y:.3g} nats<extra></extra>",
    )  # fmt: skip


def remark(figure: go.Figure, text: str) -> None:
    figure.add_annotation(text=text, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")


def drawing(figure: str, points: Mapping[int, Mapping[str, Any]]) -> str:
    """A whole figure as lines for the page: bare, then its points. The first line makes it a new one."""
    fresh = json.dumps({"drawing": secrets.token_hex(6)})
    return f'{fresh}\n{{"figure":{figure}}}\n{json.dumps({"replace": points}, allow_nan=False)}\n'


def bare(traces: Sequence[Any], title: str, x_title: str, y_title: str) -> go.Figure:
    figure = go.Figure(list(traces))
    figure.update_layout(
        template="none",
        title={
            "text": title,
            "x": 0,
            "xref": "paper",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 5},
            "font": {"size": 12.5},
        },
        font={"size": 10.5},
        margin={"l": 52, "r": 10, "t": 38, "b": 33},
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 10}},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
    )
    # At least ten rounds or tokens wide, so that the first ticks are whole numbers.
    figure.update_xaxes(
        autorangeoptions={"include": [0, 10], "clipmin": 0},
        title={"text": x_title, "standoff": 2, "font": {"size": 11}},
        zeroline=False,
        automargin=False,
    )
    return figure.update_yaxes(
        title={"text": y_title, "standoff": 3, "font": {"size": 11}}, zeroline=False, automargin=False
    )
