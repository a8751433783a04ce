"""`python -m cactus train`: the recipe on the command line, with progress bars and a final table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from cactus.errors import CactusError
from cactus.models import choose_dtype, eos_ids, load_model, load_tokenizer
from cactus.pairs import DEFAULT_PAIR, SharedDraft, find_pair
from cactus.training.evaluate import Acceptance
from cactus.training.recipe import Recipe, Verifier, make, prepare, require_llama
from cactus.weights import cache_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", default=DEFAULT_PAIR, help="whose draft model to train")
    parser.add_argument("--minutes", type=float, default=60.0, help="time for sampling and training (default 60)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --work")
    parser.add_argument("--out", type=Path, help="where the draft model goes (default: the pair's)")
    parser.add_argument("--work", type=Path, help="sampled text and checkpoint (default: in the cache)")
    parser.add_argument("--verifier", type=Path, help="folder of the verifier (default: fetched)")
    parser.add_argument("--sampling-share", type=float, default=Recipe.sampling_share, help="of the minutes")
    parser.add_argument("--vocabulary", type=int, default=Recipe.vocabulary, help="tokens the draft model can draft")
    parser.add_argument("--learning-rate", type=float, default=Recipe.learning_rate)
    parser.add_argument(
        "--start-from", type=Path, help="folder of a draft model to improve (default: from the verifier)"
    )
    parser.add_argument("--seed", type=int, default=Recipe.seed)


def run(args: argparse.Namespace) -> int:
    bars = _Bars()
    try:
        results = _make(args, bars)
    finally:
        bars.close()
    sys.stdout.write(table(results) + "\n")
    return 0


def _make(args: argparse.Namespace, bars: "_Bars") -> list[Acceptance]:
    spec = find_pair(args.pair)
    if not isinstance(spec.drafter, SharedDraft):
        raise CactusError(f"pair {args.pair} has no draft model to train: {spec.drafter.label}")
    recipe = Recipe(
        minutes=args.minutes,
        sampling_share=args.sampling_share,
        vocabulary=args.vocabulary,
        learning_rate=args.learning_rate,
        start_from=args.start_from,
        seed=args.seed,
    )
    work = args.work or cache_folder() / "training" / args.pair
    prepare(work, args.resume)
    verifier = _verifier(args.verifier or spec.fetch())
    return make(verifier, recipe, work, args.out or spec.drafter.folder, bars)


def _verifier(folder: Path) -> Verifier:
    if not folder.is_dir():
        raise CactusError(f"verifier is {folder}; it must be a folder with config.json and weights")
    device = torch.device("cpu")
    model = require_llama(load_model(folder, device, choose_dtype("auto", device)))
    tokenizer = load_tokenizer(folder)
    return Verifier(model, tokenizer, tuple(sorted(eos_ids(model, tokenizer))))


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
