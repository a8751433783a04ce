"""Tables as data for the page: a cell is text, or text with a bar, a kind and a title. Never markup."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from cactus.ui.render import number

Cell = str | dict[str, Any]


def cell(text: str, kind: str = "", title: str = "", share: float | None = None) -> Cell:
    """A cell; `share` in [0, 1] draws a bar behind the text, `kind` names its look, `title` is told on hover."""
    given = {"kind": kind, "title": title, "share": share}
    return {"text": text, **{name: value for name, value in given.items() if value not in ("", None)}}


def bar(prob: float) -> Cell:
    """A probability with a bar of its size."""
    return cell(
        number(round(prob, 12) + 0.0) or "", share=round(min(1.0, max(0.0, prob)), 4) if math.isfinite(prob) else None
    )


def to_json(shown: dict[str, Any]) -> str:
    """A table as the value of a component, inert in HTML."""
    return json.dumps(shown, ensure_ascii=False).replace("<", "\\u003c")


def table(head: Sequence[Cell], rows: Sequence[Sequence[Cell]], note: str = "") -> dict[str, Any]:
    """A table as the page draws it; the first column names the row."""
    return {"head": list(head), "rows": [list(row) for row in rows], "note": note}
