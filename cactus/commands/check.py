"""`python -m cactus check`: read saved traces and comparisons, and check every verdict in them again."""

from __future__ import annotations

import argparse
import sys
import zlib
from pathlib import Path
from typing import cast

from cactus.compare import Comparison
from cactus.documents import read_document
from cactus.errors import CactusError
from cactus.recorded import unpacked
from cactus.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a trace or a comparison, .json or .json.gz")


def run(args: argparse.Namespace) -> int:
    for file in args.files:
        sys.stdout.write(f"{file}: {_outcome(file)}\n")
    return 0


def _read(raw: bytes) -> Trace | Comparison:
    return cast("Trace | Comparison", read_document(raw, "trace or comparison", Trace, Comparison))


def _outcome(file: str) -> str:
    try:
        document = _read(unpacked(Path(file))).checked()
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise CactusError(f"{file}: {error}") from None
    traces = document.lanes if isinstance(document, Comparison) else (document,)
    tokens, rounds = sum(len(trace.tokens) for trace in traces), sum(len(trace.rounds) for trace in traces)
    lanes = f"{len(traces)} lanes, " if isinstance(document, Comparison) else ""
    return f"{lanes}{rounds:,} rounds, {tokens:,} tokens; every verdict follows from its own numbers"
