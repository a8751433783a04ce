"""`python -m cactus schema`: the JSON Schema of saved traces, as in `assets/trace.schema.json`."""

from __future__ import annotations

import argparse
import json
import sys

from cactus.trace import trace_schema


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The file of the repository is made by it: python -m cactus schema > assets/trace.schema.json"


def run(args: argparse.Namespace) -> int:
    sys.stdout.write(json.dumps(trace_schema(), ensure_ascii=False, indent=1) + "\n")
    return 0
