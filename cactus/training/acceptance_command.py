"""`python -m cactus acceptance`: how often a pair's drafted tokens would be accepted, on prompts held out of training.

The expected acceptance of one lossless draft step, sum of min(p, q), by draft position; no timing is involved.
"""

import argparse
import json
import sys
from dataclasses import asdict

from tqdm import tqdm

from cactus.errors import CactusError
from cactus.pairs import DEFAULT_PAIR, Pair, find_pair
from cactus.training.command import table
from cactus.training.evaluate import Acceptance, acceptance_by_position, held_out_answers
from cactus.training.prompts import held_out_prompts
from cactus.training.recipe import require_llama


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", default=DEFAULT_PAIR, help=f"default: {DEFAULT_PAIR}")
    parser.add_argument("--temperatures", default="1.0,0.7", help="of the text and of both models (default 1.0,0.7)")
    parser.add_argument("--positions", type=int, default=5, help="draft positions (default 5)")
    parser.add_argument("--max-new-tokens", type=int, default=96, help="of each answer (default 96)")
    parser.add_argument("--seed", type=int, default=12345)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    temperatures = [_temperature(text) for text in args.temperatures.split(",")]
    for name in ("positions", "max_new_tokens"):
        if getattr(args, name) < 1:
            raise CactusError(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be at least 1")
    spec = find_pair(args.pair)
    pair = spec.load()
    results = [_measure(pair, held_out_prompts(spec.prompts), temperature, args) for temperature in temperatures]
    shown = json.dumps([asdict(result) for result in results], indent=2) if args.json else table(results)
    sys.stdout.write(shown + "\n")
    return 0


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 100:
        raise CactusError(
            f"a temperature is {text!r}; numbers above 0 and at most 100 are allowed, with commas between"
        )
    return value


def _measure(pair: Pair, prompts: list[str], temperature: float, args: argparse.Namespace) -> Acceptance:
    verifier = require_llama(pair.model)
    with tqdm(total=len(prompts), desc=f"temperature {temperature}") as bar:
        answers = held_out_answers(
            verifier,
            pair.codec.tokenizer,
            prompts,
            temperature,
            args.max_new_tokens,
            sorted(pair.codec.eos_ids),
            args.seed,
        )
        return acceptance_by_position(
            verifier,
            pair.new_drafter,
            pair.codec.vocab_size,
            answers,
            temperature,
            args.positions,
            tell=lambda done, total: bar.update(done - bar.n),
        )
