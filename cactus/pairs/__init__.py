"""Model pairs: the registry, what each is made of, where its weights come from, and how it is loaded."""

from cactus.pairs.custom import load_pair, pair_from_models
from cactus.pairs.drafting import DrafterSource, Drafting, FeatureDraft, Lookup, OwnDraft, SharedDraft
from cactus.pairs.pair import Pair
from cactus.pairs.registry import (
    DEFAULT_PAIR,
    PAIRS,
    POCKET_PAIR,
    SMOLLM2_135M,
    TWO_LAYER_PAIR,
    find_pair,
)
from cactus.pairs.spec import PairSpec, Weights

__all__ = [
    "DEFAULT_PAIR",
    "PAIRS",
    "POCKET_PAIR",
    "SMOLLM2_135M",
    "TWO_LAYER_PAIR",
    "DrafterSource",
    "Drafting",
    "FeatureDraft",
    "Lookup",
    "OwnDraft",
    "Pair",
    "PairSpec",
    "SharedDraft",
    "Weights",
    "find_pair",
    "load_pair",
    "pair_from_models",
]
