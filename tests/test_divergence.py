"""Divergences and the γ* solvers against textbook sums and brute force."""

import math

import exact
import pytest
import torch
from exact import rows

from cactus.acceptance import make_rule
from cactus.divergence import (
    DIVERGENCES,
    binary_divergence,
    boosted_prob,
    entropy,
    js,
    kl,
    output_probs,
    reverse_kl,
    taylor_boosted_prob,
    total_variation,
)

SIX = ["kl", "reverse_kl", "chi2", "tv", "hellinger", "js"]
# 0 and 1, tiny, near 1/2, nearly 1.
PROBS = rows(0.0, 1e-9, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1 - 1e-9, 1.0)
BUDGETS = (1e-6, 0.01, 0.1, 0.3, 1.0, 5.0)


def test_the_registry_holds_the_six():
    assert list(DIVERGENCES) == SIX


@pytest.mark.parametrize("name", SIX)
def test_divergence_of_equal_distributions_is_zero_and_of_others_positive(name):
    for draft, verifier in exact.random_pairs(10, 1):
        assert DIVERGENCES[name](verifier, verifier).item() == pytest.approx(0.0, abs=1e-15)
        assert DIVERGENCES[name](draft, verifier) > 0


def test_hand_computed_values():
    a, b = rows(0.5, 0.5, 0.0), rows(0.25, 0.25, 0.5)
    assert kl(a, b).item() == pytest.approx(math.log(2))
    assert reverse_kl(a, b).item() == math.inf
    assert DIVERGENCES["chi2"](a, b).item() == pytest.approx(1.0)
    assert total_variation(a, b).item() == pytest.approx(0.5)
    assert DIVERGENCES["hellinger"](a, b).item() == pytest.approx(1 - math.sqrt(0.5))
    assert js(rows(1.0, 0.0), rows(0.0, 1.0)).item() == pytest.approx(math.log(2))
    assert entropy(rows(0.5, 0.25, 0.25)).item() == pytest.approx(1.5 * math.log(2))
    assert entropy(rows(1.0, 0.0)).item() == 0.0


@pytest.mark.parametrize("name", SIX)
def test_no_zero_gives_nan(name):
    for draft, verifier in exact.CORNERS.values():
        assert not DIVERGENCES[name](draft, verifier).isnan()


def test_divergences_work_row_by_row():
    draft, verifier = exact.CORNERS["plain"]
    both = torch.stack((draft, verifier)), torch.stack((verifier, verifier))
    assert kl(*both).tolist() == [kl(draft, verifier).item(), 0.0]
    assert entropy(both[0]).shape == (2,)


@pytest.mark.parametrize("name", SIX)
def test_the_divergence_of_a_lift_is_that_of_its_two_parts(name):
    for _, verifier in exact.random_pairs(20, 2):
        for token in range(len(verifier)):
            prob = verifier[token]
            if not 0 < prob < 1:
                continue
            boosted = prob + 0.3 * (1 - prob)
            h = verifier * (1 - boosted) / (1 - prob)
            h[token] = boosted
            whole = DIVERGENCES[name](h, verifier).item()
            assert binary_divergence(boosted, prob, name).item() == pytest.approx(whole, abs=1e-12)
            assert exact.binary(name, boosted.item(), prob.item()) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("name", SIX)
@pytest.mark.parametrize("delta", BUDGETS)
def test_solver_finds_the_brute_force_boost(name, delta):
    boosted = boosted_prob(PROBS, delta, name)
    for prob, found in zip(PROBS.tolist(), boosted.tolist(), strict=True):
        assert found == pytest.approx(exact.largest_within(name, prob, delta), abs=1e-10)


