"""Model pairs: the registry, what each is made of, where its weights come from, and how it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cactus.lazy import exports
from cactus.pairs.drafting import (
    DrafterSource,
    Drafting,
    FeatureDraft,
    HubDraft,
    Lookup,
    OwnDraft,
    SharedDraft,
    UsualLookup,
)
from cactus.pairs.registry import DEFAULT_PAIR, PAIRS, POCKET_PAIR, SMOLLM2_135M, TWO_LAYER_PAIR, find_pair
from cactus.pairs.spec import PairSpec, Weights

if TYPE_CHECKING:
    from cactus.pairs.custom import load_pair, pair_from_models
    from cactus.pairs.pair import Pair

# Imported when first used: the registry can be read without torch.
_LATER = {
    "Pair": "cactus.pairs.pair",
    "load_pair": "cactus.pairs.custom",
    "pair_from_models": "cactus.pairs.custom",
}

__all__ = [
    "DEFAULT_PAIR",
    "PAIRS",
    "POCKET_PAIR",
    "SMOLLM2_135M",
    "TWO_LAYER_PAIR",
    "DrafterSource",
    "Drafting",
    "FeatureDraft",
    "HubDraft",
    "Lookup",
    "OwnDraft",
    "Pair",
    "PairSpec",
    "SharedDraft",
    "UsualLookup",
    "Weights",
    "find_pair",
    "load_pair",
    "pair_from_models",
]


__getattr__ = exports("cactus.pairs", _LATER)
