"""What the page shows of one run: lines that only grow, so that each update sends what is new and no more.

Knows rounds and traces, not where they come from: a run in progress and a replayed file look the same.
"""

from __future__ import annotations

import secrets

from cactus.metrics import Metrics, Tally, series_point
from cactus.trace import Round, Trace
from cactus.ui import plots, render, tiles

Shown = tuple[str, str, str, str, str, str]
"""Values of: tokens, tiles, and the four plots."""
NOTHING: Shown = ("", "", "", "", "", "")


class View:
    """The text, the tiles and the plots of a run so far. One addition costs as much as the round is long."""

    def __init__(self, header: Trace) -> None:
        self.header = header
        self.tally = _tally(header)
        self._tokens = [render.run_line(secrets.token_hex(8), header)]
        self._plots = [kind(header) for kind in plots.KINDS]  # type: ignore[call-arg]
        self._lines = [[plots.figure_line(plot)] for plot in self._plots]
        self._waiting: list[list[plots.Points]] = [[] for _ in self._plots]
        self._joined: list[str] = [""] * (1 + len(self._plots))

    @property
    def metrics(self) -> Metrics:
        """The figures so far."""
        return self.tally.metrics()

    def add(self, round_: Round) -> None:
        """Show one more round."""
        self.tally.add(round_)
        point = series_point(self.tally, round_)
        self._tokens.append(render.round_line(round_))
        for plot, waiting in zip(self._plots, self._waiting, strict=True):
            waiting.append(plot.points(round_, point, self.tally.positions))

    def finish(self, trace: Trace) -> None:
        """Show how the run ended. A baseline that was measured again counts for the whole run."""
        if trace.baseline != self.header.baseline:
            self.header, self.tally = trace, _tally(trace)
            self._waiting = [[] for _ in self._plots]
            self._plots = [kind(trace) for kind in plots.KINDS]  # type: ignore[call-arg]
            tokens = self._tokens[:]
            for round_ in trace.rounds:
                self.add(round_)
            self._tokens = tokens
            for plot, lines in zip(self._plots, self._lines, strict=True):
                lines.append(plots.figure_line(plot))
        self._tokens.append(render.end_line(render.summary(trace, self.metrics)))

    def fail(self, message: str) -> None:
        """Show why the run ended early."""
        self._tokens.append(render.end_line(message, failed=True))

    def shown(self, with_plots: bool = True) -> Shown:
        """The values to send; without the plots their last values are repeated, which costs nothing to send."""
        if with_plots:
            self._draw()
        drafts = self.header.num_draft_tokens > 0
        texts = [self._join(index, lines) for index, lines in enumerate([self._tokens, *self._lines])]
        return (texts[0], tiles.to_json(tiles.tiles(self.metrics, drafts)), *texts[1:])  # type: ignore[return-value]

    def _draw(self) -> None:
        for plot, lines, waiting in zip(self._plots, self._lines, self._waiting, strict=True):
            if waiting:
                lines.append(plots.points_line(plot, plots.merge(plot, waiting)))
                waiting.clear()

    def _join(self, index: int, lines: list[str]) -> str:
        self._joined[index] += "".join(lines)
        lines.clear()
        return self._joined[index]


def _tally(header: Trace) -> Tally:
    return Tally(header.baseline.seconds_per_token if header.baseline else None)


def failed(message: str) -> Shown:
    """What is shown of a run that never began."""
    first = render.line({"run": secrets.token_hex(8), "labels": render.LABELS, "facts": ""})
    return (first + render.end_line(message, failed=True), *NOTHING[1:])
