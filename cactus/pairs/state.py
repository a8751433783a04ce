"""What is shown of a pair: on the page, by the API and on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cactus.machine import Machine
from cactus.pairs.spec import PairSpec
from cactus.pairs.status import Availability, status_of
from cactus.weights.source import amount


@dataclass(frozen=True)
class PairState:
    """Registry name, label, and one-line facts. `needs` is empty when nothing is missing.

    available: whether the last try to load it worked, if there was one; state: what can be done with it here.
    settings: to start with, by the names of the page's controls. examples: of prompts that suit it, a file of the
    assets.
    """

    name: str
    label: str
    description: str
    size: str
    device: str
    loaded: bool
    available: bool
    needs: str
    examples: str = "examples.json"
    state: Availability = "ready"
    licence: str = ""
    notes: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether a run may be tried: what failed once may work the next time."""
        return self.state in ("ready", "can download")


def kept_weights(specs: Iterable[PairSpec]) -> frozenset[str]:
    """Names of the weights that are on this machine."""
    every = {weights.name: weights for spec in specs for weights in (spec.verifier, *spec.hub_weights)}
    return frozenset(name for name, weights in every.items() if weights.is_kept)


def state_of(spec: PairSpec, machine: Machine, device: str = "", failure: str = "") -> PairState:
    """device: where it runs, if it is loaded; failure: why the last try to load it failed."""
    status = status_of(spec, machine)
    return PairState(
        name=spec.name,
        label=spec.label,
        description=f"{spec.verifier.name} with {spec.drafter.label}",
        size=f"{amount(spec.verifier.size_bytes)} verifier + {amount(spec.drafter.size_bytes)} drafter",
        device=device,
        loaded=bool(device),
        available=not failure,
        needs="" if device else failure or status.reason,
        examples=spec.examples,
        state="ready" if device else status.state,
        licence=_licences(spec),
        notes=spec.notes,
        settings={name: getattr(spec, name) for name in ("draft_length", "temperature", "top_p", "top_k")},
    )


def _licences(spec: PairSpec) -> str:
    drafter = [spec.drafter.hub.licence] if spec.drafter.hub is not None else []
    return ", ".join(dict.fromkeys([spec.verifier.licence, *drafter]))
