"""The law of two-token continuations through all of `decode`, with every sampling option on.

Exactly, by trying everything that a run can do; and once more by many seeded runs, with real random numbers. Both find
out rules and drafters that are wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from exact import SETTING_IDS, SETTINGS, made
from outcomes import (
    CODEC,
    KINDS,
    QuickPair,
    distance,
    exact_law,
    output_law,
    quick_pair,
    two_tokens,
    verifier_law,
)
from torch import Tensor

from cactus import RULES, SamplingParams, make_rule
from cactus.acceptance.lift import Sps
from cactus.drafters import ModelDrafter

SAMPLING = SamplingParams(temperature=1.3, top_k=3, top_p=0.85, min_p=0.25, repetition_penalty=1.3)
# Of the exact Cactus two divergences are enough here: γ* of all six is tested by itself.
JUDGED_ALONE = [
    (setting, name)
    for setting, name in zip(SETTINGS, SETTING_IDS, strict=True)
    if setting[0] != "block" and setting[1].get("divergence", "kl") in ("kl", "tv")
]
LOSSLESS = [name for name, rule in RULES.items() if rule.lossless]
LOSSLESS_AT = [("cactus", {"delta": 0.0}), ("cactus_budget", {"budget": 0.0}), ("lenience", {"lenience": 1.0})]
EXACT = 2e-6
RUNS = 200


def test_every_rule_is_there():
    assert {name for name, _ in SETTINGS} == set(RULES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSLESS)
def test_fault_1_a_lossless_rule_writes_as_the_verifier_alone_with_every_drafter(name, kind, monkeypatch):
    pair = quick_pair(kind)
    law = exact_law(monkeypatch, pair, make_rule(name), 2, SAMPLING)
    assert len(law) >= 3 and distance(law, verifier_law(pair, SAMPLING)) < EXACT


@pytest.mark.parametrize(("name", "params"), LOSSLESS_AT, ids=[name for name, _ in LOSSLESS_AT])
def test_fault_1_a_rule_at_its_lossless_setting_does_so_too(name, params, monkeypatch):
    law = exact_law(monkeypatch, quick_pair(), make_rule(name, **params), 2, SAMPLING)
    assert distance(law, verifier_law(quick_pair(), SAMPLING)) < EXACT


@pytest.mark.parametrize("m", [1, 2, "auto"])
def test_fault_1_whatever_the_draft_length(m, monkeypatch):
    law = exact_law(monkeypatch, quick_pair(), make_rule("block"), m, SAMPLING)
    assert distance(law, verifier_law(quick_pair(), SAMPLING)) < EXACT


@pytest.mark.parametrize(("setting", "name"), JUDGED_ALONE, ids=[name for _, name in JUDGED_ALONE])
def test_fault_1_a_rule_writes_what_its_output_distribution_says(setting, name, monkeypatch):
    """With two drafted tokens both continuations are judged, so both follow `output_probs`."""
    rule = made(setting)
    law = exact_law(monkeypatch, quick_pair(), rule, 2, SAMPLING)
    assert distance(law, output_law(quick_pair(), rule, SAMPLING)) < EXACT


# --- what is wrong is found out ------------------------------------------------------------------


@dataclass(frozen=True)
class RecoversFromTheVerifier(Sps):
    """Fault 3: drawn from q instead of the residual."""

    def recovery_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_token: int) -> Tensor:
        return verifier_probs


@dataclass(frozen=True)
class AcceptsABitMore(Sps):
    """A tenth more than it may."""

    def accept_probs(self, draft_probs: Tensor, verifier_probs: Tensor, draft_tokens: Tensor) -> Tensor:
        return (1.1 * super().accept_probs(draft_probs, verifier_probs, draft_tokens)).clamp(max=1)


class Boaster(ModelDrafter):
    """Fault 2: drafts its likeliest token, but says that it drew it."""

    def propose(self, context):
        honest = super().propose(context)
        return replace(honest, tokens=honest.probs[:1].argmax(-1), probs=honest.probs[:1])


def boasting_pair() -> QuickPair:
    drafter = quick_pair().drafter
    return QuickPair("boasting", quick_pair().model, CODEC, lambda: Boaster(drafter().model, CODEC.vocab_size))


WRONG = {
    "recovers from the verifier": (quick_pair, RecoversFromTheVerifier()),
    "accepts a bit more": (quick_pair, AcceptsABitMore()),
    "a drafter that boasts": (boasting_pair, Sps()),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_or_drafter_is_found_out_exactly(name, monkeypatch):
    pair, rule = WRONG[name]
    law = exact_law(monkeypatch, pair(), rule, 2, SAMPLING)
    assert distance(law, verifier_law(pair(), SAMPLING)) > 1000 * EXACT


# --- with real random numbers --------------------------------------------------------------------


def misfit(pair, rule, m, sampling, expected) -> float:
    """χ² of many seeded runs against a law, divided by what one run in a thousand exceeds; cells below 5 together."""
    counts = Counter(
        tuple(t.id for t in two_tokens(pair, rule, m, sampling, seed).trace.tokens[:2]) for seed in range(RUNS)
    )
    assert set(counts) <= {key for key, weight in expected.items() if weight > 0}
    large = {key: RUNS * weight for key, weight in expected.items() if RUNS * weight >= 5}
    cells = [(counts[key], mean) for key, mean in large.items()]
    if (rest := RUNS - sum(large.values())) > 1:
        cells.append((RUNS - sum(count for count, _ in cells), rest))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    degrees = len(cells) - 1
    assert degrees >= 2
    spread = 2 / (9 * degrees)  # Wilson and Hilferty's quantile of χ²; 3.09 is that of the normal law
    return statistic / (degrees * (1 - spread + 3.09 * math.sqrt(spread)) ** 3)


@pytest.mark.parametrize(("name", "kind"), [*(("sps", kind) for kind in KINDS), ("block", KINDS[0])])
def test_fault_5_seeded_runs_follow_the_verifier_with_every_drafter(name, kind):
    pair = quick_pair(kind)
    assert misfit(pair, make_rule(name), 2, SAMPLING, verifier_law(pair, SAMPLING)) < 1


def test_seeded_runs_find_a_wrong_rule_out():
    expected = verifier_law(quick_pair(), SAMPLING)
    assert misfit(quick_pair(), RecoversFromTheVerifier(), 2, SAMPLING, expected) > 1
    assert misfit(boasting_pair(), Sps(), 2, SAMPLING, expected) > 1


def test_every_sampling_option_matters_here():
    """Else the tests above would prove less than they say."""
    expected = verifier_law(quick_pair(), SAMPLING)
    for name, usual in SamplingParams().to_dict().items():
        without = SamplingParams(**(SAMPLING.to_dict() | {name: usual}))
        assert distance(verifier_law(quick_pair(), without), expected) > 0.02, name