@pytest.mark.parametrize("name", SIX)
@pytest.mark.parametrize("delta", BUDGETS)
def test_solver_never_overspends_and_stops_only_at_the_budget_or_at_one(name, delta):
    boosted = boosted_prob(PROBS, delta, name)
    spent = binary_divergence(boosted, PROBS, name)
    assert (spent <= delta * (1 + 1e-12)).all()
    assert ((boosted >= PROBS) & (boosted <= 1)).all()
    inside = (PROBS > 1e-5) & (PROBS < 0.9995) & (boosted < 1 - 1e-9)  # else rounding decides
    assert inside.any() or (boosted[3:] > 1 - 1e-9).all()
    assert (spent[inside] >= delta * (1 - 1e-6)).all()


@pytest.mark.parametrize("name", SIX)
def test_a_budget_of_zero_buys_nothing(name):
    assert torch.equal(boosted_prob(PROBS, 0.0, name), PROBS)


def test_closed_forms():
    probs, delta = PROBS[1:-1], 0.04
    assert torch.allclose(boosted_prob(probs, delta, "tv"), (probs + delta).clamp(max=1))
    pearson = probs + (delta * probs * (1 - probs)).sqrt()
    assert torch.allclose(boosted_prob(probs, delta, "chi2"), pearson.clamp(max=1))


def test_the_taylor_step_is_exact_for_half_chi2():
    for delta in BUDGETS:
        taylor = taylor_boosted_prob(PROBS, delta)
        assert torch.allclose(taylor, boosted_prob(PROBS, 2 * delta, "chi2"), atol=1e-12, rtol=0)


def test_kl_reaches_one_iff_the_budget_pays_the_surprisal():
    for prob in (0.05, 0.3, 0.5, 0.9):
        cost = -math.log(prob)
        assert boosted_prob(prob, cost).item() == 1.0
        assert boosted_prob(prob, cost * (1 - 1e-9)).item() < 1.0


def test_probability_zero_stays_zero_where_lifting_it_is_infinitely_far():
    zero = torch.zeros(1, dtype=torch.float64)
    for name in ("kl", "chi2"):
        assert boosted_prob(zero, 5.0, name).item() == 0.0
    assert taylor_boosted_prob(zero, 5.0).item() == 0.0
    assert boosted_prob(zero, 0.1, "reverse_kl").item() == pytest.approx(1 - math.exp(-0.1))
    assert boosted_prob(zero, 0.1, "tv").item() == pytest.approx(0.1)


def test_the_published_example():
    assert taylor_boosted_prob(0.5, 0.2).item() == pytest.approx(0.816, abs=5e-4)
    assert boosted_prob(0.5, 0.2).item() == pytest.approx(0.805, abs=5e-4)


def test_solvers_keep_dtype_and_shape_and_take_a_budget_per_row():
    probs = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    assert boosted_prob(probs, 0.1).dtype == torch.float32
    deltas = torch.tensor([[0.1], [0.4]])
    together = boosted_prob(probs, deltas)
    assert together.shape == (2, 3)
    assert torch.allclose(together[1], boosted_prob(probs[1], 0.4), atol=1e-6)
    assert torch.allclose(taylor_boosted_prob(probs, deltas)[0], taylor_boosted_prob(probs[0], 0.1))


@pytest.mark.parametrize("delta", [-0.1, math.nan, math.inf])
def test_a_bad_budget_is_refused(delta):
    for solve in (boosted_prob, taylor_boosted_prob):
        with pytest.raises(ValueError, match="delta must be a finite number of at least 0"):
            solve(0.5, delta)


def test_an_unknown_divergence_is_refused_by_name():
    with pytest.raises(ValueError, match="one of kl, reverse_kl, chi2, tv, hellinger, js, got 'f'"):
        boosted_prob(0.5, 0.1, "f")


def test_output_probs_asks_the_rule():
    draft, verifier = exact.CORNERS["plain"]
    rule = make_rule("cactus", delta=0.02)
    assert torch.equal(output_probs(rule, draft, verifier), rule.output_probs(draft, verifier))
    assert not torch.allclose(output_probs(rule, draft, verifier), verifier, atol=0.01)
