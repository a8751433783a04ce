"""Rules whose verdict on a token depends on those before it: `block` and `cactus_budget`."""

import itertools
import math

import exact
import pytest
import torch

from cactus.acceptance import make_rule
from cactus.divergence import binary_divergence, boosted_prob, kl

TOLERANCE = 1e-12
VOCAB = 3


def tables(m: int, seed: int) -> list[tuple[exact.Table, exact.Table]]:
    """(draft, verifier): unrelated, sparse, and agreeing after every other prefix."""
    size = (VOCAB, m + 1)
    plain = exact.Table(*size, seed), exact.Table(*size, seed + 100)
    sparse = exact.Table(*size, seed, sparse=True), exact.Table(*size, seed + 100, sparse=True)
    alike = exact.Table(*size, seed), exact.Table(*size, seed + 100)
    for prefix in list(alike[0].of)[::2]:
        alike[0].of[prefix] = alike[1].of[prefix]
    return [plain, sparse, alike]


CASES = [(m, seed, kind) for m in (1, 2, 3) for seed in (1, 2) for kind in range(3)]
over_cases = pytest.mark.parametrize(("m", "seed", "kind"), CASES)


# --- block verification ------------------------------------------------------------------------


@pytest.mark.parametrize("name", exact.LOSSLESS)
@over_cases
def test_the_first_tokens_follow_the_verifiers_joint_law(name, m, seed, kind):
    draft, verifier = tables(m, seed)[kind]
    law = exact.emitted_law(make_rule(name), draft, verifier, m)
    assert (law - verifier.law(m + 1)).abs().max() < TOLERANCE


def test_the_joint_law_of_a_lossy_rule_is_another():
    draft, verifier = tables(2, 1)[0]
    law = exact.emitted_law(make_rule("cactus", delta=0.5), draft, verifier, 2)
    assert law.sum().item() == pytest.approx(1.0, abs=TOLERANCE)
    assert (law - verifier.law(3)).abs().max() > 0.01


@over_cases
def test_block_never_accepts_fewer_than_speculative_sampling(m, seed, kind):
    draft, verifier = tables(m, seed)[kind]
    ours, theirs = (exact.expected_accepted(make_rule(name), draft, verifier, m) for name in ("block", "sps"))
    assert ours >= theirs - TOLERANCE
    if m > 1 and kind == 0:
        assert ours > theirs + 1e-3
    if m == 1:
        assert ours == pytest.approx(theirs, abs=TOLERANCE)


def passing_chances(draft: torch.Tensor, verifier: torch.Tensor, tokens: tuple[int, ...]):
    """h_1 … h_m of the paper, for a block whose prefixes all have a residual or fall short."""
    weight, chances = 1.0, []
    for i, token in enumerate(tokens):
        weight = min(1.0, weight * verifier[i, token].item() / draft[i, token].item())
        if i + 1 == len(tokens):
            chances.append(weight)
        else:
            residual = (weight * verifier[i + 1] - draft[i + 1]).clamp(min=0).sum().item()
            chances.append(residual / (residual + 1 - weight))
    return chances


def test_sequential_tests_stop_where_the_longest_passing_prefix_ends():
    draft, verifier = tables(3, 5)[0]
    for tokens in itertools.product(range(VOCAB), repeat=3):
        p, q = draft.block(tokens), verifier.block(tokens)
        stops = [0.0] * 4
        for passed in itertools.product((True, False), repeat=3):
            chances = passing_chances(p, q, tokens)
            weight = math.prod(h if ok else 1 - h for h, ok in zip(chances, passed, strict=True))
            stops[max((i + 1 for i, ok in enumerate(passed) if ok), default=0)] += weight
        in_order = make_rule("block").accept_probs(p, q, torch.tensor(tokens))
        reached = [1.0, *in_order.cumprod(0).tolist(), 0.0]
        ours = [here - after for here, after in itertools.pairwise(reached)]
        assert ours == pytest.approx(stops, abs=TOLERANCE)


def test_a_single_drafted_token_is_judged_as_by_speculative_sampling():
    block, sps = make_rule("block"), make_rule("sps")
    for draft, verifier in exact.random_pairs(20, 3):
        assert torch.allclose(exact.accept_probs(block, draft, verifier), exact.accept_probs(sps, draft, verifier))
        assert torch.equal(block.output_probs(draft, verifier), verifier)


def test_block_recovers_from_the_weighted_residual_of_its_prefix():
    draft = torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    verifier = torch.tensor([[0.4, 0.3, 0.3], [0.8, 0.1, 0.1]], dtype=torch.float64)
    standing = make_rule("block").at(draft, verifier, torch.tensor([0, 2]), 1)  # w_1 = 0.5
    recovered = standing.recovery_probs(draft[1], verifier[1], 2)
    assert recovered.tolist() == [1.0, 0.0, 0.0]  # 0.5·[.8, .1, .1] − [.3, .3, .4]
    assert standing.advance(0.0) == make_rule("block")


