"""Which pair a command uses: one of the registry by its name, or two models of the user's own. Shared flags."""

from __future__ import annotations

import argparse
from typing import Any

from cactus.errors import CactusError
from cactus.pairs import DEFAULT_PAIR, PairSpec, find_pair
from cactus.pairs.added import ADDED
from cactus.pairs.given import given_pair

OWN = ("draft", "verifier", "device_map", "quantize")
MODELS = "hub id, folder, .gguf file, or org/model:file.gguf"


def add_pair_flags(group: Any, *, draft_help: str = "your own draft model; without one: prompt lookup") -> None:
    """--pair, or --verifier with all that belongs to it."""
    group.add_argument("--pair", metavar="NAME", help=f"of the registry; default: {DEFAULT_PAIR}")
    group.add_argument("--verifier", metavar="MODEL", help=f"your own verifier in place of --pair: {MODELS}")
    group.add_argument("--draft", metavar="MODEL", help=draft_help)
    group.add_argument(
        "--device-map", metavar="MAP", help="auto: spread your own verifier over all GPUs and the CPU's memory"
    )
    group.add_argument(
        "--quantize", metavar="BITS", help="4bit or 8bit: round your own verifier (bitsandbytes; torchao)"
    )
    group.add_argument(
        "--static", action="store_true", help="run both models on static caches, on CUDA devices as graphs"
    )


def pair_of(args: argparse.Namespace) -> PairSpec:
    """The entry that the flags ask for; one of the user's own is found by its name from then on.

    Nothing is read yet. `CactusError` names an unknown pair, or flags that do not go together.
    """
    if args.verifier is None:
        needy = [name for name in OWN if getattr(args, name) is not None]
        if needy:
            raise CactusError(
                f"--{needy[0].replace('_', '-')} needs --verifier: a pair of the registry is loaded as it is"
            )
        return find_pair(args.pair or DEFAULT_PAIR)
    if args.pair is not None:
        raise CactusError(f"--pair is {args.pair!r} and --verifier is {args.verifier!r}; give one of the two")
    return ADDED.add(given_pair(args.draft, args.verifier, args.device_map, args.quantize))
