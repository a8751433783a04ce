"""`python -m cactus record`: the runs that the page shows without a model, made anew."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from cactus.bench.methods import MethodSpec, parse_methods
from cactus.cli import PROGRAM
from cactus.errors import CactusError
from cactus.limits import Limits
from cactus.pairs import DEFAULT_PAIR, find_pair
from cactus.recorded import RUNS, RecordedRun, write
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.session import Session
from cactus.settings import parse_draft_length
from cactus.trace import Trace

METHODS = "ar,sps,tas,cactus:delta=0.2,cactus:delta=1,cactus:delta=10"
PROMPTS = (
    "Why does a cactus have spines?",
    "Tell a short story about a robot who learns to paint.",
    "What should I pack for a walk in the desert?",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", default=DEFAULT_PAIR, metavar="NAME", help=f"default: {DEFAULT_PAIR}")
    parser.add_argument("--methods", default=METHODS, metavar="LIST", help=f"default: {METHODS}")
    parser.add_argument(
        "--prompt", action="append", default=[], metavar="TEXT", help="may be repeated; default: three short ones"
    )
    parser.add_argument("--draft-length", metavar="M", help="a number or auto; default: the pair's")
    parser.add_argument("--temperature", type=float, metavar="T", help="default: the pair's")
    parser.add_argument("--max-new-tokens", type=int, default=96, metavar="N", help="default: 96")
    parser.add_argument("--seed", type=int, default=0, help="the same for all; default: 0")
    parser.add_argument("--device", default="auto", help="default: auto (CUDA, then MPS, then the CPU)")
    parser.add_argument("--dtype", default="auto", help="default: auto; bfloat16, float16 or float32")
    parser.add_argument("--out", type=Path, default=RUNS, metavar="DIR", help="default: where the page looks for them")


def run(args: argparse.Namespace) -> int:
    methods = parse_methods(args.methods)
    requests = list(_requests(args, methods))
    if args.out.exists() and not args.out.is_dir():
        raise CactusError(f"--out is {str(args.out)!r}; a folder is needed")
    session = Session(args.device, args.dtype, Limits(max_seconds=math.inf))
    runs = []
    for place, (method, request) in enumerate(tqdm(requests, desc="recording", unit="run")):
        trace = _recorded(session, request)
        runs.append((_entry(place // len(methods) + 1, method, trace), trace))
    size = write(args.out, runs, _command(args))
    sys.stdout.write(f"{len(runs)} runs, {size / 1e3:.0f} kB in {args.out}\n")
    return 0


def _requests(args: argparse.Namespace, methods: Sequence[MethodSpec]) -> Iterator[tuple[MethodSpec, RunRequest]]:
    """Prompt by prompt, all methods; same seed, so that they can be compared."""
    spec = find_pair(args.pair)
    temperature = spec.temperature if args.temperature is None else args.temperature
    for prompt in args.prompt or PROMPTS:
        for method in methods:
            yield (
                method,
                RunRequest(
                    pair=args.pair,
                    method=method.name,
                    params=method.params,
                    num_draft_tokens=spec.draft_length
                    if args.draft_length is None
                    else parse_draft_length(args.draft_length),
                    sampling=SamplingParams(temperature=temperature),
                    max_new_tokens=args.max_new_tokens,
                    seed=args.seed,
                    prompt=prompt,
                ),
            )


def _recorded(session: Session, request: RunRequest) -> Trace:
    with session.start(request) as live:
        for _ in live:
            pass
    return live.trace


def _entry(number: int, method: MethodSpec, trace: Trace) -> RecordedRun:
    name = str(method).replace(":", "-").replace("=", "-")
    prompt = str(trace.prompt)
    return RecordedRun(
        file=f"{number}-{name}.json.gz",
        title=f"{method.label} · {prompt}",
        prompt=prompt,
        method=method.label,
        key=str(method),
        num_draft_tokens=trace.num_draft_tokens,
        seed=trace.seed,
        tokens=len(trace.tokens),
    )


def _command(args: argparse.Namespace) -> str:
    """What makes the same runs again; the place they went to is no part of it."""
    words = ["record", "--pair", args.pair, "--methods", args.methods, "--max-new-tokens", str(args.max_new_tokens)]
    for prompt in args.prompt:
        words += ["--prompt", prompt]
    for flag in ("draft_length", "temperature"):
        if getattr(args, flag) is not None:
            words += ["--" + flag.replace("_", "-"), str(getattr(args, flag))]
    return f"{PROGRAM} {shlex.join([*words, '--seed', str(args.seed)])}"
