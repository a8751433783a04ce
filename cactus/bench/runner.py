"""The race: who runs when, what is kept, and how a stopped one goes on.

All contestants answer a prompt one after the other before the next prompt comes (A B C A B C …), so that a noisy
machine hits all alike; the one that begins changes from prompt to prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cactus.bench.contest import Answer, Contestant
from cactus.bench.measurement import Measurement, Store, measure
from cactus.bench.prompts import BenchPrompt
from cactus.errors import CactusError
from cactus.files import write_whole
from cactus.settings import MAX_SEED

WARM_UP_TOKENS = 16

Key = tuple[str, str, int]
"""(contestant, prompt, repeat)"""


@dataclass(frozen=True)
class Cell:
    """One conversation to be measured. `seed` is the prompt's own, the same for every contestant and repeat."""

    contestant: Contestant
    prompt: BenchPrompt
    repeat: int
    seed: int

    @property
    def key(self) -> Key:
        return self.contestant.label.key, self.prompt.id, self.repeat


def schedule(
    contestants: Sequence[Contestant], prompts: Sequence[BenchPrompt], repeats: int, seed: int
) -> Iterator[Cell]:
    """All cells in the order in which they run."""
    for repeat in range(repeats):
        for place, prompt in enumerate(prompts):
            first = (repeat * len(prompts) + place) % len(contestants)
            for contestant in [*contestants[first:], *contestants[:first]]:
                yield Cell(contestant, prompt, repeat, (seed + place) % (MAX_SEED + 1))


@dataclass
class Race:
    """Runs cells and keeps what they give. `traces`: a folder for every run's trace, None to keep none."""

    store: Store
    traces: Path | None = None
    _warm: set[str] = field(default_factory=set)

    def waiting(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that the store does not have yet."""
        keys = {(item.contestant, item.prompt, item.repeat) for item in self.store.read()}
        return [cell for cell in cells if cell.key not in keys]

    def run(self, cell: Cell) -> None:
        """Measure one cell and keep what it gave; a contestant is warmed up the first time."""
        key = cell.contestant.label.key
        if key not in self._warm:
            self._warm.add(key)
            _warm_up(cell)
        self.store.append(self._measure(cell))

    def _measure(self, cell: Cell) -> Measurement:
        where: dict[str, Any] = {
            "contestant": cell.contestant.label.key,
            "prompt": cell.prompt.id,
            "kind": cell.prompt.kind,
            "repeat": cell.repeat,
            "seed": cell.seed,
        }
        try:
            answers = converse(cell)
        except CactusError as error:
            return Measurement(**where, error=str(error))
        self._keep_traces(cell, answers)
        return measure(answers, **where)

    def _keep_traces(self, cell: Cell, answers: Sequence[Answer]) -> None:
        if self.traces is None:
            return
        self.traces.mkdir(parents=True, exist_ok=True)
        name = _file_name(f"{cell.prompt.id}-{cell.contestant.label.key}-r{cell.repeat}")
        for turn, answer in enumerate(answers, 1):
            if answer.trace is not None:
                write_whole(self.traces / f"{name}-t{turn}.json", answer.trace.to_json() + "\n")


def converse(cell: Cell) -> list[Answer]:
    """Every turn, asked after the answer to the one before."""
    messages: list[dict[str, str]] = []
    answers = []
    for turn in cell.prompt.turns:
        messages.append({"role": "user", "content": turn})
        answers.append(cell.contestant.answer(messages, cell.seed))
        messages.append({"role": "assistant", "content": answers[-1].text})
    return answers


def _warm_up(cell: Cell) -> None:
    """A short answer that does not count; what is wrong with it the cell itself will say."""
    try:
        cell.contestant.answer([{"role": "user", "content": cell.prompt.turns[0]}], cell.seed, WARM_UP_TOKENS)
    except CactusError:
        return


def _file_name(text: str) -> str:
    return "".join(character if character.isalnum() or character in "-_.=" else "_" for character in text)
