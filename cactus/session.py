"""Runs: loads pairs, checks requests, holds the one model lock, ties models to decoding.

One `Session` per process. The only place that joins models and decoding; knows nothing of pages or terminals.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch

from cactus.acceptance import RULES, Rule, make_rule
from cactus.decoding import Run, decode
from cactus.errors import CactusError, UnavailableError
from cactus.interfaces import Prompt
from cactus.pairs import DEFAULT_PAIR, PAIRS, POCKET_PAIR, Pair, PairSpec, find_pair
from cactus.sampling import SamplingParams
from cactus.settings import (
    DEFAULT_DRAFT_TOKENS,
    MAX_SEED,
    DraftLength,
    check_draft_length,
    check_stops,
    check_text,
    check_whole,
)
from cactus.trace import Round, StopReason, Trace
from cactus.weights.source import Progress, silent

VERIFIER_ONLY = "ar"
METHODS = (VERIFIER_ONLY, *RULES)
MAX_NEW_TOKENS = 2048
MAX_PROMPT_CHARACTERS = 100_000
BASELINE_STEPS = 8
MAX_SECONDS = 300.0
STAND_IN_PAIR = POCKET_PAIR
"""What the page uses when the wished pair cannot be had: its weights are part of the installation."""


@dataclass(frozen=True)
class PairState:
    """What is shown of a pair: registry name, label, and one-line facts. `needs` is empty when nothing is missing.

    examples: of prompts that suit it, a file of the assets.
    """

    name: str
    label: str
    description: str
    size: str
    device: str
    loaded: bool
    available: bool
    needs: str
    examples: str = "examples.json"


@dataclass(frozen=True)
class RunRequest:
    """All settings of one run. `ValueError` names the first bad value and what is allowed.

    method: a name in `RULES`, or "ar" for the verifier alone (then `params` and `num_draft_tokens` are not used).
    """

    pair: str = DEFAULT_PAIR
    method: str = "cactus"
    params: Mapping[str, Any] = field(default_factory=dict)
    num_draft_tokens: DraftLength = DEFAULT_DRAFT_TOKENS
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_new_tokens: int = 128
    seed: int | None = None
    prompt: Prompt = ""
    system: str = ""
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        find_pair(self.pair)
        if self.method not in METHODS:
            raise CactusError(f"method is {self.method!r}; {', '.join(METHODS)} are allowed")
        check_draft_length(self.num_draft_tokens)
        check_whole("max_new_tokens", self.max_new_tokens, 1, MAX_NEW_TOKENS)
        if self.seed is not None:
            check_whole("seed", self.seed, 0, MAX_SEED)
        self._check_prompt()
        check_stops(self.stop)
        _ = self.rule  # its parameters are checked by making it

    @property
    def rule(self) -> Rule | None:
        """The acceptance rule, None for the verifier alone."""
        return None if self.method == VERIFIER_ONLY else make_rule(self.method, **self.params)

    def _check_prompt(self) -> None:
        if isinstance(self.prompt, str) and not self.prompt.strip():
            raise CactusError("the prompt is empty; write at least one word")
        length = sum(map(len, self._texts()))
        if length > MAX_PROMPT_CHARACTERS:
            raise CactusError(
                f"prompt and system prompt have {length:,} characters; at most {MAX_PROMPT_CHARACTERS:,} are allowed"
            )
        for text in self._texts():
            check_text(text)

    def _texts(self) -> list[str]:
        if isinstance(self.prompt, str):
            return [self.system, self.prompt]
        contents = [item.get("content") for item in self.prompt if isinstance(item, dict)]
        return [self.system, *(content for content in contents if isinstance(content, str))]


class LiveRun:
    """A run in progress: iterate for rounds; leaving the `with` block frees the model, whatever happened."""

    def __init__(self, run: Run, release: Callable[[], None]) -> None:
        self._run = run
        self._release = release

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._run.close()
        finally:
            self._release()

    def __iter__(self) -> Iterator[Round]:
        return iter(self._run)

    @property
    def trace(self) -> Trace:
        """The trace so far; before the first round: settings, prompt and baseline."""
        return self._run.trace

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run ended, None while it goes on."""
        return self._run.stop_reason


