"""`python -m cactus bench`: what is measured, on the command line, and the files the race leaves."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cactus.bench import images, long, machine, page, plots, served, steps
from cactus.bench.bars import bar
from cactus.bench.contest import Contestant, Label, our_contestants
from cactus.bench.measurement import Measurement, Store
from cactus.bench.methods import MethodSpec, parse_draft_lengths, parse_methods
from cactus.bench.peers import PEERS, Peer, Task, find_peer
from cactus.bench.plan import MEASUREMENTS, Plan, loaded, names, prompts_digest, settle
from cactus.bench.prompts import PROMPTS, BenchPrompt, pick, read_prompts
from cactus.bench.report import Report, equality, table, to_csv, to_json, to_markdown
from cactus.bench.runner import Cell, Race, schedule
from cactus.bench.shapes import parse_changes
from cactus.bench.summary import against_peers, automatic_against_fixed, complete, summarize, unequal_repeats
from cactus.cli import INTERRUPTED, PROGRAM
from cactus.commands import pairs
from cactus.commands.pair_flags import MODELS, add_pair_flags, pair_of
from cactus.errors import CactusError, UnavailableError
from cactus.files import write_whole
from cactus.limits import Limits
from cactus.pairs import DEFAULT_PAIR, Pair
from cactus.session import Session
from cactus.settings import DraftLength, check_whole
from cactus.terminal import ProgressLine
from cactus.versions import versions

METHODS = "ar,sps,tas,cactus:delta=1"
LENGTHS = "2,4,6,8"
NOT_OF_STEPS = ("verifier", "device_map", "quantize")
READ_BY_STEPS = ("steps", "pair", "draft", "config", "device", "dtype", "out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_flags(parser, draft_help=f"your own draft model beside --verifier: {MODELS}; with --steps as --pair")
    parser.add_argument(
        "--methods", default=METHODS, metavar="LIST", help=f"parameters behind colons; default: {METHODS}"
    )
    parser.add_argument(
        "--draft-lengths", metavar="LIST", help=f"numbers or auto; default: {LENGTHS}; with --long or --page the pair's"
    )
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSONL; default: the bundled 80")
    parser.add_argument("--limit", type=int, metavar="N", help="only N prompts, evenly over their kinds")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="times each prompt is answered; default: 3")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--temperature", type=float, default=0.7, metavar="T", help="0 is greedy; default: 0.7")
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt; the next ones count on from it")
    parser.add_argument("--device", default="auto", help="default: auto (CUDA, then MPS, then the CPU)")
    parser.add_argument("--dtype", default="auto", help="default: auto; bfloat16, float16 or float32")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME", help=f"race {', '.join(PEERS)} as well")
    parser.add_argument("--long", action="store_true", help="measure the time of a round in a long text instead")
    parser.add_argument("--page", action="store_true", help="measure what the page costs a run instead")
    parser.add_argument(
        "--steps",
        action="store_true",
        help="measure single steps instead, checked against the CPU; --pair may then be a listed shape, or a folder or "
        "hub id with a config, and weights are random where there are none",
    )
    parser.add_argument("--config", metavar="LIST", help="with --steps: other sizes of the verifier, hidden_size=64,…")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="report, plots and measurements go there"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the benchmark in DIR")
    parser.add_argument("--save-traces", action="store_true", help="keep the trace of every run in DIR/traces")
    served.add_arguments(parser)


@dataclass(frozen=True)
class Asked:
    """The command line, checked."""

    plan: Plan
    methods: Sequence[MethodSpec]
    lengths: Sequence[DraftLength]
    prompts: Sequence[BenchPrompt]
    peers: Sequence[Peer]


def run(args: argparse.Namespace) -> int:
    _check_flags(args)
    if args.engine == "vllm":
        args.methods = served.METHODS if args.methods == METHODS else args.methods
        return served.run(args, _command(args))
    if args.verifier is None:
        args.pair = args.pair or DEFAULT_PAIR  # the command that reports give names it
    if args.steps:
        asked_for = argparse.Namespace(**{name: getattr(args, name) for name in READ_BY_STEPS})
        changes = parse_changes(args.config or "")
        return steps.run(args.pair, args.draft, changes, args.device, args.dtype, args.out, _command(asked_for))
    load = machine.load()
    asked = _asked(args)
    session = Session(args.device, args.dtype, Limits(max_seconds=math.inf), static=args.static)
    pair = page.in_passing(lambda: _load(session, asked.plan))
    asked = replace(asked, plan=replace(asked.plan, loaded=loaded(pair)))
    if args.long:
        return long.run(asked.plan, asked.methods, asked.lengths, pair, args.out, _command(args))
    if args.page:
        return page.run(asked.plan, asked.methods, asked.lengths, session, pair, args.out, _command(args))
    settle(asked.plan, args.out, args.resume)
    contestants, notes = _contestants(asked, session, pair)
    return _race(args, asked, pair, contestants, [_load_note(load), *notes])


def _check_flags(args: argparse.Namespace) -> None:
    if args.out.exists() and not args.out.is_dir():
        raise CactusError(f"--out is {str(args.out)!r}; a folder is needed")
    if (args.engine == "vllm") != bool(args.url):
        raise CactusError("--url is the address of a server for --engine vllm; give both or neither")
    if sum([args.steps, args.long, args.page]) > 1:
        raise CactusError("give one of --steps, --long and --page, not several")
    if args.steps:
        for name in NOT_OF_STEPS:
            if getattr(args, name) is not None:
                raise CactusError(f"--{name.replace('_', '-')} does not go with --steps: give --pair and --draft")
    else:
        if args.config is not None:
            raise CactusError("--config needs --steps")
        pair_of(args)


def _asked(args: argparse.Namespace) -> Asked:
    methods = parse_methods(args.methods)
    peers = [find_peer(name) for name in dict.fromkeys(args.peer)]
    default = str(pair_of(args).draft_length) if args.long or args.page else LENGTHS
    lengths = parse_draft_lengths(default if args.draft_lengths is None else args.draft_lengths)
    if args.limit is not None:
        check_whole("limit", args.limit, 1, None)
    prompts = pick(read_prompts(args.prompts), args.limit)
    plan = Plan(
        pair=pair_of(args).name,
        methods=names(methods),
        draft_lengths=tuple(lengths),
        peers=tuple(dict.fromkeys(args.peer)),
        prompts=prompts_digest(prompts),
        repeat=args.repeat,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=args.seed,
        device=args.device,
        dtype=args.dtype,
        processor=machine.processor(),
        versions=versions(),
    )
    return Asked(plan, methods, lengths, prompts, peers)


def _contestants(asked: Asked, session: Session, pair: Pair) -> tuple[list[Contestant], list[str]]:
    """All who take part, and what is to be known of the peers among them."""
    plan = asked.plan
    entries = [peer.enter(Task(pair, plan.sampling, plan.max_new_tokens)) for peer in asked.peers]
    ours = our_contestants(session, plan.request, asked.methods, asked.lengths)
    theirs = [contestant for entry in entries for contestant in entry.contestants]
    return [*ours, *theirs], [note for entry in entries for note in entry.notes]


def _load_note(load: str) -> str:
    return f"the machine's load before this command began: {load} (an idle one has less than 0.5)"


def _load(session: Session, plan: Plan) -> Pair:
    progress = ProgressLine(sys.stderr)
    try:
        return session.load(plan.pair, progress)
    finally:
        progress.close()


def _race(
    args: argparse.Namespace, asked: Asked, pair: Pair, contestants: Sequence[Contestant], notes: Sequence[str]
) -> int:
    plan = asked.plan
    cells = list(schedule(contestants, asked.prompts, plan.repeat, plan.seed))
    race = Race(Store(args.out / MEASUREMENTS), args.out / "traces" if args.save_traces else None)
    stopped = _run(race, cells)
    measurements = race.store.read()
    if not measurements:
        return INTERRUPTED
    labels = [contestant.label for contestant in contestants]
    report = _report(_command(args), plan, pair, labels, measurements, len(cells), notes)
    _print(report, _write(report, measurements, args.out))
    return INTERRUPTED if stopped else 0


def _run(race: Race, cells: Sequence[Cell]) -> bool:
    """Run what is still to be run; whether Ctrl-C ended it."""
    waiting = race.waiting(cells)
    with bar(len(cells), len(cells) - len(waiting)) as progress:
        try:
            for cell in waiting:
                progress.set_description_str(f"{cell.prompt.id}, {cell.contestant.label.key}", refresh=False)
                race.run(cell)
                progress.update()
        except KeyboardInterrupt:
            return True
    return False


def _report(
    command: str,
    plan: Plan,
    pair: Pair,
    labels: Sequence[Label],
    measurements: Sequence[Measurement],
    planned: int,
    notes: Sequence[str],
) -> Report:
    answered = [item for item in measurements if not item.error]
    able = {item.contestant for item in answered}
    unable = {item.contestant: item.error for item in measurements if item.contestant not in able}
    errors = {item.prompt: item.error for item in reversed(measurements) if item.error and item.contestant in able}
    if not answered:
        raise CactusError(f"no prompt could be answered: {next(iter(unable.values()))}")
    common = complete(measurements, labels)
    chosen = common or answered
    rows = summarize(chosen, labels)
    return Report(
        command=command,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        pair=plan.pair,
        loaded=plan.loaded,
        machine=machine.describe(pair.device),
        versions=plan.versions,
        settings={
            "temperature": plan.temperature,
            "max new tokens": plan.max_new_tokens,
            "prompts": plan.prompts,
            "repeats": plan.repeat,
            "seed": plan.seed,
        },
        done=len(measurements),
        planned=planned,
        skipped=errors | unable,
        partial=not common,
        rows=rows,
        versus=against_peers(chosen, rows),
        automatic=automatic_against_fixed(chosen, rows),
        notes=notes,
        unequal=unequal_repeats(measurements, labels),
        repeats=plan.repeat,
    )


def _write(report: Report, measurements: Sequence[Measurement], folder: Path) -> list[str]:
    """All files of the report; remarks for the person at the terminal."""
    made = plots.figures(report)
    write_whole(folder / plots.PLOTLY_JS.name, plots.PLOTLY_JS.read_bytes())
    write_whole(folder / "plots.html", plots.page(made, f"Benchmark of {report.pair}", plots.PLOTLY_JS.name))
    remarks, shots = [], []
    try:
        shots = images.write(made, folder)
    except UnavailableError as error:
        remarks.append(f"no PNG files: {error}")
    write_whole(folder / "report.md", to_markdown(report, shots))
    write_whole(folder / "report.csv", to_csv(report.rows))
    write_whole(folder / "report.json", to_json(report, measurements))
    return [*remarks, f"report: {folder / 'report.md'}"]


def _print(report: Report, remarks: Sequence[str]) -> None:
    lines = [pairs.table(table(report.rows))]
    for item in [*report.automatic, *report.versus]:
        lines.append(f"{item.ours} ÷ {item.peer}: {item.ratio.median:.2f}× wall tokens/s")
    if not report.finished:
        lines.append(f"stopped after {report.done} of {report.planned} conversations; --resume goes on")
    lines += [f"left out: {prompt} ({reason})" for prompt, reason in report.skipped.items()]
    sys.stdout.write("\n".join([*lines, equality(report).replace("**", ""), *remarks]) + "\n")


def _command(args: argparse.Namespace) -> str:
    """The command line that makes the same benchmark, with every setting spelt out."""
    words = ["bench"]
    for name, value in vars(args).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words += [flag] if value and name != "resume" else []
        elif isinstance(value, list):
            words += [word for item in value for word in (flag, str(item))]
        elif value is not None:
            words += [flag, _shown(value)]
    return f"{PROGRAM} {shlex.join(words)}"


def _shown(value: object) -> str:
    """Paths inside the working folder without it."""
    if isinstance(value, Path) and value.is_absolute() and value.is_relative_to(Path.cwd()):
        return str(value.relative_to(Path.cwd()))
    return str(value)
