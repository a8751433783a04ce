"""What the page shows of one lane of a comparison: its text as lines that only grow, and its figures so far."""

from __future__ import annotations

import secrets

from cactus import compare
from cactus.metrics import Tally
from cactus.trace import Round, Trace
from cactus.ui import render
from cactus.ui.notes import note
from cactus.ui.thoughts import Thoughts


class LaneView:
    """One lane. `text` and `figures` are values of its components."""

    def __init__(self) -> None:
        self.text = render.run_line(secrets.token_hex(8))
        self.figures = note("waits for its turn")
        self._tally = Tally()
        self._label = ""
        self._thoughts = Thoughts()

    def wait(self, share: float | None, message: str) -> None:
        """Say what is being done before the lane can begin."""
        self.text += render.wait_line(share, message)

    def begin(self, header: Trace) -> None:
        """The settings of the lane."""
        self._label = compare.label(header)
        self.text += render.header_line(header)
        self.figures = note(self._label, "running")

    def add(self, round_: Round) -> None:
        """One more round."""
        self._tally.add(round_)
        self.text += render.round_line(round_, self._thoughts.marks(round_))
        metrics = self._tally.metrics()
        length = f" · AL {metrics.accepted_length:.2f}" if metrics.accepted_length is not None else ""
        rate = f"{metrics.tokens_per_second:.1f} tokens/s" if metrics.tokens_per_second is not None else ""
        self.figures = note(self._label, f"{metrics.generated_tokens} tokens · {rate}{length}")

    def finish(self, trace: Trace, parting: compare.Parting | None = None) -> None:
        """How the lane ended, and the token at which its text leaves another's."""
        parts = parting.tokens if parting and not parting.same and parting.tokens < len(trace.tokens) else None
        self.text += render.end_line(render.ENDINGS.get(trace.stop_reason or "", "unfinished"), parts=parts)

    def failed(self, message: str) -> None:
        """Why the lane ended early."""
        self.text += render.end_line(message, failed=True)
