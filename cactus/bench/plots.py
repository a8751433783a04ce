"""The plots of a report, as plotly figures and as one HTML page. Draws what the rows say and computes nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import plotly
import plotly.graph_objects as go

from cactus.bench.contest import OURS
from cactus.bench.report import Report
from cactus.bench.summary import SHARES, Row, Spread

COLORS = ("#2c9c5d", "#3f83f0", "#d9730d", "#8f6ae0", "#e0474c", "#858b94", "#b59a00", "#2aa6a1", "#c94f9b", "#6b7b3a")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon", "pentagon", "bowtie")
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
WIDTH, HEIGHT = 900, 520


def figures(report: Report) -> dict[str, go.Figure]:
    """File name without ending → figure; plots that would be empty are left out."""
    rows = report.rows
    drafting = [row for row in rows if row.label.family == OURS and row.label.num_draft_tokens]
    made: dict[str, go.Figure] = {}
    if drafting:
        made["speedup"] = _over_length(drafting, "Speedup over the verifier alone", "speedup (×)", "speedup", True)
        made["accepted-length"] = _over_length(drafting, "Accepted length", "AL", "accepted_length", False)
        made["positions"] = _positions([row for row in drafting if row.best])
    if any(row.shares for row in rows):
        made["time"] = _shares([row for row in rows if row.shares])
    if any(row.kinds and row.label.num_draft_tokens != 0 for row in rows):
        made["kinds"] = _kinds([row for row in rows if row.best and row.kinds and row.label.num_draft_tokens != 0])
    if any(row.label.family != OURS for row in rows):
        made["libraries"] = _libraries([row for row in rows if row.best and row.wall_tokens_per_second])
    return made


def _figure(title: str, x_title: str, y_title: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white", title={"text": title, "x": 0.02}, width=WIDTH, height=HEIGHT,
        legend={"orientation": "h", "y": -0.16, "yanchor": "top"}, margin={"l": 70, "r": 30, "t": 60, "b": 60},
        font={"family": "system-ui, sans-serif", "size": 14},
    )  # fmt: skip
    figure.update_xaxes(title=x_title)
    return figure.update_yaxes(title=y_title, rangemode="tozero")


def _bars(found: Sequence[Spread | None]) -> dict[str, object]:
    """Error bars from quartile to quartile."""
    above = [item.high - item.median if item else 0.0 for item in found]
    below = [item.median - item.low if item else 0.0 for item in found]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.2, "width": 4}


def _over_length(rows: Sequence[Row], title: str, y_title: str, attribute: str, is_speedup: bool) -> go.Figure:
    figure = _figure(f"{title}: medians over prompts, quartiles", "draft length m", y_title)
    for index, method in enumerate(dict.fromkeys(row.label.method for row in rows)):
        mine = [row for row in rows if row.label.method == method]
        lengths = [str(row.label.num_draft_tokens) for row in mine]
        found = [getattr(row, attribute) for row in mine]
        color = COLORS[index % len(COLORS)]
        marker = {"size": 9, "symbol": SYMBOLS[index % len(SYMBOLS)]}
        figure.add_scatter(
            x=lengths, y=[item.median if item else None for item in found], error_y=_bars(found), name=method,
            mode="lines+markers", line={"color": color}, marker=marker,
        )  # fmt: skip
        if is_speedup:
            ideal = [row.ideal_speedup.median if row.ideal_speedup else None for row in mine]
            dashes = {"color": color, "dash": "dash", "width": 1.2}
            figure.add_scatter(x=lengths, y=ideal, name=f"{method}, ideal (formula)", mode="lines", line=dashes)
    if is_speedup:
        figure.add_hline(y=1.0, line={"dash": "dot", "color": COLORS[4], "width": 1}, annotation_text="verifier alone")
    categories = list(dict.fromkeys(str(row.label.num_draft_tokens) for row in rows))
    return figure.update_xaxes(type="category", categoryorder="array", categoryarray=categories)


def _positions(rows: Sequence[Row]) -> go.Figure:
    figure = _figure("Acceptance by draft position, of those judged there", "draft position", "accepted (share)")
    for index, row in enumerate(rows):
        figure.add_scatter(
            x=[count.position for count in row.positions], y=[count.acceptance_rate for count in row.positions],
            name=row.label.key, mode="lines+markers", line={"color": COLORS[index % len(COLORS)]},
            marker={"size": 9, "symbol": SYMBOLS[index % len(SYMBOLS)]},
        )  # fmt: skip
    figure.update_xaxes(dtick=1)
    return figure.update_yaxes(range=[0, 1.05], tickformat=".0%")


def _shares(rows: Sequence[Row]) -> go.Figure:
    figure = _figure("Where the time goes", "share of the time from prefill to end", "")
    names = [row.label.key for row in rows]
    for index, part in enumerate(SHARES):
        marker = {"color": COLORS[index], "pattern": {"shape": ("", "/", "x", ".")[index], "solidity": 0.2}}
        figure.add_bar(y=names, x=[row.shares[part] for row in rows], name=part, orientation="h", marker=marker)
    figure.update_layout(barmode="stack", height=max(HEIGHT, 150 + 26 * len(rows)), margin={"l": 230})
    figure.update_layout(legend={"y": -60 / max(HEIGHT, 150 + 26 * len(rows)), "traceorder": "normal"})
    figure.update_yaxes(autorange="reversed")
    return figure.update_xaxes(tickformat=".0%", range=[0, 1])


def _kinds(rows: Sequence[Row]) -> go.Figure:
    figure = _figure("Speedup by kind of prompt, each method at its best", "", "speedup (×)")
    for index, row in enumerate(rows):
        found = list(row.kinds.values())
        figure.add_bar(
            x=list(row.kinds), y=[item.median for item in found], error_y=_bars(found), name=row.label.key,
            marker={"color": COLORS[index % len(COLORS)]},
        )  # fmt: skip
    return figure


def _libraries(rows: Sequence[Row]) -> go.Figure:
    figure = _figure("Tokens per second, each method at its best", "wall tokens/s", "")
    found = [row.wall_tokens_per_second for row in rows]
    colors = [COLORS[0] if row.label.family == OURS else COLORS[5] for row in rows]
    figure.add_bar(
        y=[row.label.key for row in rows], x=[item.median if item else None for item in found], error_x=_bars(found),
        orientation="h", marker={"color": colors}, showlegend=False,
    )  # fmt: skip
    figure.update_layout(margin={"l": 330})
    return figure.update_yaxes(autorange="reversed")


def page(made: Mapping[str, go.Figure], title: str, script: str, buttons: bool = True) -> str:
    """One HTML page of all figures. `script`: the address of plotly.js; `buttons`: whether plots have their own."""
    config = {"displayModeBar": buttons, "displaylogo": False}
    pieces = [
        figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=config)
        for name, figure in made.items()
    ]
    missing = f"{Path(script).name} belongs beside this page; the plotly package has it."
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<script src="{html.escape(script)}"></script></head>\n<body style="margin:0">\n' + "\n".join(pieces) + "\n"
        f"<script>window.Plotly || document.body.prepend({json.dumps(missing)})</script></body></html>\n"
    )
