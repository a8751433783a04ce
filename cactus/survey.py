"""All pairs as they stand on this machine: which are loaded, which failed, which could be had, and why others cannot.

Never waits for the network: whether the hub can be reached is asked in the background.
"""

from __future__ import annotations

from cactus.faults import public
from cactus.machine import Machine, look
from cactus.pairs import Pair, PairSpec
from cactus.pairs.registry import all_pairs
from cactus.pairs.state import PairState, kept_weights, state_of
from cactus.pairs.status import check_memory, no_memory, weights_in_memory
from cactus.residents import Residents
from cactus.weights.reach import HubProbe


class Survey:
    """device, dtype: "auto", or what all pairs are loaded on and with."""

    def __init__(self, device: str = "auto", dtype: str = "auto") -> None:
        self._device = device
        self._dtype = dtype
        self._probe = HubProbe()

    def states(self, residents: Residents) -> list[PairState]:
        """All pairs of the registry, and those added since."""
        specs = all_pairs()
        machine = self._emptied(look(kept_weights(specs), self._probe.state(), self._device), residents)
        return [_state(spec, machine, residents) for spec in specs]

    def check(self, spec: PairSpec, residents: Residents) -> None:
        """`UnavailableError` with both sizes where it would not fit even if every other pair were dropped."""
        if residents.peek(spec.name) is None:
            check_memory(spec, self._emptied(look(device=self._device), residents), self._dtype)

    def fits_now(self, spec: PairSpec) -> bool:
        """Whether it fits beside what is loaded."""
        return not no_memory(spec, look(device=self._device), self._dtype)

    def _emptied(self, machine: Machine, residents: Residents) -> Machine:
        """With the room that the loaded pairs would make."""
        for spec in all_pairs():
            pair = residents.peek(spec.name)
            if pair is not None:
                size = weights_in_memory(spec, pair.model.dtype.itemsize)
                on_gpu = pair.device.type == "cuda"
                machine = machine.with_room(size, (pair.device.index or 0) if on_gpu else None)
        return machine


def _state(spec: PairSpec, machine: Machine, residents: Residents) -> PairState:
    pair = residents.peek(spec.name)
    return state_of(spec, machine, _where(pair) if pair is not None else "", public(residents.failure(spec.name)))


def _where(pair: Pair) -> str:
    return f"{pair.device}, {pair.dtype}"
