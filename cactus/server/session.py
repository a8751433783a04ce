"""What the page asks of a session, met by a vLLM server: as many runs at once as there are visitors.

The server has the models and batches the runs; here each is a stream of pieces, told as rounds.
"""

from __future__ import annotations

import statistics
import threading
from dataclasses import dataclass, replace
from typing import Any

from cactus.acceptance import RULES, Rule
from cactus.errors import CactusError
from cactus.limits import Limits
from cactus.pairs.added import ADDED
from cactus.pairs.state import PairState
from cactus.request import RunRequest
from cactus.server.client import Served, Server, ServerError
from cactus.server.pair import served_pair
from cactus.server.run import ServerRun
from cactus.trace import Baseline
from cactus.weights.source import Progress, silent

BASELINE_TOKENS = 16


class ServerSession:
    """The runs of one server. `baseline`: a server with the verifier alone, to measure against and to run it on.

    A server that is not there yet is looked for again with every run.
    """

    def __init__(self, server: Server, baseline: Server | None = None, limits: Limits | None = None) -> None:
        self.limits = limits or Limits(max_runs=32)
        self._server, self._baseline = server, baseline
        self._served: Served | None = None
        self._fault = "not asked yet"
        try:
            self.look()
        except ServerError:
            pass  # the page says it, and asks again
        self._pair = ADDED.add(served_pair(self._served.model if self._served else server.url, server.url))

    def look(self) -> Served:
        """What the server serves, asked again where it did not answer before."""
        if self._served is None:
            try:
                self._served, self._fault = self._server.look(), ""
            except ServerError as error:
                self._fault = str(error)
                raise
        return self._served

    def states(self) -> list[PairState]:
        """The one pair there is."""
        served = self._served
        drafted = f"m = {served.num_draft_tokens}, fixed by the server" if served else "m is the server's"
        return [
            PairState(
                name=self._pair.name,
                label=self._pair.label,
                description=f"{self._pair.verifier.name} with the server's own draft model",
                size=drafted,
                device=f"{self._server.url}, vLLM {served.version}" if served else "",
                loaded=served is not None,
                available=not self._fault,
                needs=self._fault,
                settings={"draft_length": served.num_draft_tokens} if served else {},
            )
        ]

    def load(self, name: str, progress: Progress | None = None) -> Served:
        """Look whether the server is there. `CactusError` for a pair that is not its own."""
        self._check_pair(name)
        (progress or silent)(None, f"asking {self._server.url}")
        return self.look()

    def seat(self) -> ServerSeat:
        """For several runs, one after another; nobody waits for it."""
        return ServerSeat(self)

    def forget(self, conversation: str) -> None:
        """The server keeps prefixes by itself."""

    def start(
        self,
        request: RunRequest,
        *,
        stop: threading.Event | None = None,
        progress: Progress | None = None,
        measured: bool = True,
    ) -> ServerRun:
        """Start a run and wait for its first token. `ValueError` says what is wrong with the request or the server.

        measured: whether the verifier alone is timed first, where there is a server for it.
        """
        request.check(self.limits)
        self._check_pair(request.pair)
        _check_rule(request.rule)
        served, server = self.look(), self._server
        if request.rule is None:
            server = self._baseline or _no_baseline(self._server)
            served = server.look(speculates=False)
        stopped, report = stop or threading.Event(), progress or silent
        baseline = self._measured(request, stopped, report) if measured else None
        report(None, f"waiting for {server.url} to read the prompt")
        return ServerRun(server, served, request, stopped, self.limits.max_seconds, baseline).begin()

    def _check_pair(self, name: str) -> None:
        if name != self._pair.name:
            raise CactusError(f"pair is {name!r}; only {self._pair.name!r}, on {self._server.url}, is allowed here")

    def _measured(self, request: RunRequest, stop: threading.Event, report: Progress) -> Baseline | None:
        """The verifier alone, on a server of its own; None where there is none."""
        if self._baseline is None:
            return None
        report(None, f"timing the verifier alone on {self._baseline.url}")
        alone = replace(request, method="ar", params={}, max_new_tokens=BASELINE_TOKENS, stop=())
        served = self._baseline.look(speculates=False)
        with ServerRun(self._baseline, served, alone, stop, self.limits.max_seconds).begin() as run:
            seconds = [round_.seconds for round_ in run if not round_.of_prompt]
        if not seconds or (middle := statistics.median(seconds)) <= 0:
            return None
        how = f"median of {len(seconds)} steps of the same prompt on {self._baseline.url}, without speculation"
        return Baseline(seconds_per_token=middle, steps=len(seconds), how=how)


@dataclass(frozen=True)
class ServerSeat:
    """A place that costs nothing: a server takes as many runs as come."""

    session: ServerSession

    def start(self, request: RunRequest, **options: Any) -> ServerRun:
        """As `ServerSession.start`."""
        return self.session.start(request, **options)

    def leave(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> ServerSeat:
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()


def _check_rule(rule: Rule | None) -> None:
    if rule is not None and rule.beyond_sampling:
        able = ", ".join(name for name, other in RULES.items() if not other.beyond_sampling)
        raise CactusError(f"{rule.name} cannot run on a server: {rule.beyond_sampling}; {able} can")


def _no_baseline(server: Server) -> Server:
    raise CactusError(
        f"{server.url} always speculates: the verifier alone needs a second server without it (--baseline-url)"
    )
