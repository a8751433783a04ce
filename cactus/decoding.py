"""The decoding generator: rounds of one run until it stops, and the trace they make.

Knows the loop, records and the protocols of `interfaces`; nothing of any model library, of pages or of threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from cactus.acceptance import Rule
from cactus.errors import CactusError, PromptError
from cactus.interfaces import ModelPair, Prompt, TextCodec, Turn
from cactus.loop import Loop
from cactus.pace import Paying, Steady
from cactus.prefix import Caches, Prefix, start
from cactus.records import TokenWriter
from cactus.sampling import SamplingParams
from cactus.settings import AUTO, DEFAULT_DRAFT_TOKENS, MAX_DRAFT_TOKENS, DraftLength, Settings, check_stops, fresh_seed
from cactus.text import StopStrings, TextStream
from cactus.trace import Baseline, Round, StopReason, Timings, Trace
from cactus.versions import versions

BASELINE_HOW = "the quicker median of its single-token steps before and after the run"


class Run:
    """An iterator of rounds. `trace` is the record so far; `stop_reason` is None until the run has ended."""

    def __init__(
        self,
        pair: ModelPair,
        prompt: Prompt,
        settings: Settings,
        system: str = "",
        should_stop: Callable[[], bool] | None = None,
        ends: Callable[[int], bool] | None = None,
        turn: Turn = nullcontext,
        raw: bool = False,
        reuse: Prefix | None = None,
    ) -> None:
        self.settings = settings
        self.rounds: list[Round] = []
        self.stop_reason: StopReason | None = None
        self._pair = pair
        self._prompt = prompt
        self._raw = raw
        self._reuse = reuse
        self._asked_to_stop = should_stop or (lambda: False)
        self._take_turn = turn
        self._waited = 0.0
        tokens = _encode(pair.codec, prompt, system, raw)
        caches = start(pair, tokens, settings.num_draft_tokens != 0, reuse)
        self._loop = _new_loop(pair, tokens, settings, caches)
        self._loop.writer.ends = ends
        self._prompt_tokens = len(tokens)
        self._cached_tokens = caches.verifier.length
        self._baseline: list[list[float]] = []
        self._timings = Timings()
        self._began: float | None = None
        self._rounds = self._run()

    def __iter__(self) -> Iterator[Round]:
        return self

    def __next__(self) -> Round:
        return next(self._rounds)

    def close(self) -> None:
        """End the run here; further rounds are not made."""
        self._rounds.close()
        self.stop_reason = self.stop_reason or "cancelled"
        self._keep()

    def prefill(self) -> None:
        """Read the prompt and time the baseline now rather than with the first round."""
        if self._began is not None:
            return
        self._began = self._clock()
        if not self._loop.prefill(self._should_stop, self._turn):
            self.stop_reason = self._cancel_reason()
        self._timings = Timings(prefill_seconds=self._clock() - self._began)
        self._measure_baseline()

    @property
    def trace(self) -> Trace:
        """The trace so far."""
        settings, rule = self.settings, self.settings.rule
        return Trace(
            pair=self._pair.name,
            method=rule.name if rule else "ar",
            params=dict(rule.params) if rule else {},
            num_draft_tokens=settings.num_draft_tokens,
            sampling=vars(settings.sampling),
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
            device=str(self._loop.verifier.device),
            dtype=self._pair.dtype,
            versions=versions() | _held(self._pair),
            prompt=self._prompt if isinstance(self._prompt, str) else tuple(self._prompt),  # type: ignore[arg-type]
            raw=self._raw,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            rounds=tuple(self.rounds),
            stop_reason=self.stop_reason,
            baseline=self._baseline_record(),
            timings=self._timings,
        )

    def _run(self) -> Generator[Round]:
        try:
            self.prefill()
            while self.stop_reason is None and (round_ := self._step()) is not None:
                yield round_
            self._measure_baseline()
        except GeneratorExit:
            self.stop_reason = self.stop_reason or "cancelled"
            raise
        except BaseException as error:
            self._reuse = None  # broken off in the midst of a step: from such caches nobody can go on
            self.stop_reason = (self.stop_reason or "cancelled") if isinstance(error, KeyboardInterrupt) else "error"
            raise
        finally:
            self._finish()

    def _step(self) -> Round | None:
        """The next round, in a turn; None where the run is to stop instead."""
        with self._turn():
            if self._should_stop():
                self.stop_reason = self._cancel_reason()
                return None
            round_ = self._loop.step()
        self.rounds.append(round_)
        self.stop_reason = self._loop.writer.stop_reason
        return round_

    @contextmanager
    def _turn(self) -> Iterator[object]:
        asked = time.perf_counter()
        with self._take_turn() as mine:
            self._waited += time.perf_counter() - asked
            yield mine

    def _clock(self) -> float:
        """Seconds of a clock that stands still while others have their turns."""
        return time.perf_counter() - self._waited

    def _should_stop(self) -> bool:
        return self._asked_to_stop() or self._out_of_time()

    def _out_of_time(self) -> bool:
        limit, began = self.settings.max_seconds, self._began
        return limit is not None and began is not None and self._clock() - began > limit

    def _cancel_reason(self) -> StopReason:
        return "cancelled" if self._asked_to_stop() else "time"

    def _measure_baseline(self) -> None:
        if not self.settings.baseline_steps or self.stop_reason in ("cancelled", "time"):
            return
        started = self._clock()
        steps = self._loop.time_single_steps(self.settings.baseline_steps, self._should_stop, self._turn)
        self._baseline += [steps] if steps else []
        spent = self._timings.baseline_seconds + self._clock() - started
        self._timings = self._timings.model_copy(update={"baseline_seconds": spent})

    def _baseline_record(self) -> Baseline | None:
        if not self._baseline:
            return None
        # The quicker one: what slows only one of them, such as a page that draws, must not make a run look fast.
        seconds = min(map(statistics.median, self._baseline))
        return Baseline(seconds_per_token=seconds, steps=sum(map(len, self._baseline)), how=BASELINE_HOW)

    def _finish(self) -> None:
        own = self._clock() - self._began if self._began is not None else 0.0
        spent = {"total_seconds": own + self._waited, "waiting_seconds": self._waited}
        self._timings = self._timings.model_copy(update=spent)
        self._keep()

    def _keep(self) -> None:
        """Leave the caches to the next turn of the conversation."""
        reuse, self._reuse = self._reuse, None
        if reuse is None:
            return
        with self._turn() as mine:
            if mine is False:  # asked to stop while others have the models: not worth waiting for
                return
            self._loop.settle()
        reuse.put(self._pair, Caches(self._loop.verifier, self._loop.drafter, self._loop.committed))


def _encode(codec: TextCodec, prompt: Prompt, system: str, raw: bool) -> list[int]:
    if not raw:
        return codec.encode_prompt(prompt, system)
    if not isinstance(prompt, str) or system.strip():
        raise PromptError("a raw prompt is text, taken as it is; messages and a system prompt need a chat template")
    return codec.encode_text(prompt)


def _new_loop(pair: ModelPair, prompt: list[int], settings: Settings, caches: Caches) -> Loop:
    device = caches.verifier.device
    # Two streams of random numbers, so that the draft's length never shifts the verdicts' numbers.
    draft_seed, judge_seed = 2 * settings.seed, 2 * settings.seed + 1
    return Loop(
        verifier=caches.verifier,
        drafter=caches.drafter,
        writer=_new_writer(pair, settings, caches.verifier.context_length, len(prompt)),
        num_draft_tokens=MAX_DRAFT_TOKENS if settings.num_draft_tokens == AUTO else settings.num_draft_tokens,
        pace=Paying(pair.costs, settings.rule) if settings.num_draft_tokens == AUTO else Steady(),
        sampling=settings.sampling,
        vocab_size=pair.codec.vocab_size,
        committed=list(prompt),
        draft_generator=torch.Generator(device).manual_seed(draft_seed),
        judge_generator=torch.Generator(device).manual_seed(judge_seed),
        rule=settings.rule,
    )


def _new_writer(pair: ModelPair, settings: Settings, context_length: int, prompt_tokens: int) -> TokenWriter:
    room = context_length - prompt_tokens
    if room < 1:
        raise PromptError(
            f"the prompt has {prompt_tokens:,} tokens; the verifier reads {context_length:,} in all, so at most"
            f" {context_length - 1:,} are allowed"
        )
    codec = pair.codec
    return TokenWriter(
        stream=TextStream(codec.decode),
        stops=StopStrings(settings.stop),
        eos_ids=codec.eos_ids,
        max_new_tokens=min(settings.max_new_tokens, room),
        describe=codec.describe,
        limit_reason="length" if settings.max_new_tokens <= room else "context",
    )


def _held(pair: ModelPair) -> dict[str, str]:
    """Which weights computed the numbers, in what form the drafter's, if it has any, were held, on which caches."""
    held = {"draft weights": pair.draft_weights, "caches": pair.caches}
    return {"weights": pair.weights} | {name: value for name, value in held.items() if value}


