"""What the page asks of a session, met by a vLLM server: as many runs at once as there are visitors.

The server has the models and batches the runs; here each is a stream of pieces, told as rounds.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from cactus.acceptance import RULES, Rule
from cactus.errors import CactusError
from cactus.limits import Limits
from cactus.pairs.added import ADDED
from cactus.pairs.state import PairState
from cactus.request import RunRequest
from cactus.server.client import Piece, Served, Server, ServerError
from cactus.server.pair import served_pair
from cactus.server.rounds import Arrived, Counts, Teller, recount, spread
from cactus.settings import fresh_seed
from cactus.trace import Baseline, Round, StopReason, Timings, Trace
from cactus.versions import __version__
from cactus.weights.source import Progress, silent

NOT_TOLD = "not told"
BASELINE_TOKENS = 16
REASONS: dict[str, StopReason] = {"stop": "stop", "length": "length"}


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


class ServerRun:
    """A run in progress: iterate for rounds; leaving the `with` block ends it on the server too."""

    def __init__(
        self,
        server: Server,
        served: Served,
        request: RunRequest,
        stop: threading.Event,
        max_seconds: float,
        baseline: Baseline | None = None,
    ) -> None:
        self.stop_reason: StopReason | None = None
        self._request, self._served, self._stop, self._max_seconds = request, served, stop, max_seconds
        self._seed = fresh_seed() if request.seed is None else request.seed
        self._server, self._baseline = server, baseline
        self._pieces = server.answer(*_asked(request, served, self._seed), stop)
        self._teller = Teller(served.num_draft_tokens)
        self._arrived: list[Arrived] = []
        self._rounds: list[Round] = []
        self._first: Piece | None = None
        self._prompt_tokens = 0
        self._began = self._last = time.perf_counter()
        self._prefill = 0.0

    def begin(self) -> ServerRun:
        """Wait for the first token."""
        for piece in self._pieces:
            self._prompt_tokens = piece.prompt_tokens or self._prompt_tokens
            if piece.ids:
                self._first, self._last = piece, piece.at
                break
        self._prefill = self._last - self._began
        return self

    def __enter__(self) -> ServerRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pieces.close()  # type: ignore[attr-defined]
        self.stop_reason = self.stop_reason or ("error" if isinstance(error, CactusError) else "cancelled")

    def __iter__(self) -> Iterator[Round]:
        counts: Counts | None = None
        shown = 0
        for piece in self._coming():
            counts = piece.counts or counts
            arrived = spread(piece.ids, piece.names, piece.text, self._seconds(piece))
            self._arrived += arrived
            self._rounds += self._teller.piece(arrived)
            if piece.finish:
                self.stop_reason = self._reason(piece.finish)
            if self.stop_reason:  # how the last round ended is certain with the counts alone, which come behind it
                continue
            yield from self._rounds[shown:]
            shown = len(self._rounds)
            if self._out_of_time():
                self.stop_reason = "time"
                break
        self._recount(counts)
        yield from self._rounds[shown:]

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        request, rule = self._request, self._request.rule
        return Trace(
            pair=request.pair,
            method=request.method,
            params=dict(rule.params) if rule else {},
            num_draft_tokens=self._served.num_draft_tokens,
            sampling=vars(request.sampling),
            max_new_tokens=request.max_new_tokens,
            seed=self._seed,
            device=self._server.url,
            dtype=NOT_TOLD,
            versions={"cactus": __version__, "vllm": self._served.version, "model": self._served.model},
            prompt=request.prompt if isinstance(request.prompt, str) else tuple(request.prompt),  # type: ignore[arg-type]
            raw=request.raw,
            prompt_tokens=self._prompt_tokens,
            rounds=tuple(self._rounds),
            stop_reason=self.stop_reason,
            baseline=self._baseline,
            timings=Timings(prefill_seconds=self._prefill, total_seconds=time.perf_counter() - self._began),
        )

    def _coming(self) -> Iterator[Piece]:
        if self._first is not None:
            yield self._first
        yield from self._pieces

    def _seconds(self, piece: Piece) -> float:
        """Since the piece before it; those of the first are the prompt's."""
        seconds, self._last = piece.at - self._last, piece.at
        return seconds

    def _reason(self, finish: str) -> StopReason:
        full = finish == "length" and len(self._arrived) < self._request.max_new_tokens
        return "context" if full else REASONS.get(finish, "error")

    def _out_of_time(self) -> bool:
        return time.perf_counter() - self._began > self._max_seconds

    def _recount(self, counts: Counts | None) -> None:
        """The rounds as the server counted them, once the answer is whole."""
        if counts is not None and self._arrived and (rounds := recount(self._arrived, counts)) is not None:
            self._rounds = rounds


def _check_rule(rule: Rule | None) -> None:
    if rule is not None and rule.beyond_sampling:
        able = ", ".join(name for name, other in RULES.items() if not other.beyond_sampling)
        raise CactusError(f"{rule.name} cannot run on a server: {rule.beyond_sampling}; {able} can")


def _no_baseline(server: Server) -> Server:
    raise CactusError(
        f"{server.url} always speculates: the verifier alone needs a second server without it (--baseline-url)"
    )


def _asked(request: RunRequest, served: Served, seed: int) -> tuple[str, dict[str, Any]]:
    """The path and body of the request that asks for this run."""
    sampling, rule = request.sampling, request.rule
    body: dict[str, Any] = {
        "model": served.model, "max_tokens": request.max_new_tokens, "seed": seed, "stop": list(request.stop),
        "include_stop_str_in_output": True, "temperature": sampling.temperature, "top_p": sampling.top_p,
        "top_k": sampling.top_k, "min_p": sampling.min_p, "repetition_penalty": sampling.repetition_penalty,
        "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
    }  # fmt: skip
    if rule is not None:
        own = {f"cactus_{name}": value for name, value in rule.params.items()}
        body["vllm_xargs"] = {"cactus_method": rule.name} | own
    prompt = request.prompt
    if request.raw or not (isinstance(prompt, str) or (prompt and isinstance(prompt[0], dict))):
        return "/v1/completions", body | {"prompt": prompt if isinstance(prompt, str) else list(prompt), "logprobs": 0}
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    system = [{"role": "system", "content": request.system}] if request.system.strip() else []
    return "/v1/chat/completions", body | {"messages": system + turns, "logprobs": True, "top_logprobs": 0}
