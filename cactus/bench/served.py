"""`bench --engine vllm`: throughput and latency of a server under load, and where speculation stops paying.

For each number of concurrent requests every method answers the same prompts, in turn and again as often as asked; the
verifier alone runs on a second server. Tokens and seconds are what the client saw; nothing is modelled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import torch

from cactus.bench.methods import MethodSpec, parse_methods
from cactus.bench.prompts import BenchPrompt, pick, read_prompts
from cactus.bench.sheet import Sheet
from cactus.errors import CactusError
from cactus.limits import Limits
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.server import Server, ServerSession
from cactus.settings import check_whole
from cactus.terminal import ProgressLine
from cactus.trace import Trace
from cactus.versions import versions

METHODS = "ar,sps,cactus:delta=0.1,cactus:delta=1"
CONCURRENT = "1,4,16"
HEADINGS = ("concurrent", "method", "tokens/s", "× alone", "seconds a request", "90 %", "first token, s", "AL")
NOT_MEASURED = "The verifier alone was not measured (no --baseline-url), so whether speculation pays cannot be said."


@dataclass(frozen=True)
class Load:
    """One method under one load: all its requests, of all repeats. seconds: on the wall, from first to last."""

    concurrent: int
    method: str
    tokens: int
    seconds: float
    latencies: tuple[float, ...]
    first_tokens: tuple[float, ...]
    accepted_length: float | None

    @property
    def throughput(self) -> float:
        """Tokens per second of all requests together."""
        return self.tokens / self.seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("a server", "with --engine vllm; --methods then begin with the verifier alone")
    group.add_argument("--engine", choices=["local", "vllm"], help="default: local")
    group.add_argument("--url", help="address of a vLLM server with the plugin")
    group.add_argument("--model", help="which of its models; default: its first")
    group.add_argument("--baseline-url", metavar="URL", help="a second server, without speculation")
    group.add_argument("--concurrent", metavar="LIST", help=f"requests at once; default: {CONCURRENT}")


def run(args: argparse.Namespace, command: str) -> int:
    """Measure and leave `served.json` and `served.md` in the folder."""
    session = ServerSession(
        Server(args.url, args.model or ""),
        Server(args.baseline_url) if args.baseline_url else None,
        Limits(max_runs=32),
    )
    served = session.look()
    chosen = [one for one in parse_methods(args.methods) if one.drafts or args.baseline_url]
    prompts = pick(read_prompts(args.prompts), args.limit)
    sampling = SamplingParams(temperature=args.temperature)
    loads, line = [], ProgressLine(sys.stderr)
    line(None, "warming up")
    for one in chosen:
        _answer(session, _requests(session, one, prompts, args, sampling, 1)[0])
    for concurrent in parse_concurrent(args.concurrent or CONCURRENT):
        line(None, f"{concurrent} at once")
        requests = [(one, _requests(session, one, prompts, args, sampling, concurrent)) for one in chosen]
        loads += measure(session, requests, concurrent, args.repeat)
    line.close()
    if not loads:
        raise CactusError("methods has only the verifier alone, which needs --baseline-url")
    pair = f"{served.model} on a vLLM server, m = {served.num_draft_tokens}, temperature {args.temperature:g}"
    sheet = Sheet("served", "A server under load", verdicts(loads), table(loads), [asdict(load) for load in loads])
    sheet.save(pair, versions() | {"vllm": served.version}, torch.device("cpu"), args.out, command)
    sys.stdout.write("\n".join(verdicts(loads)) + "\n")
    return 0


def parse_concurrent(text: str) -> list[int]:
    """Numbers of requests at once; `CactusError` names what is wrong."""
    numbers = [int(part) if part.strip().isdecimal() else part for part in text.split(",")]
    for number in numbers:
        check_whole("concurrent", number, 1, 256)
    return numbers  # type: ignore[return-value]


def measure(
    session: ServerSession, requests: Sequence[tuple[MethodSpec, list[RunRequest]]], concurrent: int, repeat: int
) -> list[Load]:
    """Every method under this load; methods take turns, so that a drift of the machine touches all of them."""
    seconds = [0.0] * len(requests)
    traces: list[list[Trace]] = [[] for _ in requests]
    for _ in range(repeat):
        for place, (_, asked) in enumerate(requests):
            began = time.perf_counter()
            with ThreadPoolExecutor(concurrent) as pool:
                traces[place] += pool.map(lambda request: _answer(session, request), asked)
            seconds[place] += time.perf_counter() - began
    return [_load(concurrent, one, traces[place], seconds[place]) for place, (one, _) in enumerate(requests)]


def _answer(session: ServerSession, request: RunRequest) -> Trace:
    with session.start(request, measured=False) as live:
        for _ in live:
            pass
    return live.trace


def _requests(
    session: ServerSession, one: MethodSpec, prompts: Sequence[BenchPrompt], args: argparse.Namespace,
    sampling: SamplingParams, concurrent: int,
) -> list[RunRequest]:  # fmt: skip
    """Each prompt's first turn, and from the start again until everybody has something to do."""
    count = max(len(prompts), concurrent)
    return [
        RunRequest(
            pair=session.states()[0].name, method=one.name, params=one.params, sampling=sampling,
            max_new_tokens=args.max_new_tokens, seed=args.seed + place, prompt=prompts[place % len(prompts)].turns[0],
        )
        for place in range(count)
    ]  # fmt: skip


