"""A loaded pair: the verifier, its tokenizer and drafters, ready to give every run caches of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PreTrainedModel

from cactus.costs import measure_costs
from cactus.interfaces import CachedModel, Drafter
from cactus.models import CacheSource, HFCodec, cached_models, input_device
from cactus.pace import StepCosts


@dataclass(frozen=True)
class Pair:
    """A loaded pair. Implements `interfaces.ModelPair`; every run takes its own caches from it.

    weights: where the verifier's numbers come from; draft_weights: how those of the drafter are held ("int8"), empty
    if it has none. Both as the trace records them. static: whether the verifier was asked to run on static caches
    (`models.static`); draft_caches: how the drafter's passes are run.
    """

    name: str
    model: PreTrainedModel
    codec: HFCodec
    drafter: Callable[[], Drafter]
    weights: str = "given"
    draft_weights: str = ""
    static: bool = False
    draft_caches: Callable[[], str] = str

    @property
    def dtype(self) -> str:
        """Of the verifier's weights."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        """Where the verifier runs; its inputs, where it is spread over several devices."""
        return input_device(self.model)

    @cached_property
    def costs(self) -> StepCosts:
        """Seconds of its steps, measured on first use."""
        return measure_costs(self.new_verifier(), self.new_drafter(), self.codec.vocab_size)

    @property
    def caches(self) -> str:
        """On which caches passes have been run, and whether as graphs; empty on those that grow, unless asked for
        others. As the trace records it."""
        kinds = {"verifier": self._verifiers.kind(), "drafter": self.draft_caches()}
        if kinds["verifier"] == kinds["drafter"]:
            return kinds["verifier"]
        return "; ".join(f"{model}: {kind}" for model, kind in kinds.items() if kind)

    @cached_property
    def _verifiers(self) -> CacheSource[CachedModel]:
        return cached_models(self.model, self.static)

    def new_verifier(self) -> CachedModel:
        """The verifier with an empty cache."""
        return self._verifiers.new()

    def new_drafter(self) -> Drafter:
        """The drafter with an empty cache."""
        return self.drafter()
