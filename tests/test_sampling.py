"""Logits to probabilities, seeded draws, and the refusals."""

import math

import pytest
import torch

from cactus import sampling
from cactus.acceptance import make_rule
from cactus.divergence import output_probs
from cactus.sampling import NonFiniteLogits, SamplingParams, distribution, draw, pick, probs_from_logits, uniforms

VOCAB = 40
TRUNCATIONS = [
    {},
    {"temperature": 0.7},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 1000},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.999999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.8, "temperature": 0.6, "top_p": 0.7},
]
over_truncations = pytest.mark.parametrize("values", TRUNCATIONS, ids=str)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_logits(*shape: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(seed)) * spread


# --- logits to probabilities -------------------------------------------------------------------


def plain_definition(logits: list[float], params: SamplingParams, seen: set[int]) -> list[float]:
    """One row, token by token, in the order of transformers."""
    penalty = params.repetition_penalty
    scores = [(x * penalty if x < 0 else x / penalty) if i in seen else x for i, x in enumerate(logits)]
    scores = [x / params.temperature for x in scores]
    if params.top_k:
        last = sorted(scores, reverse=True)[: params.top_k][-1]
        scores = [x if x >= last else -math.inf for x in scores]
    weights = [math.exp(x - max(scores)) for x in scores]
    probs = [w / sum(weights) for w in weights]
    nucleus = [sum(y for y in probs if y > x) < params.top_p for x in probs]
    kept = [x if inside and x >= params.min_p * max(probs) else 0.0 for x, inside in zip(probs, nucleus, strict=True)]
    return [x / sum(kept) for x in kept]


@over_truncations
def test_every_truncation_follows_its_plain_definition(values):
    params = SamplingParams(**values)
    logits = some_logits(6, VOCAB, seed=1)
    logits[:, 30:] = -math.inf  # padding of a wider model
    contexts = [[i, i + 1, i, 35] for i in range(6)]
    probs = probs_from_logits(logits, params, contexts)
    assert probs.dtype == torch.float32 and probs.shape == logits.shape
    for row, context, given in zip(logits.tolist(), contexts, probs.tolist(), strict=True):
        assert given == pytest.approx(plain_definition(row, params, set(context)), abs=2e-6)


@over_truncations
def test_every_truncation_equals_the_processors_of_transformers(values):
    from transformers.generation import logits_process as theirs

    params = SamplingParams(**values)
    logits = some_logits(4, VOCAB, seed=2)
    seen = torch.randint(VOCAB, (4, 5), generator=generator(3))
    chain = [theirs.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)]
    chain.append(theirs.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        chain.append(theirs.TopKLogitsWarper(params.top_k))
    chain.append(theirs.TopPLogitsWarper(params.top_p))
    chain.append(theirs.MinPLogitsWarper(params.min_p))
    scores = logits.clone()
    for processor in chain:
        scores = processor(seen, scores)
    probs = probs_from_logits(logits, params, seen.tolist())
    assert torch.allclose(probs, scores.softmax(-1), atol=2e-6)
    assert torch.equal(probs == 0, scores.isinf())


def test_logits_are_left_alone():
    for dtype in (torch.float32, torch.bfloat16):
        logits = some_logits(2, VOCAB).to(dtype)
        before = logits.clone()
        for values in TRUNCATIONS:
            probs_from_logits(logits, SamplingParams(**values), [[1, 2], [3]])
        assert torch.equal(logits, before)


def test_bfloat16_logits_give_float32_probabilities():
    logits = some_logits(2, VOCAB).bfloat16()
    probs = probs_from_logits(logits, SamplingParams())
    assert probs.dtype == torch.float32
    assert torch.equal(probs, probs_from_logits(logits.float(), SamplingParams()))


def test_any_leading_shape_is_taken_row_by_row():
    logits = some_logits(2, 3, VOCAB)
    params = SamplingParams(top_p=0.8, top_k=9)
    whole = probs_from_logits(logits, params)
    assert torch.allclose(whole[1, 2], probs_from_logits(logits[1, 2], params))
    assert probs_from_logits(torch.empty(0, VOCAB), params).shape == (0, VOCAB)


def test_ties_are_kept_whole():
    logits = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0])
    assert (probs_from_logits(logits, SamplingParams(top_k=2)) > 0).tolist() == [True] * 4 + [False]
    nucleus = probs_from_logits(logits, SamplingParams(top_p=0.6))  # 0.46, then three of 0.17
    assert (nucleus > 0).tolist() == [True] * 4 + [False]
    assert nucleus[1] == nucleus[2] == nucleus[3]


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.6, 3.0])
@pytest.mark.parametrize("top_p", [0.3, 0.95, 0.9999])
def test_a_nucleus_found_from_the_head_equals_one_found_by_sorting_all(spread, top_p):
    """A vocabulary wider than the head; flat rows need more of it, a peaked row next to them."""
    logits = some_logits(2, 20_000, seed=4, spread=spread)
    logits[1] *= 40
    probs = logits.softmax(-1)
    falling = probs.sort(-1, descending=True).values
    index = (falling.double().cumsum(-1) < top_p).sum(-1, keepdim=True).clamp(max=19_999)
    expected = torch.where(probs >= falling.gather(-1, index), probs, 0.0)
    given = probs_from_logits(logits, SamplingParams(top_p=top_p))
    assert torch.equal(given, expected / expected.sum(-1, keepdim=True))


