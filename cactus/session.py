"""Runs: who may run, with which pair, and when; ties models to decoding.

A run takes a place among the few that go on at once, then a lease of its pair, and then one turn on the models for
each round: `turns.Line` and `residents.Residents` say who waits for whom. One `Session` per process. The only place
that joins models and decoding; knows nothing of pages or terminals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType

from cactus.decoding import Run, decode
from cactus.errors import CactusError, UnavailableError
from cactus.faults import names_lack_of_memory
from cactus.interfaces import Turn
from cactus.limits import Limits
from cactus.pairs import POCKET_PAIR, Pair, PairSpec, find_pair
from cactus.pairs.state import PairState
from cactus.prefix import Prefixes
from cactus.request import RunRequest
from cactus.residents import Lease, Residents
from cactus.survey import Survey
from cactus.trace import Round, StopReason, Trace
from cactus.turns import Line, apart, ordinal
from cactus.weights.source import Progress, silent

BASELINE_STEPS = 8
STAND_IN_PAIR = POCKET_PAIR
"""What the page uses when the wished pair cannot be had: its weights are part of the installation."""


def _in_line(place: int) -> str:
    return f"{ordinal(place)} in line: waiting for a run to finish"


class LiveRun:
    """A run in progress: iterate for rounds; leaving the `with` block frees the model, whatever happened."""

    def __init__(self, run: Run, over: Callable[[], None]) -> None:
        self._run = run
        self._over = over

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._run.close()
        finally:
            self._over()

    def __iter__(self) -> Iterator[Round]:
        with names_lack_of_memory():
            yield from self._run

    @property
    def trace(self) -> Trace:
        """The trace so far; before the first round: settings, prompt and baseline."""
        return self._run.trace

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the run ended, None while it goes on."""
        return self._run.stop_reason


