"""Time on a device whose work runs behind the program's back.

On CUDA a mark is an event in the queue of work: nothing waits for it, and once the work is done the time between two
marks is what the device took. On other accelerators a mark waits for the device; the CPU has nothing to wait for.
"""

from __future__ import annotations

import time
from itertools import pairwise

import torch


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class Clock:
    """Marks along one round. The first one is set when it is made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list[float | torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """A point in time, behind the work given so far."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self._marks.append(event)
            return
        wait(self.device)
        self._marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Between the marks. On CUDA the work before the last of them must be done."""
        return [
            begin.elapsed_time(end) / 1e3 if isinstance(begin, torch.cuda.Event) else end - begin  # type: ignore
            for begin, end in pairwise(self._marks)
        ]