class Session:
    """Keeps one pair loaded and lets one run at a time use it.

    `load_pair`: how a registry entry becomes a pair (tests put small models here). `max_seconds`: a run ends then.
    """

    def __init__(
        self,
        device: str = "auto",
        dtype: str = "auto",
        max_seconds: float = MAX_SECONDS,
        load_pair: Callable[[PairSpec, Progress], Pair] | None = None,
    ) -> None:
        self._load_pair = load_pair or (lambda spec, progress: spec.load(device, dtype, progress))
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._pair: Pair | None = None
        self._failures: dict[str, str] = {}

    def states(self) -> list[PairState]:
        """All pairs of the registry as they stand."""
        return [self._state(spec) for spec in PAIRS.values()]

    def load(self, name: str, progress: Progress | None = None) -> Pair:
        """The pair of this name, loaded if it is not; another one is dropped first. Waits for a run in progress."""
        spec = find_pair(name)
        with self._lock:
            return self._ensure_loaded(spec, progress or silent)

    def start(
        self, request: RunRequest, *, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> LiveRun:
        """Start a run: waits for its turn, loads the pair if need be, reads the prompt and times the baseline.

        The caller must leave the returned `LiveRun` as a context manager: it holds the model until then. `stop` is
        looked at before every round and every chunk of the prompt.
        """
        report, stopped = progress or silent, stop or threading.Event()
        self._wait_for_turn(stopped, report)
        try:
            pair = self._ensure_loaded(find_pair(request.pair), report)
            report(None, "reading the prompt and timing the verifier alone")
            run = self._run(pair, request, stopped)
            run.prefill()
        except BaseException:
            self._lock.release()
            raise
        return LiveRun(run, self._lock.release)

    def _run(self, pair: Pair, request: RunRequest, stopped: threading.Event) -> Run:
        rule = request.rule
        return decode(
            pair,
            request.prompt,
            rule,
            request.num_draft_tokens if rule is not None else 0,
            request.sampling,
            request.max_new_tokens,
            request.seed,
            system=request.system,
            stop=request.stop,
            baseline_steps=BASELINE_STEPS,
            max_seconds=self._max_seconds,
            should_stop=stopped.is_set,
        )

    def _wait_for_turn(self, stopped: threading.Event, report: Progress) -> None:
        while not self._lock.acquire(timeout=0.2):
            report(None, "waiting for another run to finish")
            if stopped.is_set():
                raise CactusError("stopped while waiting for another run to finish")

    def _ensure_loaded(self, spec: PairSpec, report: Progress) -> Pair:
        """With the lock held."""
        if self._pair is not None and self._pair.name == spec.name:
            return self._pair
        self._drop()
        try:
            self._pair = self._load_pair(spec, report)
        except CactusError as error:
            self._failures[spec.name] = str(error)
            raise
        except (MemoryError, torch.OutOfMemoryError) as error:
            self._failures[spec.name] = f"not enough memory for {spec.label}"
            raise UnavailableError(f"not enough memory to load {spec.label}; choose a smaller pair") from error
        self._failures.pop(spec.name, None)
        return self._pair

    def _drop(self) -> None:
        """Let go of the loaded pair and give its memory back."""
        if self._pair is None:
            return
        self._pair = None
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()

    def _state(self, spec: PairSpec) -> PairState:
        pair = self._pair
        loaded = pair is not None and pair.name == spec.name
        sizes = spec.verifier.size_bytes / 1e6, spec.drafter.size_bytes / 1e6
        failure = self._failures.get(spec.name, "")
        size = spec.verifier.download_bytes / 1e6
        here = loaded or spec.verifier.is_kept
        download = "" if here else f"its weights are downloaded first ({size:.0f} MB or more)"
        return PairState(
            name=spec.name,
            label=spec.label,
            description=f"{spec.verifier.name} with {spec.drafter.label}",
            size=f"{sizes[0]:.0f} MB verifier + {sizes[1]:.0f} MB drafter",
            device=f"{pair.device}, {pair.dtype}" if loaded and pair is not None else "",
            loaded=loaded,
            available=not failure,
            needs=failure or download,
            examples=spec.examples,
        )
