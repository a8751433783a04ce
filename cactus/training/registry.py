"""Which recipe makes which pair. A recipe for another pair is one entry of `RECIPES`.

Knows nothing of argument parsing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from cactus.errors import CactusError
from cactus.models import choose_dtype, eos_ids, load_model, load_tokenizer
from cactus.pairs import DEFAULT_PAIR, POCKET_PAIR, SMOLLM2_135M, TWO_LAYER_PAIR, PairSpec, find_pair
from cactus.training import pocket, recipe
from cactus.training.evaluate import Acceptance
from cactus.training.fit import Listener
from cactus.training.kinds import DraftKind, Feature, Layers
from cactus.training.recipe import Verifier, require_llama


@dataclass(frozen=True)
class Job:
    """One training. `verifier`: a folder to read in place of the one that would be fetched."""

    spec: PairSpec
    work: Path
    out: Path
    verifier: Path | None
    tell: Listener


@dataclass(frozen=True)
class PairRecipe:
    """settings: a dataclass of what the user may choose, `minutes` and `seed` among it. out: where results go."""

    settings: type[Any]
    out: Callable[[PairSpec], Path]
    run: Callable[[Job, Any], list[Acceptance]]

    def choose(self, given: Mapping[str, Any]) -> Any:
        """The settings; `CactusError` names one that this recipe does not have."""
        known = [field.name for field in fields(self.settings)]
        for name in given:
            if name not in known:
                raise CactusError(f"--{name.replace('_', '-')} is no setting of this pair's recipe")
        return self.settings(**given)


def load_verifier(folder: Path) -> Verifier:
    """The model that texts are sampled from, on the CPU."""
    if not folder.is_dir():
        raise CactusError(f"verifier is {folder}; it must be a folder with config.json and weights")
    device = torch.device("cpu")
    model = require_llama(load_model(folder, device, choose_dtype("auto", device)))
    tokenizer = load_tokenizer(folder)
    return Verifier(model, tokenizer, tuple(sorted(eos_ids(model, tokenizer))))


def _draft(kind: DraftKind[Any]) -> Callable[[Job, recipe.Recipe], list[Acceptance]]:
    def run(job: Job, settings: recipe.Recipe) -> list[Acceptance]:
        verifier = load_verifier(job.verifier or job.spec.fetch())
        return recipe.make(verifier, kind, settings, job.work, job.out, job.tell)

    return run


def _pocket(job: Job, settings: pocket.PocketRecipe) -> list[Acceptance]:
    large = load_verifier(job.verifier or SMOLLM2_135M.fetch())
    return pocket.PocketMaker(settings, job.work, job.out, job.tell).make(large)


RECIPES = {
    DEFAULT_PAIR: PairRecipe(recipe.Recipe, lambda spec: spec.drafter.folder, _draft(Feature())),
    TWO_LAYER_PAIR: PairRecipe(recipe.Recipe, lambda spec: spec.drafter.folder, _draft(Layers())),
    POCKET_PAIR: PairRecipe(pocket.PocketRecipe, lambda spec: spec.drafter.folder.parent, _pocket),
}


def find_recipe(pair: str) -> PairRecipe:
    """`CactusError` where the pair is unknown or nothing of it is trained."""
    spec = find_pair(pair)
    if pair not in RECIPES:
        raise CactusError(f"pair {pair} has no draft model to train: {spec.drafter.label}; {', '.join(RECIPES)} have")
    return RECIPES[pair]