def _load(concurrent: int, one: MethodSpec, traces: Sequence[Trace], seconds: float) -> Load:
    metrics = [trace.metrics() for trace in traces]
    rounds = sum(len(trace.rounds) - 1 for trace in traces)  # the first token comes with the prompt
    accepted = sum(each.accepted_tokens for each in metrics)
    return Load(
        concurrent=concurrent,
        method=one.label,
        tokens=sum(each.generated_tokens for each in metrics),
        seconds=seconds,
        latencies=tuple(trace.timings.total_seconds for trace in traces),
        first_tokens=tuple(trace.timings.prefill_seconds for trace in traces),
        accepted_length=accepted / rounds if one.drafts and rounds else None,
    )


def table(loads: Sequence[Load]) -> list[tuple[str, ...]]:
    """The headings, then one row a load."""
    return [HEADINGS, *(_row(load, loads) for load in loads)]


def verdicts(loads: Sequence[Load]) -> list[str]:
    """Where each method pays and where it stops to, in words."""
    told = []
    for method in dict.fromkeys(load.method for load in loads):
        ratios = {load.concurrent: ratio for load in loads if load.method == method and (ratio := _gain(load, loads))}
        if not ratios or method == MethodSpec("ar").label:
            continue
        lost = [f"{concurrent} ({ratio:.2f}×)" for concurrent, ratio in ratios.items() if ratio <= 1]
        where = f"does not pay at {', '.join(lost)} concurrent requests" if lost else "pays at every load measured"
        told.append(f"{method} {where}.")
    return told or [NOT_MEASURED]


def _gain(load: Load, loads: Sequence[Load]) -> float | None:
    """Throughput over that of the verifier alone under the same load."""
    alone = MethodSpec("ar").label
    base = next((one for one in loads if one.method == alone and one.concurrent == load.concurrent), None)
    return load.throughput / base.throughput if base and base.throughput else None


def _row(load: Load, loads: Sequence[Load]) -> tuple[str, ...]:
    gain = _gain(load, loads)
    late = statistics.quantiles(load.latencies, n=10)[-1] if len(load.latencies) > 1 else load.latencies[0]
    return (
        str(load.concurrent), load.method, f"{load.throughput:.1f}", "–" if gain is None else f"{gain:.2f}",
        f"{statistics.median(load.latencies):.2f}", f"{late:.2f}", f"{statistics.median(load.first_tokens):.3f}",
        "–" if load.accepted_length is None else f"{load.accepted_length:.2f}",
    )  # fmt: skip
