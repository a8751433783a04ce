"""`python -m cactus compare`: one prompt and seed under several methods, the verifier alone first; a table."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from cactus import compare
from cactus.cli import INTERRUPTED
from cactus.commands.generate import (
    RAW_HELP,
    add_sampling_flags,
    check_json_path,
    interrupt_sets,
    request_of,
    text_argument,
)
from cactus.commands.pair_flags import add_pair_flags
from cactus.commands.pairs import table
from cactus.files import write_whole
from cactus.request import RunRequest
from cactus.session import Session
from cactus.terminal import ProgressLine, harmless
from cactus.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", type=text_argument, help="one user turn; - reads it from standard input")
    parser.add_argument(
        "--lane", action="append", default=[], metavar="METHOD:NAME=VALUE:…",
        help=f"a method with its parameters and, as m=…, its draft length; {compare.FEWEST} to {compare.MOST} times; "
             f"the verifier alone is always the first lane; default: {' '.join(compare.USUAL)}",
    )  # fmt: skip
    add_pair_flags(parser.add_argument_group("models"))
    parser.add_argument("--draft-length", metavar="M", help="of lanes without m=…, or auto; default: the pair's")
    parser.add_argument("--max-new-tokens", type=int, default=RunRequest.max_new_tokens, metavar="N")
    parser.add_argument("--seed", type=int, help="the same for all lanes; default: a new one")
    parser.add_argument("--system", type=text_argument, default="", metavar="TEXT", help="system prompt")
    parser.add_argument("--raw", action="store_true", help=RAW_HELP)
    parser.add_argument("--device", default="auto", help="default: auto (CUDA, then MPS, then the CPU)")
    parser.add_argument("--dtype", default="auto", help="default: auto; bfloat16, float16 or float32")
    add_sampling_flags(parser.add_argument_group("sampling, of both models"))
    parser.add_argument("--json", metavar="PATH", help="write all traces there; - writes them alone to standard output")
    parser.add_argument("--texts", action="store_true", help="print the texts, too, and where they part")


def run(args: argparse.Namespace) -> int:
    requests = compare.lane_requests(request_of(args), args.lane or compare.USUAL)
    check_json_path(args.json)
    traces, stop = [], threading.Event()
    progress = ProgressLine(sys.stderr)
    with interrupt_sets(stop):
        try:
            traces = _race(Session(args.device, args.dtype, static=args.static), requests, stop, progress)
        finally:
            progress.close()
    _write(args, traces)
    return INTERRUPTED if stop.is_set() else 0


def _race(session: Session, requests: list[RunRequest], stop: threading.Event, progress: ProgressLine) -> list[Trace]:
    traces: dict[int, Trace] = {}
    for lane, trace in compare.race(session, requests, stop, progress):
        traces[lane] = trace
        done = (lane + len(trace.tokens) / requests[lane].max_new_tokens) / len(requests)
        progress(done, compare.label(trace))
    return list(traces.values())


def _write(args: argparse.Namespace, traces: Sequence[Trace]) -> None:
    whole = compare.Comparison(lanes=tuple(traces)).to_json() + "\n"
    if args.json == "-":
        sys.stdout.write(whole)
        return
    if args.json:
        write_whole(Path(args.json), whole)
    if args.texts:
        sys.stdout.write("".join(_texts(traces)))
    sys.stdout.write(table([compare.HEADINGS, *map(compare.cells, compare.results(traces))]) + "\n")
    sys.stdout.write(
        f"seed {traces[0].seed}; speedup against the first lane's own seconds per token\n" if traces else ""
    )


def _texts(traces: Sequence[Trace]) -> list[str]:
    """Each text, and where it leaves the one it follows longest."""
    partings = {parting.lane: parting for parting in compare.partings(traces)}
    lines = []
    for lane, trace in enumerate(traces):
        lines.append(f"── {compare.label(trace)}{_parted(traces, partings.get(lane))}\n{harmless(trace.text)}\n\n")
    return lines


def _parted(traces: Sequence[Trace], parting: compare.Parting | None) -> str:
    if parting is None:
        return ""
    other = compare.label(traces[parting.other])
    return f" (the same text as {other})" if parting.same else f" (parts from {other} after {parting.tokens} tokens)"
