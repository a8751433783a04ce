"""`python -m cactus generate`: one run, streamed, with a summary line and, if asked for, its trace.

The rules' flags are built from the parameters they declare; no rule is known by name here.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from cactus.acceptance import RULES
from cactus.cli import INTERRUPTED
from cactus.commands.pair_flags import add_pair_flags, pair_of
from cactus.commands.rule_flags import add_rule_flags, rule_params
from cactus.errors import CactusError
from cactus.files import write_whole
from cactus.limits import Limits
from cactus.request import METHODS, VERIFIER_ONLY, RunRequest
from cactus.sampling import SamplingParams
from cactus.session import LiveRun, Session
from cactus.settings import parse_draft_length
from cactus.terminal import COLOR_CHOICES, ProgressLine, TokenPrinter, wants_color
from cactus.trace import Trace

RAW_HELP = "go on from the prompt as it is, without the chat template"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", type=text_argument, help="one user turn; - reads it from standard input")
    run_flags = parser.add_argument_group("run")
    add_pair_flags(parser.add_argument_group("models"))
    run_flags.add_argument(
        "--method",
        default=RunRequest.method,
        metavar="NAME",
        help=f"default: {RunRequest.method}; {', '.join(RULES)}, or {VERIFIER_ONLY}: the verifier alone",
    )
    run_flags.add_argument(
        "--draft-length", metavar="M", help="tokens drafted a round, or auto: as many as pay; default: the pair's"
    )
    run_flags.add_argument("--max-new-tokens", type=int, default=RunRequest.max_new_tokens, metavar="N")
    run_flags.add_argument("--seed", type=int, help="the same seed gives the same text; default: a new one")
    run_flags.add_argument("--system", type=text_argument, default="", metavar="TEXT", help="system prompt")
    run_flags.add_argument("--raw", action="store_true", help=RAW_HELP)
    run_flags.add_argument(
        "--stop", type=_stop, action="append", default=[], metavar="TEXT", help="end behind it; may be repeated"
    )
    run_flags.add_argument("--device", default="auto", help="default: auto (CUDA, then MPS, then the CPU)")
    run_flags.add_argument("--dtype", default="auto", help="default: auto; bfloat16, float16 or float32")
    add_sampling_flags(parser.add_argument_group("sampling, of both models"))
    add_rule_flags(parser.add_argument_group("the method's own parameters"))
    _add_output_flags(parser.add_argument_group("output"))


def text_argument(value: str) -> str:
    """Bytes of the command line that are no text arrive as surrogates, which no tokenizer takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("it is not valid UTF-8") from None
    return value


def _stop(value: str) -> str:
    if not value:
        raise argparse.ArgumentTypeError("it is empty; at least one character is needed")
    return text_argument(value)


def add_sampling_flags(group: Any) -> None:
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy; default: the pair's")
    group.add_argument("--top-p", type=float, metavar="P", help="1 is off; default: the pair's")
    group.add_argument("--top-k", type=int, metavar="K", help="0 is off; default: the pair's")
    group.add_argument("--min-p", type=float, default=SamplingParams.min_p, metavar="P", help="0 is off")
    penalty = SamplingParams.repetition_penalty
    group.add_argument("--repetition-penalty", type=float, default=penalty, metavar="X", help="1 is off")


def _add_output_flags(group: Any) -> None:
    group.add_argument("--json", metavar="PATH", help="write the trace there; - writes it, alone, to standard output")
    group.add_argument("--color", choices=COLOR_CHOICES, default="auto", help="mark tokens; default: on a terminal")
    group.add_argument("--show-drafts", action="store_true", help="show drafted tokens that were not kept, too")


