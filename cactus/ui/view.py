"""What the page shows of one run: lines that only grow, so that each update sends what is new and no more.

Knows rounds and traces, not where they come from: a run in progress and a replayed file look the same.
"""

from __future__ import annotations

import secrets

from cactus.metrics import Metrics, Tally, series_point
from cactus.trace import Baseline, Round, Trace
from cactus.ui import plots, render, tiles

Shown = tuple[str, str, str, str, str, str]
"""Values of: tokens, tiles, and the four plots."""


class View:
    """The text, the tiles and the plots of a run so far. One addition costs as much as the round is long."""

    def __init__(self, header: Trace) -> None:
        self.header = header
        self.tally = _tally(header)
        self._tokens = [render.run_line(secrets.token_hex(8), header)]
        self._plots = [kind(header) for kind in plots.KINDS]
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
        for round_ in trace.rounds[self.tally.rounds :]:
            self.add(round_)
        if trace.baseline != self.header.baseline:
            self._rebase(trace)
        self._tokens.append(render.end_line(render.summary(trace, self.metrics)))

    def _rebase(self, trace: Trace) -> None:
        """Tiles and plots anew, on the baseline of `trace`."""
        fresh = View(trace)
        for round_ in trace.rounds:
            fresh.add(round_)
        self.header, self.tally = trace, fresh.tally
        self._plots, self._waiting = fresh._plots, fresh._waiting
        for lines, again in zip(self._lines, fresh._lines, strict=True):
            lines += again

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


def blank() -> Shown:
    """What is shown before a run: no text, dashes, empty plots."""
    return _blank("")


def failed(message: str) -> Shown:
    """What is shown of a run that never began."""
    first = render.line({"run": secrets.token_hex(8), "labels": render.LABELS, "facts": ""})
    return _blank(first + render.end_line(message, failed=True))


def _blank(tokens: str) -> Shown:
    empty = Trace(
        pair="", method="", params={}, num_draft_tokens=5, sampling={}, max_new_tokens=0, seed=0, device="", dtype="",
        versions={}, prompt="", prompt_tokens=0, baseline=Baseline(seconds_per_token=1.0, steps=1, how=""),
    )  # fmt: skip
    figures = [plots.figure_line(kind(empty)) for kind in plots.KINDS]
    return (tokens, tiles.to_json(tiles.tiles(Tally().metrics(), drafts=True)), *figures)  # type: ignore[return-value]
