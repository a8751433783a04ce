"""When the page is updated during a run: often enough to read along, and never for more than a small part of the time.

The models wait while an update is made and handed over, so what an update took decides when the next one may come.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

TEXT_SECONDS = 0.1  # the text is sent at most this often,
PLOT_SECONDS = 0.25  # and the plots this often
SHARE = 0.02  # of the time goes into updates
LONGEST = 0.5  # seconds without one, however slow they are


class Cadence:
    """One run's updates. seconds: between two of them, where they are cheap."""

    def __init__(self, seconds: float = TEXT_SECONDS) -> None:
        self._seconds = seconds
        self._text_due = self._plots_due = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for an update."""
        return time.monotonic() >= self._text_due

    @contextmanager
    def update(self) -> Iterator[bool]:
        """Around an update, from its making until the run goes on; says whether the plots are due as well."""
        began = time.monotonic()
        with_plots = began >= self._plots_due
        if with_plots:
            self._plots_due = began + PLOT_SECONDS
        try:
            yield with_plots
        finally:
            ended = time.monotonic()
            self._text_due = ended + min(max(self._seconds, (ended - began) / SHARE), LONGEST)
