"""`python -m cactus trade`: methods over a range of budgets, and what they accept at equal divergence."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from cactus.bench.methods import parse_method
from cactus.commands.generate import check_json_path
from cactus.commands.pair_flags import add_pair_flags, pair_of
from cactus.commands.pairs import table
from cactus.errors import CactusError
from cactus.files import write_whole
from cactus.limits import Limits
from cactus.pairs import PairSpec
from cactus.paths import ASSETS
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.session import Session
from cactus.settings import check_whole
from cactus.trace import Trace
from cactus.trade import Gain, collect, curve, gains

METHODS = "cactus,cactus_adaptive"
VALUES = "0.02,0.05,0.1,0.2,0.4,0.8,1.6"
HEADINGS = ("method", "AL", "KL(output‖q) a token", "KL(h‖q) a token", "tokens", "at equal spend", "gain", "± s.e.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", default=METHODS, metavar="LIST", help=f"the first is the reference; {METHODS}")
    parser.add_argument("--parameter", default="delta", metavar="NAME", help="what is varied; default: delta")
    parser.add_argument("--values", default=VALUES, metavar="LIST", help=f"its values; default: {VALUES}")
    add_pair_flags(parser.add_argument_group("models"))
    parser.add_argument("--prompts", type=int, default=8, metavar="N", help="of the pair's example prompts; default: 8")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="runs of each prompt; default: 2")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--draft-length", type=int, metavar="M", help="default: the pair's")
    parser.add_argument("--temperature", type=float, metavar="T", help="default: the pair's")
    parser.add_argument("--device", default="auto", help="default: auto (CUDA, then MPS, then the CPU)")
    parser.add_argument("--dtype", default="auto", help="default: auto; bfloat16, float16 or float32")
    parser.add_argument("--json", metavar="PATH", help="write all points there")


def run(args: argparse.Namespace) -> int:
    check_json_path(args.json)
    families = [_settings(method, args) for method in args.methods.split(",")]
    spec = pair_of(args)
    prompts = _prompts(spec, args.prompts)
    check_whole("seeds", args.seeds, 1, 1000)
    session = Session(args.device, args.dtype, Limits(max_seconds=math.inf), static=args.static)
    every = [setting for family in families for setting in family]
    requests = {setting: _request(setting, spec, args) for setting in every}
    with tqdm(total=len(every) * len(prompts) * args.seeds, desc="running", unit="run", file=sys.stderr) as bar:

        def one(setting: str, prompt: str, seed: int) -> Trace:
            bar.update()
            return _run(session, requests[setting] | {"prompt": prompt, "seed": seed})

        runs = collect(every, prompts, range(args.seeds), one)
    parts = [{setting: runs[setting] for setting in family} for family in families]
    found = [gain for part in parts[1:] for gain in gains(parts[0], part)]
    sys.stdout.write(table([HEADINGS, *_rows(curve(parts[0]), found)]) + "\n")
    if args.json:
        record = {"arguments": vars(args), "reference": [asdict(point) for point in curve(parts[0])],
                  "gains": [asdict(gain) for gain in found]}  # fmt: skip
        write_whole(Path(args.json), json.dumps(record, indent=1, default=str) + "\n")
    return 0


def _settings(method: str, args: argparse.Namespace) -> list[str]:
    """One method over all values; wrong names and values are said before anything runs."""
    settings = [f"{method.strip()}:{args.parameter}={value.strip()}" for value in args.values.split(",")]
    for setting in settings:
        parse_method(setting)
    if len(settings) < 2:
        raise CactusError(f"values is {args.values!r}; at least two are needed to compare at equal spend")
    return settings


def _prompts(spec: PairSpec, count: int) -> list[str]:
    path = ASSETS / spec.examples
    prompts = [entry["prompt"] for entry in json.loads(path.read_text(encoding="utf-8"))]
    check_whole("prompts", count, 1, len(prompts))
    return prompts[:count]


def _request(setting: str, spec: PairSpec, args: argparse.Namespace) -> dict:
    method = parse_method(setting)
    return {
        "pair": spec.name,
        "method": method.name,
        "params": method.params,
        "num_draft_tokens": spec.draft_length if args.draft_length is None else args.draft_length,
        "sampling": SamplingParams(temperature=spec.temperature if args.temperature is None else args.temperature),
        "max_new_tokens": args.max_new_tokens,
    }


def _run(session: Session, fields: dict) -> Trace:
    with session.start(RunRequest(**fields)) as live:
        for _ in live:
            pass
    return live.trace


def _rows(reference: Sequence, found: Sequence[Gain]) -> list[tuple[str, ...]]:
    rows = [(*_cells(point), "", "", "") for point in reference]
    for gain in found:
        figures = (gain.reference, gain.gain, gain.error)
        rows.append((*_cells(gain.point), *("–" if value is None else f"{value:.3f}" for value in figures)))
    return rows


def _cells(point) -> tuple[str, ...]:
    kls = (f"{point.output_kl:.4f}", f"{point.adjusted_kl:.4f}")
    return point.method, f"{point.accepted_length:.3f}", *kls, str(point.tokens)
