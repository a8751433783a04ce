"""Rule mathematics by exact enumeration in float64: accept, recover, emit."""

import math
import time

import exact
import pytest
import torch
from exact import rows
from hypothesis import given, settings

from cactus.acceptance import lift_output, make_rule
from cactus.acceptance.lift_output import lift_scale
from cactus.divergence import chi2, kl, output_probs, total_variation

TOLERANCE = 1e-12
PAIRS = [*exact.CORNERS.values(), *exact.random_pairs(12, seed=7)]
BY_FORMULA = [s for s in exact.SETTINGS if s[0] != "mentored"]  # it has a test file of its own
LIFTS = ("sps", "cactus", "cactus_exact", "cactus_adaptive", "cactus_budget")
thorough = settings(max_examples=20, deadline=None, derandomize=True)


def each(settings_list):
    ids = ["-".join([name, *map(str, params.values())]) for name, params in settings_list]
    return pytest.mark.parametrize("setting", settings_list, ids=ids)


def gap(a, b) -> float:
    return (a - b).abs().max().item()


# --- against the formulas ----------------------------------------------------------------------


@each(BY_FORMULA)
def test_accept_probability_follows_the_formula(setting):
    rule = exact.made(setting)
    for draft, verifier in PAIRS:
        chances = exact.accept_probs(rule, draft, verifier)
        for token in range(len(draft)):
            if draft[token] > 0:
                expected = exact.accept(rule, draft, verifier, token)
                assert chances[token].item() == pytest.approx(expected, abs=1e-9)


@each(BY_FORMULA)
def test_recovery_follows_the_formula_wherever_a_rejection_can_happen(setting):
    rule = exact.made(setting)
    for draft, verifier in PAIRS:
        for token in range(len(draft)):
            if draft[token] > 0 and exact.accept(rule, draft, verifier, token) < 1 - 1e-6:
                given_row = rule.recovery_probs(draft, verifier, token)
                assert gap(given_row, exact.recovery(rule, draft, verifier, token)) < 1e-6


@each([s for s in exact.SETTINGS if s[0] in LIFTS])
def test_steps_report_h_and_its_divergence(setting):
    rule = exact.made(setting)
    for draft, verifier in PAIRS:
        for token in range(len(draft)):
            steps = rule.judge(draft[None], verifier[None], torch.tensor([token]))
            h = exact.adjusted(rule, draft, verifier, token)
            assert h.sum().item() == pytest.approx(1.0, abs=1e-12)
            assert steps.boosted_prob.item() == pytest.approx(h[token].item(), abs=1e-9)
            assert steps.kl.item() == pytest.approx(kl(h, verifier).item(), abs=1e-6)


@each([s for s in exact.SETTINGS if s[0] in ("tas", "mentored", "interp", "topk", "lenience")])
def test_steps_of_fixed_recovery_rules_report_what_is_emitted(setting):
    rule = exact.made(setting)
    for draft, verifier in PAIRS:
        emitted = exact.brute_output(rule, draft, verifier)
        for token in range(len(draft)):
            steps = rule.judge(draft[None], verifier[None], torch.tensor([token]))
            assert steps.boosted_prob.item() == pytest.approx(emitted[token].item(), abs=1e-12)
            assert steps.kl.item() == pytest.approx(kl(emitted, verifier).item(), abs=1e-9)


def test_interpolation_emits_the_mixture_itself():
    rule = make_rule("interp", alpha=0.3)
    for draft, verifier in PAIRS:
        assert gap(rule.output_probs(draft, verifier), 0.3 * draft + 0.7 * verifier) < TOLERANCE


# --- the output distribution -------------------------------------------------------------------


@pytest.fixture(params=[0, 10**6], ids=["sorted", "each"])
def residuals(request, monkeypatch):
    """What a rejection leaves is poured out all at once, after sorting, or one by one."""
    monkeypatch.setattr(lift_output, "FEW", request.param)


@pytest.mark.usefixtures("residuals")
@each(exact.SETTINGS)
def test_output_equals_the_sum_over_all_that_a_step_can_do(setting):
    rule = exact.made(setting)
    for draft, verifier in PAIRS:
        output = output_probs(rule, draft, verifier)
        assert gap(output, exact.brute_output(rule, draft, verifier)) < TOLERANCE
        assert output.sum().item() == pytest.approx(1.0, abs=TOLERANCE)
        assert output.min() >= 0


