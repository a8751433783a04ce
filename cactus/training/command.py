"""`python -m cactus train`: a pair's recipe on the command line, with progress bars, a plot and a final table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from cactus.pairs import DEFAULT_PAIR, find_pair
from cactus.training.evaluate import Acceptance
from cactus.training.fit import Listener
from cactus.training.recipe import prepare
from cactus.training.registry import RECIPES, Job, find_recipe
from cactus.training.steps import STEPS_FILE, StepLog, draw
from cactus.weights import cache_folder

PLOT_FILE = "training.html"
_SETTINGS = ("minutes", "sampling_share", "vocabulary", "learning_rate", "start_from", "seed")
_BY_RECIPE = "default: the recipe's"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", default=DEFAULT_PAIR, help=f"what to train: {', '.join(RECIPES)}")
    parser.add_argument("--minutes", type=float, default=60.0, help="time for sampling and training (default 60)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --work")
    parser.add_argument("--out", type=Path, help="where the results go (default: the pair's own folder)")
    parser.add_argument("--work", type=Path, help="sampled text and checkpoints (default: in the cache)")
    parser.add_argument("--verifier", type=Path, help="folder of the model to sample from (default: fetched)")
    parser.add_argument("--sampling-share", type=float, help=f"of the minutes, for text ({_BY_RECIPE})")
    parser.add_argument("--vocabulary", type=int, help=f"tokens that can be drafted ({_BY_RECIPE})")
    parser.add_argument("--learning-rate", type=float, help=_BY_RECIPE)
    parser.add_argument("--start-from", type=Path, help="folder of a draft model to improve (not of every pair)")
    parser.add_argument("--seed", type=int, help=_BY_RECIPE)


def run(args: argparse.Namespace) -> int:
    bars = _Bars()
    try:
        results = _make(args, bars)
    finally:
        bars.close()
    sys.stdout.write(table(results) + "\n")
    return 0


def _make(args: argparse.Namespace, tell: Listener) -> list[Acceptance]:
    recipe, spec = find_recipe(args.pair), find_pair(args.pair)
    settings = recipe.choose(_given(args))
    work = args.work or cache_folder() / "training" / args.pair
    out = args.out or recipe.out(spec)
    prepare(work, args.resume)
    results = recipe.run(Job(spec, work, out, args.verifier, tell), settings)
    draw(StepLog(work / STEPS_FILE).records(), out / PLOT_FILE)
    return results


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given; the recipe knows the others."""
    return {name: value for name in _SETTINGS if (value := getattr(args, name)) is not None}


class _Bars:
    """One progress bar a stage, each replacing the one before."""

    def __init__(self) -> None:
        self.stage, self.bar = "", None

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        if stage != self.stage or self.bar is None:
            self.close()
            unit = "s" if stage == "sample" else "it"
            style = "{l_bar}{bar}| {n:.0f}/{total:.0f}{unit} [{elapsed}<{remaining}{postfix}]"
            self.stage = stage
            self.bar = tqdm(desc=stage, total=total, unit=unit, bar_format=style)
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(min(done, total) - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def table(results: Sequence[Acceptance]) -> str:
    """Acceptance by temperature and draft position."""
    positions = range(1, 1 + len(results[0].by_position))
    head = "temperature  " + "  ".join(f"pos {i}" for i in positions) + "  spread  prompts  tokens"
    rows = [
        f"{r.temperature:>11}  "
        + "  ".join(f"{value:.3f}" for value in r.by_position)
        + f"  {r.spread:>6.3f}  {r.prompts:>7}  {r.tokens:>6}"
        for r in results
    ]
    return "\n".join(["expected acceptance, sum of min(draft, verifier)", head, *rows])
