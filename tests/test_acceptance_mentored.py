"""Mentored decoding: its equations, its budget, and that nothing feasible accepts more."""

import math

import exact
import pytest
import torch
from hypothesis import given, settings

from cactus.acceptance import make_rule
from cactus.acceptance.mentored import solve_levels
from cactus.divergence import kl

PAIRS = [*exact.CORNERS.values(), *exact.random_pairs(14, seed=21)]
BUDGETS = (0.001, 0.05, 0.4, 2.0)


def plain_levels(draft: list[float], verifier: list[float], delta: float) -> tuple[float, float]:
    """1/α and 1/β by two nested bisections over plain sums."""

    def floor_for(mass: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            filled = sum(max(middle * q - p, 0) for p, q in zip(draft, verifier, strict=True))
            low, high = (middle, high) if filled <= mass else (low, middle)
        return low

    def divergence(ceiling: float) -> float:
        mass = sum(max(p - ceiling * q, 0) for p, q in zip(draft, verifier, strict=True))
        floor = floor_for(mass)
        total = 0.0
        for p, q in zip(draft, verifier, strict=True):
            if q > 0:
                emitted = min(max(p, floor * q), ceiling * q)
                total += q * math.log(q / emitted) if emitted > 0 else math.inf
        return total

    low, high = 1.0, max(1.0, *(p / q for p, q in zip(draft, verifier, strict=True) if q > 0))
    if divergence(high) <= delta:
        low = high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) <= delta else (low, middle)
    mass = sum(max(p - low * q, 0) for p, q in zip(draft, verifier, strict=True))
    return low, floor_for(mass)


@pytest.mark.parametrize("delta", BUDGETS)
def test_levels_agree_with_nested_bisection(delta):
    for draft, verifier in exact.random_pairs(14, seed=21):
        ceiling, floor = solve_levels(draft, verifier, delta)
        expected = plain_levels(draft.tolist(), verifier.tolist(), delta)
        assert ceiling.item() == pytest.approx(expected[0], rel=1e-9)
        if expected[0] < (draft / verifier)[verifier > 0].max():  # else no mass, any floor will do
            assert floor.item() == pytest.approx(expected[1], rel=1e-9)


@pytest.mark.parametrize("delta", BUDGETS)
def test_acceptance_and_recovery_follow_the_equations(delta):
    rule = make_rule("mentored", delta=delta)
    bound = 0
    for draft, verifier in PAIRS:
        if kl(verifier, draft) <= delta:
            continue
        ceiling, floor = solve_levels(draft, verifier, delta)
        accept = exact.accept_probs(rule, draft, verifier)
        possible = draft > 0
        expected = (ceiling * verifier / draft).clamp(max=1)[possible]
        assert torch.allclose(accept[possible], expected, atol=1e-12)
        lost, filled = (draft * (1 - accept)).sum(), (floor * verifier - draft).clamp(min=0)
        if lost > 1e-9:
            bound += 1
            assert filled.sum().item() == pytest.approx(lost.item(), abs=1e-12)
            recovered = rule.recovery_probs(draft, verifier, 0)
            assert torch.allclose(recovered, filled / filled.sum(), atol=1e-9)
    assert bound > 5


@pytest.mark.parametrize("delta", BUDGETS)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(pair=exact.pair_strategy())
def test_kl_from_the_verifier_to_the_output_keeps_the_budget(delta, pair):
    draft, verifier = pair
    output = exact.brute_output(make_rule("mentored", delta=delta), draft, verifier)
    assert kl(verifier, output).item() <= delta + 1e-12


@pytest.mark.parametrize("delta", BUDGETS)
def test_the_budget_is_used_where_it_binds(delta):
    bound = 0
    for draft, verifier in exact.random_pairs(14, seed=21):
        allowed = verifier > 0
        if allowed.all() and kl(verifier, draft) > delta:
            bound += 1
            output = make_rule("mentored", delta=delta).output_probs(draft, verifier)
            # Where almost nothing is rejected, the last digit of α moves the divergence by more.
            assert kl(verifier, output).item() == pytest.approx(delta, rel=1e-6)
    assert bound >= (1 if delta == 2.0 else 5)


def test_a_draft_within_the_budget_is_accepted_whole():
    draft, verifier = exact.CORNERS["plain"]
    distance = kl(verifier, draft).item()
    assert (exact.accept_probs(make_rule("mentored", delta=distance + 1e-9), draft, verifier) == 1).all()
    tighter = exact.accept_probs(make_rule("mentored", delta=distance * 0.9), draft, verifier)
    assert (tighter < 1).any()


def test_within_the_budget_even_a_token_the_verifier_rules_out_is_accepted():
    draft, verifier = exact.rows(0.45, 0.45, 0.1), exact.rows(0.5, 0.5, 0.0)
    assert exact.accept_probs(make_rule("mentored", delta=0.2), draft, verifier).tolist() == [1.0] * 3
    beyond = exact.accept_probs(make_rule("mentored", delta=0.1), draft, verifier)
    assert beyond[2] == 0


def test_no_output_within_the_budget_accepts_more():
    """The acceptance of any output π is at most Σ min(p, π)."""
    generator = torch.Generator().manual_seed(2)
    feasible = 0
    for draft, verifier in exact.random_pairs(20, seed=22):
        for delta in BUDGETS:
            accept = exact.accept_probs(make_rule("mentored", delta=delta), draft, verifier)
            ours = (draft * accept).sum()
            for share in torch.linspace(0, 1, 9, dtype=torch.float64).tolist():
                other = exact.random_row(len(draft), generator, 1.0)
                for toward in (draft, (verifier * draft).sqrt() + 1e-12, other):
                    rival = (1 - share) * verifier + share * toward / toward.sum()
                    rival = torch.where(verifier > 0, rival, 0.0)  # what no ceiling can reach
                    rival = rival / rival.sum()
                    if kl(verifier, rival) <= delta:
                        feasible += 1
                        assert torch.minimum(draft, rival).sum() <= ours + 1e-9
    assert feasible > 500


@pytest.mark.parametrize("delta", [0.1, 3.0])
def test_rows_are_solved_together_as_they_are_alone(delta):
    """Rows of unlike support, one of them silent on a token that the verifier allows."""
    pairs = [pair for pair in exact.random_pairs(60, seed=23) if len(pair[0]) == 3]
    pairs.append((exact.rows(0.5, 0.5, 0.0), exact.rows(0.4, 0.3, 0.3)))
    draft, verifier = (torch.stack(rows) for rows in zip(*pairs, strict=True))
    rule = make_rule("mentored", delta=delta)
    for token in range(3):
        tokens = torch.full((len(pairs),), token)
        together = rule.accept_probs(draft, verifier, tokens)
        alone = [rule.accept_probs(p[None], q[None], tokens[:1]).item() for p, q in pairs]
        assert together.tolist() == pytest.approx(alone, abs=1e-12)
