"""When the wished pair cannot be had, another one stands in, and the visitor is told.

The wish is not forgotten: whoever chooses it again has it tried again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from cactus.errors import UnavailableError
from cactus.pairs.state import PairState
from cactus.request import RunRequest
from cactus.session import STAND_IN_PAIR, LiveRun, Progress
from cactus.ui.desk import Starts

log = logging.getLogger(__name__)


def start(session: Starts, wanted: RunRequest, stop: threading.Event, report: Progress) -> LiveRun:
    """The run that is wanted, or the same with the pair that stands in. Its trace tells which."""
    try:
        return session.start(wanted, stop=stop, progress=report)
    except UnavailableError as error:
        if wanted.pair == STAND_IN_PAIR or stop.is_set():
            raise
        log.warning("%s cannot be had: %s", wanted.pair, error)
        report(None, f"{wanted.pair} cannot be had; loading {STAND_IN_PAIR} in its place")
        return session.start(replace(wanted, pair=STAND_IN_PAIR), stop=stop, progress=report)


def substitute(pair: object, states: Sequence[PairState]) -> str | None:
    """The pair to choose instead of one that could not be had; None where that one can be, or nothing stands in."""
    wished = _find(pair, states)
    stand_in = _find(STAND_IN_PAIR, states)
    if wished is None or wished.available or stand_in is None or not stand_in.available or wished is stand_in:
        return None
    return stand_in.name


def sentence(missed: str, states: Sequence[PairState]) -> str:
    """For the visitor: that `missed` could not be had, and what was used instead."""
    wished, stand_in = _find(missed, states), _find(STAND_IN_PAIR, states)
    label, instead = (state.label if state else name for state, name in ((wished, missed), (stand_in, STAND_IN_PAIR)))
    return f"{label} cannot be had here, so {instead} stands in."


def missed(states: Sequence[PairState]) -> list[PairState]:
    """The pairs that were tried and could not be had."""
    return [state for state in states if not state.available]


def _find(name: object, states: Sequence[PairState]) -> PairState | None:
    return next((state for state in states if state.name == name), None)