class Seat:
    """A place among the runs, for one run or, if `kept` until it is left, for one after another.

    It is taken with the first `start`: a place in line, and a lease of the pair.
    """

    def __init__(self, session: Session, kept: bool) -> None:
        self._session = session
        self._kept = kept
        self._place = ExitStack()
        self._lease = ExitStack()
        self._pair: Pair | None = None
        self._pair_name = ""

    def start(
        self, request: RunRequest, *, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> LiveRun:
        """As `Session.start`."""
        stopped, report = stop or threading.Event(), progress or silent
        try:
            request.check(self._session.limits)
            pair = self._sit(request.pair, stopped, report)
            return LiveRun(self._session.prepared(pair, request, stopped, report), self._over)
        except BaseException:
            self._over()
            raise

    def leave(self) -> None:
        """The next in line may come in, and the pair may be dropped."""
        self._pair = None
        self._lease.close()
        self._place.close()

    def __enter__(self) -> Seat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()

    def _sit(self, name: str, stopped: threading.Event, report: Progress) -> Pair:
        if self._pair is not None and self._pair_name == name:
            return self._pair
        self.leave()
        self._place.enter_context(self._session.inside(stopped, report))
        self._pair = self._lease.enter_context(self._session.lease(find_pair(name), stopped, report))
        self._pair_name = name
        return self._pair

    def _over(self) -> None:
        if not self._kept:
            self.leave()


class Session:
    """Lets a few runs at once take turns on the pairs that are loaded.

    `static`: whether models run on static caches (`load_pair`). `load_pair`: how a registry entry becomes a pair (tests
    put small models here).
    """

    def __init__(
        self,
        device: str = "auto",
        dtype: str = "auto",
        limits: Limits | None = None,
        load_pair: Callable[[PairSpec, Progress], Pair] | None = None,
        static: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._load_pair = load_pair or (lambda spec, progress: spec.load(device, dtype, progress, static))
        # What is fetched beforehand need not be waited for by others. Pairs that come from elsewhere need no fetching.
        self._fetch = (lambda *_: None) if load_pair else self._check_and_fetch
        self._survey = Survey(device, dtype)
        self._residents = Residents(self.limits.max_pairs, self._load, self._survey.fits_now)
        self._places = Line(self.limits.max_runs)
        self._door = Line()  # one at a time asks for a pair, so that a pair nobody else wants gets its time
        self._models = Line()
        self._prefixes = Prefixes()

    def states(self) -> list[PairState]:
        """All pairs of the registry as they stand."""
        return self._survey.states(self._residents)

    def load(self, name: str, progress: Progress | None = None) -> Pair:
        """The pair of this name, loaded if it is not. Waits for runs in progress where another has to be dropped."""
        with self.lease(find_pair(name), threading.Event(), progress or silent) as pair:
            return pair

    def start(
        self, request: RunRequest, *, stop: threading.Event | None = None, progress: Progress | None = None
    ) -> LiveRun:
        """Start a run: waits for a place, loads the pair if need be, reads the prompt and times the baseline.

        The caller must leave the returned `LiveRun` as a context manager: it keeps its place until then. `stop` is
        looked at while waiting, before every round and before every chunk of the prompt.
        """
        return Seat(self, kept=False).start(request, stop=stop, progress=progress)

    def forget(self, conversation: str) -> None:
        """A conversation is over: nothing is kept for its next turn."""
        self._prefixes.forget(conversation)

    def seat(self) -> Seat:
        """A place for several runs, one after another, such as the lanes of a comparison."""
        return Seat(self, kept=True)

    @contextmanager
    def inside(self, stopped: threading.Event, report: Progress) -> Iterator[None]:
        """Wait for a place and have it. `CactusError` if stopped meanwhile."""
        with self._places.turn(stopped, lambda place: report(None, _in_line(place))) as mine:
            if not mine:
                raise CactusError("stopped while waiting in line")
            yield

    def lease(self, spec: PairSpec, stopped: threading.Event, report: Progress) -> Lease:
        """The pair, loaded if it is not. Whoever is asked to stop leaves at once; what is being loaded is kept."""
        return apart(lambda: self._lease(spec, stopped, report), stopped, Lease.release)

    def prepared(self, pair: Pair, request: RunRequest, stopped: threading.Event, report: Progress) -> Run:
        """A run that has read its prompt and timed its baseline."""
        report(None, "reading the prompt and timing the verifier alone")
        turn = partial(self._models.turn, stopped)
        with names_lack_of_memory():
            with turn() as mine:  # what is measured of a pair on first use is measured undisturbed
                if not mine:
                    raise CactusError("stopped while waiting for the models")
                run = self._run(pair, request, stopped, turn)
            run.prefill()
        return run

    def _run(self, pair: Pair, request: RunRequest, stopped: threading.Event, turn: Turn) -> Run:
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
            max_seconds=self.limits.max_seconds,
            should_stop=stopped.is_set,
            turn=turn,
            raw=request.raw,
            reuse=self._prefixes.of(request.conversation),
        )

    def _lease(self, spec: PairSpec, stopped: threading.Event, report: Progress) -> Lease:
        if self._residents.peek(spec.name) is None:
            self._fetched(spec, report)
        with self._door.turn(stopped, lambda place: report(None, "waiting for another pair to be loaded")) as mine:
            if not mine:
                raise CactusError("stopped while waiting for another pair to be loaded")
            return self._residents.lease(spec, report, stopped)

    def _fetched(self, spec: PairSpec, report: Progress) -> None:
        """Before anybody waits for it: a download may take minutes."""
        try:
            self._fetch(spec, report)
        except UnavailableError as error:
            self._residents.failed(spec.name, str(error))
            raise

    def _check_and_fetch(self, spec: PairSpec, progress: Progress) -> None:
        """What could not be loaded need not be downloaded."""
        self._survey.check(spec, self._residents)
        spec.fetch(progress)

    def _load(self, spec: PairSpec, progress: Progress) -> Pair:
        """In a turn: no round is timed meanwhile."""
        with self._models.turn():
            return self._load_pair(spec, progress)