@each(exact.SETTINGS)
@thorough
@given(pair=exact.pair_strategy())
def test_output_equals_the_sum_for_any_pair(setting, pair):
    rule = exact.made(setting)
    assert gap(output_probs(rule, *pair), exact.brute_output(rule, *pair)) < TOLERANCE


@pytest.mark.parametrize("name", exact.LOSSLESS)
@thorough
@given(pair=exact.pair_strategy())
def test_lossless_rules_emit_the_verifiers_distribution(name, pair):
    rule = make_rule(name)
    assert gap(output_probs(rule, *pair), pair[1]) < TOLERANCE
    assert gap(exact.brute_output(rule, *pair), pair[1]) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("cactus", {"delta": 0.0}),
        ("cactus_adaptive", {"delta": 0.0, "floor": 1.0}),
        ("cactus_budget", {"delta": 1.0, "budget": 0.0}),
        ("mentored", {"delta": 0.0}),
        ("interp", {"alpha": 0.0}),
        ("lenience", {"lenience": 1.0}),
        *(("cactus_exact", {"delta": 0.0, "divergence": d}) for d in ("kl", "tv", "js", "chi2")),
    ],
)
def test_without_a_budget_a_lossy_rule_is_speculative_sampling(name, params):
    rule, sps = make_rule(name, **params), make_rule("sps")
    for draft, verifier in PAIRS:
        ours = exact.accept_probs(rule, draft, verifier)
        theirs = exact.accept_probs(sps, draft, verifier)
        possible = draft > 0
        assert gap(ours[possible], theirs[possible]) < TOLERANCE
        assert gap(output_probs(rule, draft, verifier), verifier) < TOLERANCE
        for token in possible.nonzero().flatten().tolist():
            if theirs[token] < 1 - 1e-6:
                a, b = (r.recovery_probs(draft, verifier, token) for r in (rule, sps))
                assert gap(a, b) < 1e-9


