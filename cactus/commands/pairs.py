"""`python -m cactus pairs`: the registry as a table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from cactus.session import PairState, Session

HEADINGS = ("pair", "what it is", "size", "needs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    states = Session().states()
    if args.json:
        sys.stdout.write(json.dumps([asdict(state) for state in states], indent=2) + "\n")
    else:
        sys.stdout.write(table([HEADINGS, *map(_row, states)]) + "\n")
    return 0


def _row(state: PairState) -> tuple[str, ...]:
    return state.name, state.description, state.size, state.needs or "ready"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart; the last one runs free."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
