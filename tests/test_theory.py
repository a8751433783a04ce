"""What the lab shows of one step is what the rules and the divergences say; bounds hold; records become positions."""

from __future__ import annotations

import exact
import pytest
import torch
from hypothesis import given, settings
from ui_fakes import token

from cactus import theory
from cactus.acceptance import RULES, make_rule
from cactus.divergence import boosted_prob, kl, output_probs, taylor_boosted_prob, total_variation
from cactus.errors import CactusError
from cactus.trace import TopToken


@pytest.mark.parametrize("preset", theory.PRESETS, ids=lambda preset: preset.name)
def test_every_number_of_every_rule_is_the_library_s(preset):
    rules = theory.default_rules()
    step = theory.work_out(preset.draft_probs, preset.verifier_probs, preset.drafted, list(rules.values()))
    draft, verifier = exact.rows(*step.draft_probs), exact.rows(*step.verifier_probs)
    assert [worked.rule.name for worked in step.rules] == list(RULES)
    for worked in step.rules:
        rule = make_rule(worked.rule.name)
        assert torch.equal(exact.rows(*worked.accept_probs), exact.accept_probs(rule, draft, verifier))
        recovery = rule.recovery_probs(draft, verifier, preset.drafted)
        assert torch.equal(exact.rows(*worked.recovery_probs), recovery)
        output = output_probs(rule, draft, verifier)
        assert worked.output_probs == output.tolist()
        assert worked.output_kl == kl(output, verifier).item()
        assert worked.output_reverse_kl == kl(verifier, output).item()
        assert worked.output_tv == total_variation(output, verifier).item()
        steps = rule.judge(draft[None], verifier[None], torch.tensor([preset.drafted]))
        assert worked.boosted_prob == pytest.approx(steps.boosted_prob.item(), abs=1e-12)
        assert worked.adjusted_kl == pytest.approx(max(0.0, steps.kl.item()), abs=1e-9)
        accepted = sum(p * a for p, a in zip(step.draft_probs, worked.accept_probs, strict=True))
        assert worked.expected_acceptance == pytest.approx(accepted, abs=1e-12)


@pytest.mark.parametrize(("name", "params"), exact.SETTINGS, ids=exact.SETTING_IDS)
def test_accepting_in_a_row_is_accepting_one_by_one(name, params):
    rule = make_rule(name, **params)
    for draft, verifier in exact.CORNERS.values():
        assert torch.equal(rule.accept_row(draft, verifier), exact.accept_probs(rule, draft, verifier))


@pytest.mark.parametrize(("name", "params"), exact.SETTINGS, ids=exact.SETTING_IDS)
@settings(max_examples=20, deadline=None)
@given(pair=exact.pair_strategy())
def test_what_is_guaranteed_holds(name, params, pair):
    draft, verifier = pair
    rule = make_rule(name, **params)
    for drafted in range(len(draft)):
        worked = theory.work_out(draft.tolist(), verifier.tolist(), drafted, [rule]).rules[0]
        for guarantee, spent in worked.guarantees:
            assert spent <= guarantee.bound + 1e-9, guarantee


def test_most_rules_guarantee_something():
    step = theory.work_out([0.2, 0.5, 0.3], [0.5, 0.3, 0.2], 1, list(theory.default_rules().values()))
    bounded = {worked.rule.name for worked in step.rules if worked.guarantees}
    assert bounded == set(RULES) - {"tas", "topk", "lenience"}


def test_weights_are_worked_with_as_distributions():
    rules = [make_rule("cactus", delta=0.2)]
    scaled = theory.work_out([2, 5, 3], [10, 6, 4], 0, rules)
    assert scaled == theory.work_out([0.2, 0.5, 0.3], [0.5, 0.3, 0.2], 0, rules)


@pytest.mark.parametrize(
    ("draft", "verifier", "drafted", "message"),
    [
        ([1.0], [1.0], 0, "draft has 1 tokens; 2 to 12 are allowed"),
        ([1.0] * 13, [1.0] * 13, 0, "draft has 13 tokens"),
        ([0.5, float("nan")], [0.5, 0.5], 0, "draft of token 2 is nan"),
        ([0.5, 0.5], [-0.1, 1.1], 0, "verifier of token 1 is -0.1"),
        ([0.5, 0.5], ["x", 1.1], 0, "verifier of token 1 is 'x'"),
        ([0.5, 0.5], [0.0, 0.0], 0, "verifier is 0 everywhere"),
        ([0.5, 0.5], [1.0, 1.0, 1.0], 0, "draft has 2 tokens and verifier 3"),
        ([0.5, 0.5], [0.5, 0.5], 2, "drafted is 2; 0 to 1 are allowed"),
    ],
)
def test_what_is_no_step_is_refused_by_name(draft, verifier, drafted, message):
    with pytest.raises(CactusError, match=message):
        theory.work_out(draft, verifier, drafted, [make_rule("sps")])


@pytest.mark.parametrize("divergence", ["kl", "chi2", "tv"])
def test_the_curve_is_the_solvers_and_overspends_where_taylor_is_higher(divergence):
    curve = theory.boost_curve(0.2, divergence)
    q = exact.rows(*curve.verifier_prob)
    assert curve.taylor == taylor_boosted_prob(q, 0.2).tolist()
    assert curve.exact == boosted_prob(q, 0.2, divergence).tolist()
    for taylor, best, cost, most in zip(curve.taylor, curve.exact, curve.taylor_cost, curve.exact_cost, strict=True):
        assert most <= 0.2 + 1e-12
        if taylor > best + 1e-9:
            assert cost > 0.2
        if taylor < best - 1e-9:
            assert cost < 0.2


def top(*entries: tuple[int, str, float]) -> tuple[TopToken, ...]:
    return tuple(TopToken(id=id_, text=text, prob=prob) for id_, text, prob in entries)


def test_a_recorded_token_becomes_two_distributions():
    recorded = token(
        " c", "accepted", 0, draft_prob=0.04, verifier_prob=0.2,
        top_draft=top((1, " a", 0.5), (2, " b", 0.3)), top_verifier=top((2, " b", 0.6), (9, " d", 0.1)),
    ).model_copy(update={"id": 7})  # fmt: skip
    found = theory.position(recorded)
    assert found.tokens == (" a", " b", " d", " c", "all others")
    assert found.drafted == 3
    # p of d: at most 0.3 (the last of the top), and half of what is left; the others share the rest
    assert found.draft_probs == pytest.approx((0.5, 0.3, 0.08, 0.04, 0.08))
    assert found.draft_estimated == (False, False, True, False, True)
    # q of a: at most 0.1, and half of the 0.1 that is left
    assert found.verifier_probs == pytest.approx((0.05, 0.6, 0.1, 0.2, 0.05))
    assert found.verifier_estimated == (True, False, False, False, True)


def test_a_whole_record_of_ten_different_tokens_keeps_the_drafted_one():
    draft = top(*((i, f"d{i}", 0.1) for i in range(5)))
    verifier = top(*((i, f"v{i}", 0.1) for i in range(10, 15)))
    recorded = token("n", "rejected", 0, draft_prob=0.01, verifier_prob=0.001, top_draft=draft, top_verifier=verifier)
    found = theory.position(recorded)
    assert len(found.tokens) == theory.MOST and found.tokens[found.drafted] == "n"
    assert sum(found.draft_probs) == pytest.approx(1.0) and sum(found.verifier_probs) == pytest.approx(1.0)


def test_what_was_not_drafted_is_no_position():
    with pytest.raises(CactusError, match="no draft distribution"):
        theory.position(token(" x", "bonus", 0))
