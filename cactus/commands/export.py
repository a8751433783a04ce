"""`python -m cactus export`: a pair's verifier and draft model as two folders that any engine loads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from transformers import PreTrainedModel

from cactus.commands.pair_flags import add_pair_flags, pair_of
from cactus.errors import CactusError
from cactus.files import filling
from cactus.models.standalone import standalone
from cactus.pairs import Pair
from cactus.sums import CONFIG
from cactus.terminal import ProgressLine

NAMES = ("verifier", "draft")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_flags(parser.add_argument_group("models"))
    parser.add_argument("--dtype", default="auto", help="default: auto; bfloat16, float16 or float32")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="gets the folders verifier and draft")
    parser.epilog = "Each folder holds safetensors, config.json and the tokenizer, as vLLM and transformers load them."


def run(args: argparse.Namespace) -> int:
    progress = ProgressLine(sys.stderr)
    try:
        pair = pair_of(args).load("cpu", args.dtype, progress, static=True)  # so that no weights are rounded
    finally:
        progress.close()
    for folder, model in zip((args.out / name for name in NAMES), models(pair), strict=True):
        with filling(folder, CONFIG) as place:
            model.save_pretrained(place)
            pair.codec.tokenizer.save_pretrained(place)
        sys.stdout.write(f"{folder}\n")
    return 0


def models(pair: Pair) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Verifier and draft model. `CactusError` where a pair drafts without a language model."""
    drafter = pair.new_drafter()
    draft_model = standalone(drafter, pair.model)
    if draft_model is None:
        raise CactusError(
            f"{pair.name} drafts with {type(drafter).__name__}, which is no language model and works here alone; "
            "pairs with a draft model can be exported"
        )
    return pair.model, draft_model
