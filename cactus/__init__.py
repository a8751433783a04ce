"""Cactus: constrained acceptance speculative sampling (arXiv 2604.04987), and ten rules to compare it with.

from cactus import SamplingParams, decode, load_pair, make_rule
pair = load_pair("smollm2-135m")
for round in decode(pair, "Why is the sky blue?", make_rule("cactus", delta=1.0)): print(round.text, end="")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cactus.lazy import exports
from cactus.versions import __version__

if TYPE_CHECKING:
    from cactus.acceptance import RULES, make_rule
    from cactus.decoding import decode
    from cactus.generation import generate_with
    from cactus.pairs import PAIRS, load_pair
    from cactus.sampling import SamplingParams
    from cactus.trace import Trace

# Loaded when first used, so that `import cactus` and the command line's help do not wait for torch.
_HOMES = {
    "PAIRS": "cactus.pairs",
    "RULES": "cactus.acceptance",
    "SamplingParams": "cactus.sampling",
    "Trace": "cactus.trace",
    "decode": "cactus.decoding",
    "generate_with": "cactus.generation",
    "load_pair": "cactus.pairs",
    "make_rule": "cactus.acceptance",
}

__all__ = [
    "PAIRS",
    "RULES",
    "SamplingParams",
    "Trace",
    "__version__",
    "decode",
    "generate_with",
    "load_pair",
    "make_rule",
]


__getattr__ = exports("cactus", _HOMES)
