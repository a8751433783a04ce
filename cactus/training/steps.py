"""The log of a training run, one JSON record a line, and its picture.

Knows nothing of models.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from cactus.errors import CactusError
from cactus.files import append_line, write_whole
from cactus.training.train import Progress

STEPS_FILE = "steps.jsonl"
_EVERY = 5  # steps a record
_SMOOTH = 10  # records


class StepLog:
    """Appends to `path`; each record has the stage, the step, its loss, acceptance, rate and tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rewind(self, stage: str, step: int) -> None:
        """Forget what a stopped run logged of `stage` behind its last checkpoint."""
        kept = [record for record in self.records() if record["stage"] != stage or record["step"] <= step]
        if self.path.exists():
            write_whole(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    def add(self, stage: str, progress: Progress) -> None:
        """Every few steps a record."""
        if progress.step % _EVERY:
            return
        record = {"stage": stage, **progress._asdict()}
        append_line(self.path, json.dumps(record))

    def records(self) -> list[dict[str, Any]]:
        """All records; a last line that was cut short is left out. `CactusError` names a damaged one."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        return [self._record(line, number) for number, line in enumerate(lines, 1)]

    def _record(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
            Progress(**{name: record[name] for name in Progress._fields})
            return record | {"stage": str(record["stage"])}
        except (ValueError, TypeError, KeyError):
            raise CactusError(f"{self.path}, line {number} is no record of a step; remove the file") from None


def draw(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Loss and acceptance over the steps, one pair of plots a stage, as a page that needs no network."""
    stages: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        stages[record["stage"]].append(record)
    if not stages:
        return
    titles = [f"{stage}: {what}" for stage in stages for what in ("loss", "acceptance")]
    figure = make_subplots(rows=len(stages), cols=2, subplot_titles=titles)
    for row, stage in enumerate(stages.values(), 1):
        steps = [record["step"] for record in stage]
        for column, what in enumerate(("loss", "acceptance"), 1):
            values = _smooth([record[what] for record in stage])
            figure.add_trace(go.Scatter(x=steps, y=values, mode="lines", showlegend=False), row=row, col=column)
            figure.update_xaxes(title="step", row=row, col=column)
    figure.update_layout(
        template="plotly_white", height=360 * len(stages), title=f"Training (mean of {_SMOOTH} records)"
    )
    write_whole(path, figure.to_html(include_plotlyjs=True))


def _smooth(values: Sequence[float]) -> list[float]:
    """Running means over the last records."""
    windows = (values[max(0, i + 1 - _SMOOTH) : i + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
