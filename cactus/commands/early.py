"""What can be said of a pair before torch is imported: that its weights cannot be had."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cactus.errors import UnavailableError

PATIENCE_SECONDS = 2.0


def check_pair(argv: Sequence[str]) -> None:
    """`UnavailableError` if --pair names a pair of the model hub that is not here and cannot be fetched now.

    Whether it fits is for the command to say, which knows the device.
    """
    name = _pair(argv)
    if name is None:
        return
    from cactus.machine import look
    from cactus.pairs import PAIRS
    from cactus.pairs.state import kept_weights
    from cactus.pairs.status import status_of
    from cactus.weights.reach import HubProbe

    spec = PAIRS.get(name)
    if spec is None or not spec.hub_weights:
        return
    kept = kept_weights([spec])
    here = all(weights.name in kept for weights in spec.hub_weights)
    status = status_of(spec, look(kept, "unknown" if here else HubProbe().state(PATIENCE_SECONDS)))
    if status.state in ("gated", "unreachable"):
        raise UnavailableError(
            f"{spec.label} cannot be had: {status.reason}. `python -m cactus pairs` lists the others"
        )


def _pair(argv: Sequence[str]) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--pair")
    try:
        return parser.parse_known_args(list(argv))[0].pair
    except argparse.ArgumentError:  # the command's own parser says what is wrong
        return None
