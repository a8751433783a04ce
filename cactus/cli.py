"""The command line: finds the command, turns errors into one line and an exit code.

Each command is a module with `add_arguments(parser)` and `run(args) -> exit code`, imported when it is called, so
that help and bad input do not wait for torch. Exit codes: 0 done, 2 bad input or nothing to be had (one line on
stderr), 130 stopped with Ctrl-C, 141 the reader of our output went away.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

from cactus.commands.early import check_pair
from cactus.terminal import one_line
from cactus.versions import __version__

PROGRAM = "python -m cactus"
BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


class Command(NamedTuple):
    """Where a command lives, and its line in the help."""

    module: str
    help: str


COMMANDS = {
    "generate": Command("cactus.commands.generate", "stream text, tokens marked by what became of them"),
    "compare": Command("cactus.commands.compare", "one prompt under several methods, side by side, as a table"),
    "trade": Command("cactus.commands.trade", "what methods accept at equal divergence, over many runs"),
    "bench": Command("cactus.bench.command", "measure methods against each other and against other libraries"),
    "acceptance": Command("cactus.training.acceptance_command", "how often a pair's drafts are accepted, by position"),
    "pairs": Command("cactus.commands.pairs", "list the model pairs"),
    "record": Command("cactus.commands.record", "record the runs that the page shows without a model"),
    "check": Command("cactus.commands.check", "read saved traces and check every verdict in them again"),
    "schema": Command("cactus.commands.schema", "the JSON Schema of saved traces"),
    "fetch": Command("cactus.commands.fetch", "get a pair's weights ahead of time, or check them"),
    "export": Command("cactus.commands.export", "a pair's two models as folders for other engines"),
    "train": Command("cactus.training.command", "train a pair's draft model"),
}


class Parser(argparse.ArgumentParser):
    """Errors take one line, like all others; options cannot be abbreviated, so that new ones break no script."""

    def __init__(self, **options: object) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"error: {one_line(message)} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without Unicode still gets the text
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # the libraries' own; ours says what is going on
    try:
        code = _run(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _discard_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {one_line(str(error))}\n")
        return BAD_INPUT


def _run(argv: list[str]) -> int:
    try:
        if not argv or argv[0] not in COMMANDS:
            return _answer_without_command(argv)
        check_pair(argv[1:])  # importing torch takes longer than that
        command = import_module(COMMANDS[argv[0]].module)
        parser = Parser(prog=f"{PROGRAM} {argv[0]}", description=COMMANDS[argv[0]].help)
        command.add_arguments(parser)
        args = parser.parse_args(argv[1:])
    except SystemExit as end:  # argparse: help, version, errors
        return int(end.code or 0)
    return int(command.run(args))


def _answer_without_command(argv: list[str]) -> int:
    """Help, the version, or what is wrong."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items())
    parser = Parser(prog=PROGRAM, epilog=f"commands:\n{lines}\n\n{PROGRAM} COMMAND --help tells more.")
    parser.add_argument("--version", action="version", version=f"cactus {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args(argv)
    if args.command is not None:
        parser.error(f"there is no command {args.command!r}; {', '.join(COMMANDS)} are allowed")
    if argv:
        parser.error(f"a command comes first, got {argv[0]!r}")
    parser.print_help()
    return 0


def _discard_output() -> None:
    """Nobody reads on: keep the interpreter from complaining when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def entry() -> NoReturn:
    """The `cactus` script."""
    sys.exit(main())