def many_scales_and_ratios(delta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """1200 tokens: 30 drafted above their lift, the others at all ratios p/q below 1."""
    generator = torch.Generator().manual_seed(3)
    high = torch.logspace(-4, math.log10(0.05), 30, dtype=torch.float64)
    rest = torch.rand(1170, generator=generator, dtype=torch.float64)
    rest = rest / rest.sum() * (1 - high.sum())
    drafted = high + 1.2 * (2 * delta * high).sqrt()
    kept = rest * torch.rand(1170, generator=generator, dtype=torch.float64)
    kept = kept * (1 - drafted.sum()) / kept.sum()
    return torch.cat((drafted, kept)), torch.cat((high, rest))


@pytest.mark.usefixtures("residuals")
@pytest.mark.parametrize("name", ["cactus", "cactus_exact", "cactus_adaptive"])
def test_output_on_a_large_vocabulary_equals_the_quadratic_definition(name):
    """Every n against every x."""
    draft, verifier = many_scales_and_ratios(0.01)
    rule = make_rule(name, delta=0.01)
    boosted = rule.lift(verifier, rule.step_budget(verifier))  # [vocab] γ of every n
    rejected = (draft - boosted).clamp(min=0)
    scales, ratios = lift_scale(boosted, verifier)[rejected > 0], draft / verifier
    between = (ratios > scales.min()) & (ratios < scales.max())
    assert len(scales.unique()) >= 8 and between.sum() >= 10  # the band that needs sorting
    h = verifier * lift_scale(boosted, verifier).unsqueeze(1)  # [n, x]
    h.diagonal().copy_(boosted)
    residual = (h - draft).clamp(min=0)
    recovery = residual / residual.sum(1, keepdim=True).clamp(min=1e-300)
    expected = torch.minimum(draft, boosted) + rejected @ recovery
    assert gap(output_probs(rule, draft, verifier), expected) < TOLERANCE


@pytest.fixture
def one_thread():
    """So that processor time is what one core takes, whatever else the machine is doing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["sps", "cactus", "cactus_exact", "mentored"])
def test_output_of_fifty_thousand_tokens_takes_a_tenth_of_a_second_at_most(name, one_thread):
    """Thousands of tokens that can be rejected, and thousands between their scales."""
    generator = torch.Generator().manual_seed(4)
    draft, verifier = (exact.random_row(50_000, generator, 0.5) for _ in range(2))
    rule = make_rule(name) if name == "sps" else make_rule(name, delta=1e-6)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        output = output_probs(rule, draft, verifier)
        seconds.append(time.process_time() - start)
    assert output.sum().item() == pytest.approx(1.0, abs=1e-9)
    assert min(seconds) < 0.1


def test_output_in_float32_stays_close_to_float64():
    generator = torch.Generator().manual_seed(5)
    draft, verifier = (exact.random_row(5000, generator, 3.0) for _ in range(2))
    for name in LIFTS:
        rule = make_rule(name)
        single = output_probs(rule, draft.float(), verifier.float()).double()
        assert total_variation(single, output_probs(rule, draft, verifier)).item() < 1e-5


# --- what the budgets promise ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("cactus", {}),
        ("cactus_exact", {"divergence": "kl"}),
        ("cactus_exact", {"divergence": "reverse_kl"}),
        ("cactus_exact", {"divergence": "hellinger"}),
        ("cactus_adaptive", {}),
        ("cactus_budget", {"budget": 0.3}),
        ("mentored", {}),
    ],
)
def test_acceptance_never_falls_as_delta_grows(name, params):
    for draft, verifier in PAIRS[::2]:
        before = torch.zeros_like(draft)
        for delta in (0.0, 1e-6, 0.01, 0.05, 0.2, 0.7, 2.0, 10.0):
            now = exact.accept_probs(make_rule(name, delta=delta, **params), draft, verifier)
            assert (now[draft > 0] >= before[draft > 0] - TOLERANCE).all()
            before = now


def test_acceptance_does_grow_with_delta():
    draft, verifier = exact.CORNERS["plain"]
    for name in ("cactus", "cactus_exact", "cactus_adaptive", "cactus_budget", "mentored"):
        low, high = (
            (draft * exact.accept_probs(make_rule(name, delta=d), draft, verifier)).sum() for d in (0.001, 0.05)
        )
        assert high > low + 0.01


@pytest.mark.parametrize("delta", [0.01, 0.2, 1.0, 5.0])
def test_the_taylor_step_spends_half_chi2_exactly_and_kl_at_most_log(delta):
    rule = make_rule("cactus", delta=delta)
    lifted = 0
    for draft, verifier in PAIRS:
        for token in range(len(draft)):
            h = rule.adjusted_probs(draft, verifier, token)
            spent = kl(h, verifier).item()
            assert spent <= math.log1p(2 * delta) + 1e-9
            if h[token] <= 0.5:  # Corollary 6
                assert spent <= delta + 1e-12
            if 0 < verifier[token] < h[token] < 1:
                lifted += 1
                assert 0.5 * chi2(h, verifier).item() == pytest.approx(delta, rel=1e-9)
    assert lifted > 10


def test_the_example_where_the_taylor_step_overspends():
    verifier, draft = rows(0.5, 0.3, 0.2), rows(0.98, 0.01, 0.01)
    token = torch.tensor([0])
    steps = make_rule("cactus", delta=0.2).judge(draft[None], verifier[None], token)
    assert steps.boosted_prob.item() == pytest.approx(0.816, abs=5e-4)
    assert steps.kl.item() == pytest.approx(0.216, abs=5e-4) and steps.kl.item() > 0.2
    assert steps.accept_prob.item() == pytest.approx(steps.boosted_prob.item() / 0.98)
    steps = make_rule("cactus_exact", delta=0.2).judge(draft[None], verifier[None], token)
    assert steps.boosted_prob.item() == pytest.approx(0.805, abs=5e-4)
    assert steps.kl.item() == pytest.approx(0.2, abs=1e-12) and steps.kl.item() <= 0.2 + 1e-15


@pytest.mark.parametrize("name", ["sps", "cactus", "cactus_adaptive", "cactus_budget"])
@thorough
@given(pair=exact.pair_strategy())
def test_the_output_lies_between_draft_and_verifier_token_by_token(name, pair):
    """So no f-divergence of the output from the verifier exceeds the draft's own: Theorem 3."""
    draft, verifier = pair
    output = output_probs(make_rule(name) if name == "sps" else make_rule(name, delta=0.1), *pair)
    assert (output >= torch.minimum(draft, verifier) - 1e-12).all()
    assert (output <= torch.maximum(draft, verifier) + 1e-12).all()
    assert kl(output, verifier) <= kl(draft, verifier) + 1e-12


@pytest.mark.parametrize("delta", [0.001, 0.05, 0.5])
def test_the_output_divergence_is_bounded_by_delta_alone(delta):
    """Γ(δ) = max over tokens of ln(γ*/q): no token is emitted oftener than its own lift says."""
    rule = make_rule("cactus", delta=delta)
    for draft, verifier in PAIRS:
        boosted = rule.lift(verifier, delta)
        bound = torch.where(verifier > 0, boosted / verifier, 1.0).log().max()
        assert kl(rule.output_probs(draft, verifier), verifier) <= bound + 1e-12


def test_h_is_not_the_output_many_lifts_add_up():
    """Each step's h keeps to the budget; what is sampled lies further from the verifier."""
    draft = torch.cat((torch.full((10,), 0.1), torch.zeros(1))).double()
    verifier = torch.cat((torch.full((10,), 1e-3), torch.tensor([0.99]))).double()
    rule = make_rule("cactus", delta=1.0)
    spent = rule.judge(draft[None], verifier[None], torch.tensor([0])).kl.item()
    assert spent <= math.log(3)
    assert kl(rule.output_probs(draft, verifier), verifier).item() > 3 * spent


def test_a_certain_draft_emits_h_itself():
    draft, verifier = rows(0.0, 1.0, 0.0), rows(0.5, 0.3, 0.2)
    for name in ("cactus", "cactus_exact", "cactus_adaptive"):
        rule = make_rule(name, delta=0.1)
        h = exact.adjusted(rule, draft, verifier, 1)
        assert gap(rule.output_probs(draft, verifier), h) < TOLERANCE


def test_adaptive_spends_less_where_the_verifier_is_unsure_but_keeps_its_floor():
    sure, unsure = rows(0.9, 0.05, 0.05), rows(1 / 3, 1 / 3, 1 / 3)
    assert make_rule("cactus_adaptive", delta=1.0).step_budget(sure).item() == pytest.approx(
        1 - exact.entropy(sure) / math.log(3)
    )
    assert make_rule("cactus_adaptive", delta=1.0).step_budget(unsure).item() == pytest.approx(0.0)
    kept = make_rule("cactus_adaptive", delta=1.0, floor=0.25).step_budget(unsure)
    assert kept.item() == pytest.approx(0.25)


# --- edges: faults known elsewhere -------------------------------------------------------------


def test_recovery_is_the_residual_not_the_verifier_nor_a_softmax():
    draft, verifier = exact.CORNERS["plain"]
    recovered = make_rule("sps").recovery_probs(draft, verifier, 1)
    assert torch.equal(recovered, rows(1.0, 0.0, 0.0))


@each(exact.SETTINGS)
@pytest.mark.parametrize("corner", exact.CORNERS)
def test_no_corner_gives_nan_and_every_recovery_is_a_distribution(setting, corner):
    rule = exact.made(setting)
    draft, verifier = exact.CORNERS[corner]
    chances = exact.accept_probs(rule, draft, verifier)
    assert ((chances >= 0) & (chances <= 1)).all()
    for token in range(len(draft)):
        recovered = rule.recovery_probs(draft, verifier, token)
        assert recovered.min() >= 0 and recovered.sum().item() == pytest.approx(1.0, abs=1e-12)


@each([s for s in exact.SETTINGS if s[0] in exact.H_RULES or s[0] == "block"])
def test_equal_models_never_reject(setting):
    for _, verifier in PAIRS:
        chances = exact.accept_probs(exact.made(setting), verifier, verifier)
        assert (chances[verifier > 0] == 1).all()


@pytest.mark.parametrize("name", ["sps", "interp", "lenience", "mentored", "block"])
def test_recovery_between_equal_models_draws_from_h(name):
    _, verifier = exact.CORNERS["plain"]
    assert gap(make_rule(name).recovery_probs(verifier, verifier, 1), verifier) < TOLERANCE


CONTINUOUS = [s for s in exact.SETTINGS if s[1].get("divergence", "kl") in ("kl", "chi2")]


@each([s for s in CONTINUOUS if s[0] != "interp"])
def test_a_token_the_verifier_rules_out_is_never_emitted(setting):
    """Disjoint supports accept nothing; the verifier's truncation holds for lossy rules too."""
    rule = exact.made(setting)
    for draft, verifier in (exact.CORNERS[c] for c in ("disjoint", "overlap", "verifier one-hot")):
        out = verifier == 0
        assert (exact.accept_probs(rule, draft, verifier)[out] == 0).all()
        assert (rule.output_probs(draft, verifier)[out] == 0).all()
        for token in out.nonzero().flatten().tolist():
            assert (rule.recovery_probs(draft, verifier, token)[out] == 0).all()


def test_disjoint_supports_recover_from_the_verifier():
    draft, verifier = exact.CORNERS["disjoint"]
    for name in ("sps", "cactus", "cactus_exact", "lenience", "mentored", "block"):
        assert gap(make_rule(name).recovery_probs(draft, verifier, 0), verifier) < TOLERANCE


@each([s for s in CONTINUOUS if s[0] != "interp"])
def test_at_temperature_zero_only_the_verifiers_argmax_is_emitted(setting):
    rule = exact.made(setting)
    draft, verifier = exact.CORNERS["different one-hots"]
    assert exact.accept_probs(rule, draft, verifier)[1] == 0
    assert torch.equal(rule.output_probs(draft, verifier), verifier)
    assert exact.accept_probs(rule, verifier, verifier)[0] == 1


def test_top_k_reaching_past_the_support_accepts_no_impossible_token():
    verifier, draft = rows(0.7, 0.3, 0.0, 0.0), rows(0.25, 0.25, 0.25, 0.25)
    chances = exact.accept_probs(make_rule("topk", k=3), draft, verifier)
    assert chances.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert exact.accept_probs(make_rule("topk", k=100), draft, verifier).tolist() == chances.tolist()


def test_typical_acceptance_compares_strictly_and_recovers_the_argmax():
    verifier, draft = rows(0.5, 0.41, 0.09), rows(0.2, 0.2, 0.6)
    rule = make_rule("tas")  # threshold min(0.09, 0.3·e^(−H)) = 0.09, and 0.09 > 0.09 is false
    assert exact.accept_probs(rule, draft, verifier).tolist() == [1.0, 1.0, 0.0]
    assert rule.recovery_probs(draft, verifier, 2).tolist() == [1.0, 0.0, 0.0]


def test_rounding_in_float32_draws_from_h_instead_of_nan():
    verifier = torch.tensor([0.7, 0.2, 0.1])
    draft = verifier + torch.tensor([6e-8, 0.0, 0.0])  # above h everywhere, by one rounding
    for name in ("sps", "lenience", "block"):
        recovered = make_rule(name).recovery_probs(draft, verifier, 0)
        assert gap(recovered, verifier) < 1e-6


def test_sampled_tokens_follow_the_exact_output():
    """The one sampling test: draft, verdict, recovery, against output_probs by χ²."""
    generator = torch.Generator().manual_seed(11)
    draft, verifier = rows(0.05, 0.4, 0.25, 0.2, 0.1), rows(0.4, 0.1, 0.1, 0.3, 0.1)
    count = 200_000
    for name, params in (("sps", {}), ("cactus", {"delta": 0.05}), ("mentored", {"delta": 0.05})):
        rule = make_rule(name, **params)
        drafted = draft.multinomial(count, replacement=True, generator=generator)
        u = torch.rand(count, generator=generator, dtype=torch.float64)
        kept = u < exact.accept_probs(rule, draft, verifier)[drafted]
        emitted = drafted.clone()
        for token in range(5):
            lost = ((drafted == token) & ~kept).nonzero().flatten()
            if len(lost):
                recovered = rule.recovery_probs(draft, verifier, token)
                emitted[lost] = recovered.multinomial(len(lost), True, generator=generator)
        expected = output_probs(rule, draft, verifier) * count
        statistic = ((emitted.bincount(minlength=5) - expected).square() / expected).sum().item()
        assert statistic < 18.5  # the 0.1 % tail of χ² with 4 degrees of freedom
