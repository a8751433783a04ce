"""What the page shows of one run: lines that only grow, so that each update sends what is new and no more.

Knows rounds and traces, not where they come from: a run in progress and a replayed file look the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from cactus.interfaces import Prompt
from cactus.metrics import Metrics, Tally, series_point
from cactus.settings import DEFAULT_DRAFT_TOKENS
from cactus.trace import Baseline, Round, Trace
from cactus.ui import plots, render, tiles
from cactus.ui.chat import shown_turns
from cactus.ui.thoughts import Thoughts

Shown = tuple[str, str, str, str, str, str]
"""Values of: tokens, tiles, and the four plots."""

NO_RUN = Trace(
    pair="", method="", params={}, num_draft_tokens=DEFAULT_DRAFT_TOKENS, sampling={}, max_new_tokens=0, seed=0,
    device="", dtype="", versions={}, prompt="", prompt_tokens=0,
    baseline=Baseline(seconds_per_token=1.0, steps=1, how="none"),
)  # fmt: skip
"""Stands for the run that is not there yet: its plots are empty, and say nothing more."""


class View:
    """The text, the tiles and the plots of a run so far. One addition costs as much as the round is long."""

    def __init__(self, header: Trace | None = None) -> None:
        self._run = secrets.token_hex(8)
        self._tokens: list[str] = []
        self._joined: list[str] = [""] * (1 + len(plots.KINDS))
        self._set(header or NO_RUN)
        self._begun = False
        self._remark = ""
        self._thoughts = Thoughts()
        if header:
            self.asked(header.prompt, header.raw)
            self.begin(header)

    def _set(self, header: Trace) -> None:
        """Tiles and plots of a run with these settings, without rounds."""
        self.header = header
        self._added: list[Round] = []
        self.tally = Tally(header.baseline.seconds_per_token if header.baseline else None)
        self._plots = [kind.of(header) for kind in plots.KINDS]
        self._lines = [[plots.figure_line(plot)] for plot in self._plots]
        self._waiting: list[list[plots.Points]] = [[] for _ in self._plots]

    def asked(self, prompt: Prompt, raw: bool) -> None:
        """The turns that stand before the answer, where there are any."""
        if turns := shown_turns(prompt, raw):
            self._say(render.turns_line(turns))

    def wait(self, share: float | None, message: str) -> None:
        """Say what is being done before the run can begin."""
        self._say(render.wait_line(share, message))

    def begin(self, header: Trace) -> None:
        """The prompt was read: these are the settings, and the baseline if it was measured before."""
        self._set(header)
        self._say(render.header_line(header))

    def remark(self, text: str) -> None:
        """Something the visitor must know about this run; it is said with how the run ended."""
        self._remark = text

    def _say(self, line: str) -> None:
        if not self._begun:
            self._tokens.append(render.run_line(self._run))
            self._begun = True
        self._tokens.append(line)

    @property
    def metrics(self) -> Metrics:
        """The figures so far."""
        return self.tally.metrics()

    def add(self, round_: Round) -> None:
        """Show one more round."""
        self._added.append(round_)
        self._tokens.append(render.round_line(round_, self._thoughts.marks(round_)))
        self._count(round_, range(len(self._plots)))

    def _count(self, round_: Round, drawn: Iterable[int]) -> None:
        """Into the figures, and onto the plots of these numbers."""
        self.tally.add(round_)
        point = series_point(self.tally, round_)
        for index in drawn:
            self._waiting[index].append(self._plots[index].points(round_, point, self.tally.positions))

    def finish(self, trace: Trace) -> None:
        """Show how the run ended. A baseline that was measured again counts for the whole run; so do rounds that were
        counted again.
        """
        if tuple(self._added) != trace.rounds[: len(self._added)]:
            afresh = View(trace)
            afresh.remark(self._remark)
            vars(self).update(vars(afresh))
        for round_ in trace.rounds[self.tally.rounds :]:
            self.add(round_)
        if trace.baseline != self.header.baseline:
            self._measured_again(trace)
        self._say(render.end_line(" ".join(filter(None, [self._remark, render.summary(trace, self.metrics)]))))

    def _measured_again(self, trace: Trace) -> None:
        """What shows the baseline is made anew."""
        self.header = trace
        self.tally = Tally(trace.baseline.seconds_per_token if trace.baseline else None)
        stale = [index for index, plot in enumerate(self._plots) if plot.shows_baseline]
        for index in stale:
            self._plots[index] = plots.KINDS[index].of(trace)
            self._lines[index].append(plots.figure_line(self._plots[index]))
            self._waiting[index].clear()
        for round_ in trace.rounds:
            self._count(round_, stale)
        self._say(render.header_line(trace))

    def failed(self, message: str) -> Shown:
        """What to show of a run that ended early, and why it did."""
        self._say(render.end_line(message, failed=True))
        return self.shown()

    def shown(self, with_plots: bool = True) -> Shown:
        """The values to send; without the plots their last values are repeated, which costs nothing to send."""
        if with_plots:
            self._draw()
        drafts = self.header.draft_limit > 0
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


def blank() -> Shown:
    """What is shown before a run: no text, dashes, empty plots."""
    return View().shown()
