"""Progress bars of the benchmark: lively on a terminal, a line a minute in a log."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

STYLE = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


def bar(total: int, done: int = 0) -> Any:
    """A bar on stderr, to be used in a `with` block."""
    pause = 0.2 if sys.stderr.isatty() else 60.0
    return tqdm(total=total, initial=done, bar_format=STYLE, mininterval=pause, maxinterval=pause)
