"""`python -m cactus pairs`: the registry as a table. Needs neither torch nor a network."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from cactus.machine import look
from cactus.pairs import PAIRS
from cactus.pairs.state import PairState, kept_weights, state_of
from cactus.weights.reach import HubProbe

HEADINGS = ("pair", "verifier with drafter", "size", "licence", "state", "")
PATIENCE_SECONDS = 1.0  # for the hub's first sign of life


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    states = survey()
    if args.json:
        sys.stdout.write(json.dumps([asdict(state) for state in states], indent=2) + "\n")
    else:
        sys.stdout.write(table([HEADINGS, *map(_row, states)]) + "\n")
    return 0


def survey() -> list[PairState]:
    """All pairs of the registry on this machine as it stands."""
    probe = HubProbe()
    probe.state()  # it is asked while we look at the disk
    kept = kept_weights(PAIRS.values())
    machine = look(kept, probe.state(PATIENCE_SECONDS))
    return [state_of(spec, machine) for spec in PAIRS.values()]


def _row(state: PairState) -> tuple[str, ...]:
    sizes = state.size.replace(" verifier", "").replace(" drafter", "")
    return state.name, state.description, sizes, state.licence, state.state, state.needs


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart; the last one runs free."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