def test_a_small_nucleus_is_found_without_sorting_the_vocabulary(monkeypatch):
    looked_at = []
    real = torch.Tensor.topk

    def topk(self, k, **options):
        looked_at.append(k)
        return real(self, k, **options)

    monkeypatch.setattr(torch.Tensor, "topk", topk)
    probs_from_logits(some_logits(2, 20_000), SamplingParams(top_p=0.9, temperature=0.5))
    assert looked_at == [sampling.NUCLEUS_HEAD]


# --- temperature -------------------------------------------------------------------------------


def test_temperature_zero_is_the_one_hot_of_the_largest_logit():
    logits = some_logits(3, VOCAB)
    probs = probs_from_logits(logits, SamplingParams(temperature=0.0, top_p=0.5, min_p=0.3))
    assert torch.equal(probs.argmax(-1), logits.argmax(-1))
    assert probs.sum(-1).tolist() == [1.0] * 3 and probs.amax(-1).tolist() == [1.0] * 3


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_tiny_temperature_does_not_overflow(temperature, dtype):
    logits = torch.tensor([[60000.0, 59000.0, -60000.0, -math.inf]]).to(dtype)
    probs = probs_from_logits(logits, SamplingParams(temperature=temperature, top_p=0.9))
    assert probs.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_huge_logits_at_a_tiny_temperature_do_not_overflow():
    logits = torch.tensor([1e30, 2e30, -1e30])
    assert probs_from_logits(logits, SamplingParams(temperature=1e-9)).tolist() == [0.0, 1.0, 0.0]


def test_repetition_penalty_counts_before_the_argmax_of_temperature_zero():
    logits = torch.tensor([[2.0, 1.9, -1.0]])
    params = SamplingParams(temperature=0.0, repetition_penalty=1.5)
    assert probs_from_logits(logits, params, [[]]).argmax().item() == 0
    assert probs_from_logits(logits, params, [[0, 0]]).argmax().item() == 1
    assert probs_from_logits(logits, params, None).argmax().item() == 0


def test_repetition_penalty_ignores_ids_the_vocabulary_lacks():
    logits, params = some_logits(1, VOCAB), SamplingParams(repetition_penalty=1.3)
    given = probs_from_logits(logits, params, [[2, VOCAB, VOCAB + 7, -1]])
    assert torch.equal(given, probs_from_logits(logits, params, [[2]]))


