"""Whether a pair can be used on a machine, and if not, why: a pure function of its sizes and of facts.

Memory needed = every weight, the keys and values of a few thousand tokens, and what a run needs beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cactus.errors import UnavailableError
from cactus.machine import HEADROOM, Machine
from cactus.pairs.spec import PairSpec
from cactus.weights import HubWeights
from cactus.weights.hub_cache import how_to_get_gated
from cactus.weights.source import amount

Availability = Literal["ready", "can download", "gated", "too large here", "unreachable"]

NARROW, WIDE = 2, 4  # bytes of a number in bfloat16 and in float32
WIDTHS = {"bfloat16": NARROW, "float16": NARROW, "float32": WIDE}
CONTEXT_TOKENS = 4096
WORKSPACE = 500_000_000  # logits, activations and what the libraries allocate with the first run
INT8_SHARE = 0.5  # of a draft model's weights: on a CPU it may keep a rounded copy (`models.quantized`)


@dataclass(frozen=True)
class Status:
    """What can be done with a pair here. reason: what to know or to do; empty where there is nothing to say."""

    state: Availability
    reason: str = ""

    @property
    def usable(self) -> bool:
        """Whether a run may be tried."""
        return self.state in ("ready", "can download")


def status_of(spec: PairSpec, machine: Machine) -> Status:
    """In the order in which nothing can be done about it: size, licence, network."""
    reason = no_memory(spec, machine)
    missing = _missing(spec, machine)
    if reason or (reason := _no_disk(missing, machine)):
        return Status("too large here", reason)
    hub = [weights for weights in spec.hub_weights if weights.name not in machine.kept]
    gated = next((weights.repo_id for weights in hub if weights.gated), "")
    if gated and not machine.has_token:
        return Status("gated", how_to_get_gated(gated))
    if hub and machine.hub in ("unreachable", "switched off"):
        return Status("unreachable", _no_hub(machine))
    slow = _offloaded(spec, machine)
    if missing:
        return Status("can download", _joined(f"its weights are downloaded first ({amount(missing)})", slow))
    return Status("ready", slow)


def memory_needed(spec: PairSpec, number_bytes: int, on_cpu: bool) -> int:
    """Bytes that the loaded pair and one run take; at least what the loader asks for its verifier alone."""
    verifier, drafter = spec.verifier.size_bytes / NARROW, spec.drafter.size_bytes / NARROW
    cache = CONTEXT_TOKENS * sum(weights.cache_numbers for weights in spec.hub_weights)
    copy = INT8_SHARE * drafter if on_cpu and number_bytes == NARROW else 0.0
    whole = number_bytes * (verifier + drafter + copy + cache) + WORKSPACE
    return math.ceil(max(whole, HEADROOM * number_bytes * verifier))


def weights_in_memory(spec: PairSpec, number_bytes: int) -> int:
    """Bytes of both models' weights: what it gives back at least when it is dropped."""
    return (spec.verifier.size_bytes + spec.drafter.size_bytes) * number_bytes // NARROW


def number_bytes(spec: PairSpec, machine: Machine) -> int:
    """Of a weight: as the machine computes fastest, but the narrow ones where only those fit."""
    return NARROW if must_be_narrow(spec, machine) else machine.number_bytes


def must_be_narrow(spec: PairSpec, machine: Machine) -> bool:
    """Whether it does not fit in the dtype that is fastest here, so that bfloat16 is taken at the price of speed."""
    return machine.number_bytes > NARROW and memory_needed(spec, WIDE, not machine.accelerators) > _room(machine)


def no_memory(spec: PairSpec, machine: Machine, dtype: str = "auto") -> str:
    """What it needs and what there is, if that is less; else empty."""
    width = WIDTHS.get(dtype) or number_bytes(spec, machine)
    needed = memory_needed(spec, width, not machine.accelerators)
    if needed <= _room(machine):
        return ""
    return f"it needs about {amount(needed)} of memory; {_what_is_free(machine)}"


def check_memory(spec: PairSpec, machine: Machine, dtype: str = "auto") -> None:
    """`UnavailableError` with both sizes where it does not fit."""
    reason = no_memory(spec, machine, dtype)
    if reason:
        raise UnavailableError(f"{spec.label} is too large here: {reason}. Choose a smaller pair")


def needs_spreading(spec: PairSpec, machine: Machine) -> bool:
    """Whether no single accelerator holds it, so that its verifier goes onto several, or partly into main memory."""
    needed = memory_needed(spec, number_bytes(spec, machine), on_cpu=False)
    return bool(machine.accelerators) and needed > max(device.free for device in machine.accelerators)


def _room(machine: Machine) -> int:
    """Layers that do not fit onto the accelerators may stay in main memory."""
    return machine.accelerator_memory + machine.memory


def _what_is_free(machine: Machine) -> str:
    parts = [f"{amount(machine.memory)} of main memory"]
    if machine.accelerators:
        names = " and ".join(dict.fromkeys(device.name for device in machine.accelerators))
        count = f"{len(machine.accelerators)} × " if len(machine.accelerators) > 1 else ""
        parts.insert(0, f"{amount(machine.accelerator_memory)} on {count}{names}")
    return f"{' and '.join(parts)} are free"


def _offloaded(spec: PairSpec, machine: Machine) -> str:
    needed = memory_needed(spec, number_bytes(spec, machine), on_cpu=False)
    if not machine.accelerators or needed <= machine.accelerator_memory:
        return ""
    beside = amount(needed - machine.accelerator_memory)
    return f"{beside} of it stay in main memory, which is slow"


def _missing(spec: PairSpec, machine: Machine) -> int:
    """Bytes that have to be downloaded."""
    verifier = () if isinstance(spec.verifier, HubWeights) else (spec.verifier,)
    return sum(weights.download_bytes for weights in (*spec.hub_weights, *verifier) if weights.name not in machine.kept)


def _no_disk(missing: int, machine: Machine) -> str:
    if missing <= machine.disk:
        return ""
    return f"its download needs {amount(missing)}; {amount(machine.disk)} are free on the disk of HF_HOME"


def _no_hub(machine: Machine) -> str:
    if machine.hub == "switched off":
        return "its weights come from the model hub, which is switched off (HF_HUB_OFFLINE)"
    return "its weights come from the model hub, which cannot be reached"


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))
