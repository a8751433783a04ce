"""Fitting a student in a given time: as many steps as it allows, checkpointed, logged.

Knows nothing of what learns, or of what is learnt.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from cactus.training.steps import StepLog
from cactus.training.train import Checkpoints, Progress, Trainer, TrainingPlan

_TIMED_STEPS = 4
AnyTrainer = TypeVar("AnyTrainer", bound=Trainer[Any])


class Listener(Protocol):
    """Hears how far a stage has come; `done` and `total` are in the stage's own unit."""

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None: ...


def planned(plan: TrainingPlan, seconds: float, fresh: Callable[[TrainingPlan], Trainer[Any]]) -> TrainingPlan:
    """`plan` with as many steps as the time allows, by timing a few that are thrown away."""
    trial = fresh(replace(plan, steps=1000))
    trial.run(1)  # the first is slower
    begin = time.monotonic()
    trial.run(1 + _TIMED_STEPS)
    seconds_per_step = (time.monotonic() - begin) / _TIMED_STEPS
    return replace(plan, steps=max(1, int(seconds / seconds_per_step)))


def started(
    plan: TrainingPlan,
    seconds: float,
    fresh: Callable[[TrainingPlan], AnyTrainer],
    checkpoints: Checkpoints,
) -> AnyTrainer:
    """A trainer where its checkpoint left it, else a new one whose plan fits the time."""
    if not checkpoints.path.exists():
        return fresh(planned(plan, seconds, fresh))
    saved = checkpoints.load()
    trainer = fresh(TrainingPlan(**saved["plan"]))
    trainer.restore(saved)
    return trainer


def run_to_end(trainer: Trainer[Any], stage: str, checkpoints: Checkpoints, log: StepLog, tell: Listener) -> None:
    """The steps that are left."""
    log.rewind(stage, trainer.step)

    def on_step(progress: Progress) -> None:
        checkpoints.maybe_save(trainer)
        log.add(stage, progress)
        note = f"loss {progress.loss:.3f}, acceptance {progress.acceptance:.3f}"
        tell(stage, progress.step, trainer.plan.steps, note)

    trainer.run(trainer.plan.steps, on_step)
    checkpoints.save(trainer)