def test_repetition_penalty_needs_a_context_for_each_row():
    with pytest.raises(ValueError, match="contexts must hold 2 rows of token ids, got 1"):
        probs_from_logits(some_logits(2, VOCAB), SamplingParams(repetition_penalty=1.3), [[1]])


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("values", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
def test_unread_a_row_without_a_distribution_is_nothing_but_nan(bad, values):
    logits = some_logits(3, VOCAB)
    logits[1, :] = bad if bad < 0 else logits[1]
    logits[1, 7] = bad
    rows = distribution(logits, SamplingParams(**values))
    assert rows.isnan().all(-1).tolist() == [False, True, False] and not rows[[0, 2]].isnan().any()


@pytest.mark.parametrize(("bad", "words"), [(math.nan, "NaN"), (math.inf, r"\+inf"), (-math.inf, "only −inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_without_a_distribution_are_refused_in_words(bad, words, temperature):
    logits = some_logits(3, VOCAB)
    logits[1, :] = bad if bad < 0 else logits[1]
    logits[1, 7] = bad
    with pytest.raises(NonFiniteLogits, match=words):
        probs_from_logits(logits, SamplingParams(temperature=temperature))
    assert issubclass(NonFiniteLogits, ValueError)


def test_minus_infinity_rules_a_token_out():
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    assert probs_from_logits(logits, SamplingParams()).tolist() == [[0.5, 0.0, 0.5]]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("temperature", [-0.1, math.nan, math.inf, True, "1", None], "between 0 and 100"),
        ("top_k", [-1, 2.5, math.nan, math.inf, True, "3"], "a whole number of at least 0"),
        ("top_p", [0.0, -0.5, 1.01, math.nan], "above 0 and at most 1"),
        ("min_p", [-0.1, 1.1, math.nan], "between 0 and 1"),
        ("repetition_penalty", [0.0, -1.0, math.inf], "above 0 and at most 100"),
    ],
)
def test_settings_out_of_range_are_refused_naming_value_and_range(name, values, words):
    for value in values:
        with pytest.raises(ValueError, match=f"{name} must be .*{words}, got") as refusal:
            SamplingParams(**{name: value})
        assert repr(value) in str(refusal.value)


def test_settings_go_to_a_dict_and_back():
    params = SamplingParams(temperature=0.7, top_k=50.0, top_p=0.9)
    assert params.to_dict() == {
        "temperature": 0.7,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert type(params.top_k) is int
    assert SamplingParams.from_dict(params.to_dict()) == params
    with pytest.raises(ValueError, match="sampling has no setting 'temp'; it takes temperature"):
        SamplingParams.from_dict({"temp": 1.0})


# --- draws -------------------------------------------------------------------------------------


def test_draws_follow_the_probabilities():
    probs = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.15, 0.05, 0.0])
    source = generator(5)
    counts = torch.zeros(7, dtype=torch.float64)
    for _ in range(8_000):
        counts[draw(probs, source)] += 1
    assert counts[probs == 0].sum() == 0
    expected = probs[probs > 0].double() * 8_000
    statistic = ((counts[probs > 0] - expected).square() / expected).sum().item()
    assert statistic < 16.3  # the 0.1 % tail of χ² with 3 degrees of freedom


def test_a_seed_gives_the_same_draws_and_leaves_the_global_state_alone():
    probs = torch.rand(1000, generator=generator(1))
    probs /= probs.sum()
    state = torch.get_rng_state()
    first, second = ([draw(probs, source) for _ in range(20)] for source in (generator(9), generator(9)))
    assert first == second and len(set(first)) > 10
    assert [draw(probs, generator(10)) for _ in range(1)] != first[:1]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("edge", [0.0, 1.0 - 2**-53])
def test_the_ends_of_the_unit_interval_hit_tokens_with_probability(monkeypatch, edge):
    monkeypatch.setattr(sampling, "uniforms", lambda count, _: torch.full((count,), edge, dtype=torch.float64))
    probs = torch.tensor([0.0, 0.0, 0.6, 0.4, 0.0])
    assert draw(probs, generator()) == (2 if edge == 0.0 else 3)


def test_of_impossible_indices_the_next_draw_counts_and_at_last_they_are_refused(monkeypatch):
    numbers = [1.0, 1.0, 0.5, 1.0]
    monkeypatch.setattr(sampling, "uniforms", lambda count, _: torch.tensor(numbers, dtype=torch.float64)[:count])
    probs = torch.tensor([0.0, 1.0, 0.0])
    assert draw(probs, generator()) == 1
    numbers[2] = 1.0
    with pytest.raises(RuntimeError, match="no token of positive probability in 4 draws"):
        draw(probs, generator())


def test_an_index_of_probability_zero_is_not_taken_whoever_returns_it(monkeypatch):
    monkeypatch.setattr(torch, "searchsorted", lambda *_, **__: torch.tensor([0, 2, 1, 7]))
    assert draw(torch.tensor([0.0, 1.0, 0.0]), generator()) == 1


def test_what_cannot_be_drawn_from_still_gives_an_index_for_whoever_does_not_look():
    for probs in ([0.0, 0.0], [math.nan, math.nan], [math.inf, 0.0]):
        assert int(pick(torch.tensor(probs), generator())) in (0, 1)


@pytest.mark.parametrize("probs", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 0.0]])
def test_what_is_no_distribution_is_not_drawn_from(probs):
    with pytest.raises(ValueError, match="cannot draw from probabilities that sum to"):
        draw(torch.tensor(probs), generator())


