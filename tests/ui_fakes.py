"""Plausible traces and a session without a model, for the tests of the page."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from cactus.errors import UnavailableError
from cactus.limits import Limits
from cactus.pairs.state import PairState
from cactus.request import RunRequest
from cactus.session import STAND_IN_PAIR, Progress
from cactus.trace import Baseline, Round, Timings, Token, TopToken, Trace

NO_NETWORK = "the weights cannot be had. Tried the model hub: not reachable"
WORDS = (
    "A cactus keeps its water in a thick green stem , and its leaves have become spines . \n They lose less water "
    "than leaves do , they shade the skin , and they keep thirsty animals away . \n \n In spring it flowers ."
).split(" ")


def word(index: int) -> str:
    """The n-th piece of a text that reads like one."""
    piece = WORDS[index % len(WORDS)]
    return piece if piece in (",", ".", "\n") or index == 0 else " " + piece


def token(text: str, status: str, position: int, **fields: Any) -> Token:
    """A token with numbers that fit its status."""
    judged = status in ("accepted", "rejected")
    if judged and "accept_prob" not in fields:
        fields |= {"accept_prob": 0.9, "uniform": 0.3} if status == "accepted" else {"accept_prob": 0.2, "uniform": 0.7}
    drafted = judged or status == "discarded"
    numbers: dict[str, Any] = {"verifier_prob": 0.41, "entropy": 1.7}
    if drafted:
        numbers |= {"draft_prob": 0.62, "boosted_prob": 0.55}
    if judged:
        numbers |= {"kl": 0.12, "output_kl": 0.04}
    tops = tuple(TopToken(id=place, text=f" word{place}", prob=0.5 / (place + 1)) for place in range(5))
    numbers |= {"top_draft": tops if drafted else (), "top_verifier": tops}
    return Token(id=len(text) + 17, text=text, status=status, position=position, **(numbers | fields))


def make_round(index: int, accepted: int, drafted: int, position: int, chance: random.Random) -> Round:
    """`accepted` of `drafted` tokens pass; then a recovered or a bonus token."""
    tokens = []
    for place in range(accepted):
        limit = chance.uniform(0.4, 1.0)
        numbers = {"accept_prob": limit, "uniform": limit * chance.uniform(0, 0.99), "kl": chance.uniform(0, 0.4)}
        tokens.append(token(word(position + place), "accepted", position + place, **numbers))
    if accepted < drafted:
        tokens.append(token(" rather", "rejected", position + accepted, kl=chance.uniform(0, 0.5)))
        tokens += [token(" else", "discarded", position + place) for place in range(accepted + 1, drafted)]
    status = "sampled" if not drafted else "recovered" if accepted < drafted else "bonus"
    tokens.append(token(word(position + accepted), status, position + accepted))
    return Round(
        index=index, num_draft_tokens=drafted, accepted_length=accepted, draft_seconds=0.004 * drafted,
        verify_seconds=0.05, judge_seconds=0.002, tokens=tuple(tokens),
    )  # fmt: skip


def make_rounds(count: int, drafted: int, seed: int = 0) -> list[Round]:
    """Rounds of a run with acceptance about 0.75."""
    chance, rounds, position = random.Random(seed), [], 0
    for index in range(count):
        accepted = 0
        while accepted < drafted and chance.random() < 0.75:
            accepted += 1
        rounds.append(make_round(index, accepted, drafted, position, chance))
        position += len(rounds[-1].emitted)
    return rounds


def make_trace(count: int = 12, method: str = "cactus", drafted: int = 5, **changes: Any) -> Trace:
    """A whole run."""
    fields: dict[str, Any] = {
        "pair": "smollm2-135m", "method": method, "params": {"delta": 1.0} if method == "cactus" else {},
        "num_draft_tokens": drafted, "sampling": {"temperature": 0.7, "top_p": 1.0, "top_k": 0},
        "max_new_tokens": 128, "seed": 3, "device": "cpu", "dtype": "bfloat16", "versions": {"cactus": "test"},
        "prompt": "Explain a cactus.", "prompt_tokens": 9, "rounds": tuple(make_rounds(count, drafted)),
        "stop_reason": "length", "timings": Timings(prefill_seconds=0.2, baseline_seconds=0.4, total_seconds=3.0),
        "baseline": Baseline(seconds_per_token=0.045, steps=8, how="median of 8 single-token steps before the run"),
    }  # fmt: skip
    return Trace(**{**fields, **changes})


class FakeRun:
    """Rounds on a clock, in place of a model."""

    def __init__(self, trace: Trace, stop: threading.Event, pause: float, release: Any, fail_at: int | None) -> None:
        self._whole, self._stop, self._pause, self._release, self._fail_at = trace, stop, pause, release, fail_at
        self._done: list[Round] = []
        self._reason: str | None = None

    def __enter__(self) -> FakeRun:
        return self

    def __exit__(self, *error: object) -> None:
        self._reason = self._reason or "cancelled"
        self._release()

    def __iter__(self) -> Iterator[Round]:
        for round_ in self._whole.rounds:
            if self._stop.is_set():
                self._reason = "cancelled"
                return
            if round_.index == self._fail_at:
                raise RuntimeError("a fault")
            time.sleep(self._pause)
            self._done.append(round_)
            yield round_
        self._reason = "length"

    @property
    def trace(self) -> Trace:
        return self._whole.model_copy(update={"rounds": tuple(self._done), "stop_reason": self._reason})


class FakeSession:
    """What the page asks of a session, without a model. `runs` and `released` count starts and ends."""

    def __init__(
        self,
        pause: float = 0.0,
        load_seconds: float = 0.0,
        count: int = 12,
        error: str = "",
        fail_at: int | None = None,
    ) -> None:
        self.pause, self.load_seconds, self.count, self.error, self.fail_at = pause, load_seconds, count, error, fail_at
        self.runs = self.released = 0
        self.limits = Limits()
        self.requests: list[RunRequest] = []
        self.forgotten: list[str] = []
        self.loaded = False

    def states(self) -> list[PairState]:
        where = "cpu, bfloat16" if self.loaded else ""
        return [
            PairState("smollm2-135m", "SmolLM2 135M", "SmolLM2-135M-Instruct with a two-layer draft model",
                      "269 MB verifier + 14 MB drafter", where, self.loaded, True, ""),
            PairState("smollm2-135m-lookup", "SmolLM2 135M, prompt lookup", "SmolLM2-135M-Instruct with prompt lookup",
                      "269 MB verifier + 0 MB drafter", "", False, True, ""),
        ]  # fmt: skip

    def load(self, name: str, progress: Progress | None = None) -> None:
        for step in range(10):
            if progress:
                progress(step / 10, f"reading the verifier's weights, part {step + 1} of 10")
            time.sleep(self.load_seconds / 10)
        self.loaded = True

    def start(
        self, request: RunRequest, *, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> FakeRun:
        if self.error:
            raise ValueError(self.error)
        self.runs += 1
        self.requests.append(request)
        if not self.loaded:
            self.load(request.pair, progress)
        drafted = 0 if request.method == "ar" else request.num_draft_tokens
        prompt = request.prompt if isinstance(request.prompt, str) else tuple(request.prompt)
        trace = make_trace(
            self.count, request.method, drafted, params=dict(request.params), prompt=prompt, raw=request.raw
        )
        return FakeRun(trace, stop or threading.Event(), self.pause, self._release, self.fail_at)

    def seat(self) -> Any:
        return nullcontext(self)

    def forget(self, conversation: str) -> None:
        self.forgotten.append(conversation)

    def _release(self) -> None:
        self.released += 1


class Offline(FakeSession):
    """Only the pair that stands in can be had, until the network is back."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reachable, self.missed = False, ""

    def states(self) -> list[PairState]:
        first, *others = super().states()
        wish = replace(first, available=not self.missed, needs=self.missed)
        pocket = PairState(
            STAND_IN_PAIR, "Pocket", "tiny", "8 MB", "cpu", self.loaded, True, "", examples="examples-pocket.json"
        )
        return [wish, *others, pocket]

    def load(self, name: str, progress: Any = None) -> None:
        if name != STAND_IN_PAIR:
            self.missed = "" if self.reachable else NO_NETWORK
            if self.missed:
                raise UnavailableError(NO_NETWORK)
        super().load(name, progress)

    def start(self, request: RunRequest, **options: Any) -> Any:
        self.load(request.pair)
        run = super().start(request, **options)
        run._whole = run._whole.model_copy(update={"pair": request.pair})
        return run
