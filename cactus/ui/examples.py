"""Prompts to pick from, those that suit the chosen pair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cactus.pairs.state import PairState
from cactus.ui import theme


def choice(pair: object, states: Sequence[PairState]) -> dict[str, Any]:
    """Samples and labels of a list of examples, as Gradio takes them; of the first pair if `pair` is unknown."""
    state = next((state for state in states if state.name == pair), states[0])
    examples = json.loads((theme.ASSETS / state.examples).read_text(encoding="utf-8"))
    return {
        "samples": [[example["prompt"]] for example in examples],
        "sample_labels": [example["label"] for example in examples],
    }
