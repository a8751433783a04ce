"""One run on a server: the request that asks for it, its pieces as rounds, and its trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from cactus.errors import CactusError
from cactus.request import RunRequest
from cactus.server.client import Piece, Served, Server
from cactus.server.rounds import Arrived, Counts, Teller, recount, spread
from cactus.settings import fresh_seed
from cactus.trace import Baseline, Round, StopReason, Timings, Trace
from cactus.versions import __version__

NOT_TOLD = "not told"
REASONS: dict[str, StopReason] = {"stop": "stop", "length": "length"}


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