def test_uniforms_differ_from_position_to_position_and_lie_below_one():
    numbers = uniforms(50_000, generator(2))
    assert numbers.dtype == torch.float64 and numbers.shape == (50_000,)
    assert len(set(numbers.tolist())) == 50_000
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean().item() - 0.5) < 0.005
    assert uniforms(0, generator()).shape == (0,)


# --- the faults that join sampling and rules ---------------------------------------------------


def test_truncated_models_follow_the_truncated_verifier():
    """Ratio, residual and draws all from the distributions after top-k: χ² and exactly."""
    params = SamplingParams(top_k=2, temperature=0.8)
    draft = probs_from_logits(torch.tensor([1.0, 0.9, 0.2, -0.3, 0.0]), params)
    verifier = probs_from_logits(torch.tensor([0.3, 1.2, 1.0, -1.0, 0.1]), params)
    rule, source, count = make_rule("sps"), generator(6), 3000
    counts = torch.zeros(5, dtype=torch.float64)
    for u in uniforms(count, source).tolist():
        token = draw(draft, source)
        chance = rule.accept_probs(draft[None], verifier[None], torch.tensor([token])).item()
        if not u < chance:
            token = draw(rule.recovery_probs(draft, verifier, token), source)
        counts[token] += 1
    assert torch.allclose(output_probs(rule, draft, verifier), verifier, atol=1e-6)
    allowed = verifier > 0
    assert allowed.sum() == 2 and counts[~allowed].sum() == 0
    expected = verifier[allowed].double() * count
    statistic = ((counts[allowed] - expected).square() / expected).sum().item()
    assert statistic < 10.8  # the 0.1 % tail of χ² with 1 degree of freedom


@pytest.mark.parametrize("values", [{"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 3}], ids=str)
@pytest.mark.parametrize("name", ["sps", "cactus", "tas", "mentored", "topk", "lenience", "block"])
def test_nothing_outside_the_verifiers_nucleus_is_emitted(values, name):
    params, rule = SamplingParams(**values), make_rule(name)
    for seed in range(6):
        draft, verifier = probs_from_logits(some_logits(2, VOCAB, seed=seed), params)
        output = output_probs(rule, draft, verifier)
        assert (verifier == 0).any() and (output[verifier == 0] == 0).all()


def test_a_deterministic_draft_enters_ratio_and_recovery_as_a_one_hot():
    verifier = torch.tensor([0.3, 0.5, 0.2])
    draft = torch.tensor([1.0, 0.0, 0.0])
    rule = make_rule("sps")
    chance = rule.accept_probs(draft[None], verifier[None], torch.tensor([0])).item()
    assert chance == pytest.approx(0.3)
    recovered = rule.recovery_probs(draft, verifier, 0).tolist()
    assert recovered == pytest.approx([0.0, 5 / 7, 2 / 7])