def test_equal_rows_accept_the_whole_block():
    table = exact.Table(VOCAB, 4, 8)
    for tokens in itertools.product(range(VOCAB), repeat=3):
        rows = table.block(tokens)
        assert make_rule("block").accept_probs(rows, rows, torch.tensor(tokens)).tolist() == [1.0] * 3


def test_an_impossible_token_ends_the_block_before_it():
    draft = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
    verifier = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    chances = make_rule("block").accept_probs(draft, verifier, torch.tensor([0, 1, 1]))
    assert chances.tolist() == [1.0, 0.0, 0.0]


# --- one budget for the whole text -------------------------------------------------------------


def spending(rule, draft, verifier, tokens):
    p, q = draft.block(tokens), verifier.block(tokens)
    return rule.judge(p, q, torch.tensor(tokens)), p, q


@pytest.mark.parametrize("budget", [0.0, 0.05, 0.3, 2.0])
def test_a_block_never_spends_more_than_is_left(budget):
    draft, verifier = tables(3, 1)[0]
    for tokens in itertools.product(range(VOCAB), repeat=3):
        steps, _, _ = spending(make_rule("cactus_budget", budget=budget), draft, verifier, tokens)
        assert steps.kl.sum().item() <= budget + TOLERANCE


def test_the_budget_of_a_whole_text_is_used_up_and_never_exceeded():
    draft, verifier = tables(3, 2)[0]
    rule, total = make_rule("cactus_budget", delta=0.4, budget=1.0), 0.0
    for tokens in itertools.islice(itertools.product(range(VOCAB), repeat=3), 12):
        steps, _, _ = spending(rule, draft, verifier, tokens)
        judged = steps.kl[:2].sum().item()  # a round that ends with its second token
        total += judged
        rule = rule.advance(judged)
        assert total <= 1.0 + TOLERANCE
        assert rule.left == pytest.approx(1.0 - total, abs=TOLERANCE)
    assert total == pytest.approx(1.0, abs=1e-9)
    steps, p, q = spending(rule, draft, verifier, (2, 1, 0))
    sps = make_rule("sps").judge(p, q, torch.tensor([2, 1, 0]))
    assert steps.accept_prob.tolist() == pytest.approx(sps.accept_prob.tolist(), abs=1e-6)


def test_an_exhausted_budget_is_speculative_sampling_exactly():
    spent = make_rule("cactus_budget", delta=1.0, budget=2.0).advance(2.5)
    assert spent.left == 0.0
    for draft, verifier in exact.random_pairs(20, 9):
        assert (spent.output_probs(draft, verifier) - verifier).abs().max() < TOLERANCE


def test_a_step_that_is_too_dear_is_shrunk_to_what_is_left():
    draft, verifier = (row[None] for row in exact.CORNERS["plain"])
    rule = make_rule("cactus_budget", delta=1.0, budget=0.03)
    steps = rule.judge(draft, verifier, torch.tensor([1]))
    assert steps.kl.item() == pytest.approx(0.03, abs=TOLERANCE)
    assert steps.boosted_prob.item() == pytest.approx(boosted_prob(0.3, 0.03).item())


def test_a_rich_budget_changes_nothing():
    rich, cactus = make_rule("cactus_budget", delta=0.3, budget=1000.0), make_rule("cactus", delta=0.3)
    draft, verifier = tables(3, 4)[0]
    for tokens in itertools.product(range(VOCAB), repeat=3):
        steps, p, q = spending(rich, draft, verifier, tokens)
        assert torch.equal(steps.boosted_prob, cactus.judge(p, q, torch.tensor(tokens)).boosted_prob)


def test_standing_inside_a_block_equals_the_block_s_own_numbers():
    """`at(i)` judges and recovers token i with the γ that `judge` reported for it."""
    draft, verifier = tables(3, 6)[0]
    rule = make_rule("cactus_budget", delta=0.6, budget=0.25)
    shrunk = 0
    for tokens in itertools.product(range(VOCAB), repeat=3):
        steps, p, q = spending(rule, draft, verifier, tokens)
        for i, token in enumerate(tokens):
            standing = rule.at(p, q, torch.tensor(tokens), i)
            h = standing.adjusted_probs(p[i], q[i], token)
            assert h[token].item() == pytest.approx(steps.boosted_prob[i].item(), abs=TOLERANCE)
            assert kl(h, q[i]).item() == pytest.approx(steps.kl[i].item(), abs=1e-9)
            output = exact.brute_output(standing, p[i], q[i])
            assert (standing.output_probs(p[i], q[i]) - output).abs().max() < TOLERANCE
            shrunk += (
                steps.kl[i].item()
                < 0.9 * binary_divergence(make_rule("cactus", delta=0.6).lift(q[i, token], 0.6), q[i, token]).item()
            )
    assert shrunk > 10
