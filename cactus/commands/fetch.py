"""`python -m cactus fetch`: weights onto this machine before they are needed."""

from __future__ import annotations

import argparse
import sys

from cactus.pairs import DEFAULT_PAIR, find_pair
from cactus.terminal import ProgressLine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", default=DEFAULT_PAIR, metavar="NAME", help=f"default: {DEFAULT_PAIR}")
    parser.add_argument("--verify", action="store_true", help="read every byte of the kept copy, not only its sizes")


def run(args: argparse.Namespace) -> int:
    spec = find_pair(args.pair)
    progress = ProgressLine(sys.stderr)
    try:
        folder = spec.fetch(progress, verify=args.verify)
    finally:
        progress.close()
    sys.stdout.write(f"{spec.name}: {spec.verifier.origin(folder)}\n{folder}\n")
    return 0