def run(args: argparse.Namespace) -> int:
    request = _request(args)
    check_json_path(args.json)
    session = Session(args.device, args.dtype, Limits(max_seconds=math.inf), static=args.static)
    stop = threading.Event()
    text_stream = sys.stderr if args.json == "-" else sys.stdout
    printer = TokenPrinter(text_stream, wants_color(args.color, text_stream), args.show_drafts)
    with _started(session, request, stop) as live:
        try:
            with interrupt_sets(stop):
                _stream(live, printer)
        finally:
            _write_json(args.json, live.trace)
        _summarize(live.trace, printer, sys.stderr)
    return INTERRUPTED if stop.is_set() else 0


def _request(args: argparse.Namespace) -> RunRequest:
    pair_of(args)
    if args.method not in METHODS:
        raise CactusError(f"method is {args.method!r}; {', '.join(METHODS)} are allowed")
    params = rule_params(args, args.method)
    return replace(request_of(args), method=args.method, params=params, stop=tuple(args.stop))


def request_of(args: argparse.Namespace) -> RunRequest:
    """The settings that the commands for one prompt share; what is left open is the pair's own."""
    spec = pair_of(args)
    return RunRequest(
        pair=spec.name,
        num_draft_tokens=spec.draft_length if args.draft_length is None else parse_draft_length(args.draft_length),
        sampling=SamplingParams(
            temperature=spec.temperature if args.temperature is None else args.temperature,
            top_p=spec.top_p if args.top_p is None else args.top_p,
            top_k=spec.top_k if args.top_k is None else args.top_k,
            min_p=args.min_p,
            repetition_penalty=args.repetition_penalty,
        ),
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        prompt=sys.stdin.read() if args.prompt == "-" else args.prompt,
        system=args.system,
        raw=args.raw,
    )


def check_json_path(path: str | None) -> None:
    """Before the run, not after it."""
    if path not in (None, "-") and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
        raise CactusError(f"--json is {path!r}; a file in a folder that exists is needed")


def _started(session: Session, request: RunRequest, stop: threading.Event) -> LiveRun:
    progress = ProgressLine(sys.stderr) if sys.stderr.isatty() else None
    try:
        return session.start(request, stop=stop, progress=progress)
    finally:
        if progress is not None:
            progress.close()


@contextlib.contextmanager
def interrupt_sets(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C ends the run after its round, so that nothing produced is lost; the second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only there can signals be handled
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stream(live: LiveRun, printer: TokenPrinter) -> None:
    try:
        for round_ in live:
            printer.write(round_.tokens)
    finally:
        printer.stream.write("\n")


def _write_json(path: str | None, trace: Trace) -> None:
    if path == "-":
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")  # as JSON is, whatever the terminal's
        sys.stdout.write(trace.to_json() + "\n")
        sys.stdout.flush()
    elif path is not None:
        write_whole(Path(path), trace.to_json() + "\n")


def _summarize(trace: Trace, printer: TokenPrinter, stream: TextIO) -> None:
    """To stderr, so that a pipe or file gets the text alone."""
    if legend := printer.legend(_statuses(trace, printer.drafts)):
        stream.write(f"\n{legend}\n")
    stream.write(summary(trace) + "\n")


def _statuses(trace: Trace, drafts: bool) -> list[str]:
    seen = dict.fromkeys(token.status for round_ in trace.rounds for token in round_.tokens)
    return [status for status in seen if drafts or status not in ("rejected", "discarded")]


def summary(trace: Trace) -> str:
    """Everything measured, in one line; what is not defined is left out."""
    metrics = trace.metrics()
    parts = [f"{metrics.generated_tokens} tokens in {metrics.seconds:.1f} s ({trace.stop_reason})"]
    figures = (
        (metrics.tokens_per_second, "{:.1f} tokens/s"),
        (metrics.speedup, "speedup {:.2f}×"),
        (metrics.accepted_length, "AL {:.2f}"),
        (metrics.acceptance_rate, "acceptance rate {:.0%}"),
        (metrics.mean_kl, "mean KL {:.3f} nats"),
    )
    parts += [pattern.format(value) for value, pattern in figures if value is not None]
    parts += filter(None, [trace.versions.get("caches")])
    return " · ".join([*parts, f"seed {trace.seed}"])