def decode(
    pair: ModelPair,
    prompt: Prompt,
    rule: Rule | None = None,
    num_draft_tokens: DraftLength | None = None,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int | None = None,
    *,
    system: str = "",
    stop: Sequence[str] = (),
    baseline_steps: int = 0,
    max_seconds: float | None = None,
    should_stop: Callable[[], bool] | None = None,
    ends: Callable[[int], bool] | None = None,
    turn: Turn = nullcontext,
    raw: bool = False,
    reuse: Prefix | None = None,
) -> Run:
    """Generate text, round by round.

    prompt: text, chat messages or token ids. rule: an acceptance rule with `num_draft_tokens` (default 5) tokens a
    round, or None for the verifier alone. seed: 0..2³²−1; None draws a fresh one (see `Run.trace.seed`). stop: the
    text ends behind the first of these strings. baseline_steps: time so many single-token steps of the verifier
    before and after the run. max_seconds: end the run then; waiting for turns does not count. should_stop: asked
    before every round. ends: told every emitted token, in order; where it says true, the text ends behind that token.
    turn: entered around every use of the models, so that several runs can take turns (`turns.Line`); the time waited
    for it is in `timings.waiting_seconds` and the total alone. raw: the prompt, a text, is not put into the chat
    template. reuse: the place of a conversation; what this prompt begins with and the turn before has read is not read
    again, and the next turn finds this run's caches there.

    Returns an iterator of `Round`; its `trace` is the record so far. `ValueError` for bad settings or prompts;
    `NonFiniteLogits` while iterating if a model computes NaN or infinity.
    """
    if num_draft_tokens is None:
        num_draft_tokens = DEFAULT_DRAFT_TOKENS if rule is not None else 0
    check_stops(stop)  # a string is a sequence of strings too
    if not isinstance(sampling, SamplingParams | None):
        raise CactusError(f"sampling is {sampling!r:.60}; SamplingParams or None is allowed")
    settings = Settings(
        rule=rule,
        num_draft_tokens=num_draft_tokens,
        sampling=SamplingParams() if sampling is None else sampling,
        max_new_tokens=max_new_tokens,
        seed=fresh_seed() if seed is None else seed,
        stop=tuple(stop),
        baseline_steps=baseline_steps,
        max_seconds=max_seconds,
    )
    return Run(pair, prompt, settings, system, should_stop, ends, turn, raw, reuse)
