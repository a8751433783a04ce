"""The rules' public face: registry, parameters, refusals, values, shapes and types."""

import dataclasses

import exact
import pytest
import torch

from cactus import divergence
from cactus.acceptance import RULES, Parameter, Rule, make_rule

NAMES = ("sps cactus cactus_exact cactus_adaptive cactus_budget tas mentored interp topk lenience block").split()
PARAMETERS = {
    "sps": [],
    "cactus": ["delta"],
    "cactus_exact": ["delta", "divergence"],
    "cactus_adaptive": ["delta", "floor"],
    "cactus_budget": ["delta", "budget"],
    "tas": ["epsilon", "alpha"],
    "mentored": ["delta"],
    "interp": ["alpha"],
    "topk": ["k"],
    "lenience": ["lenience"],
    "block": [],
}


def test_registry_has_the_eleven_rules_in_order():
    assert list(RULES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_rule_declares_its_parameters_with_working_defaults(name):
    rule = make_rule(name)
    assert isinstance(rule, Rule) and rule.name == name
    assert [parameter.name for parameter in rule.parameters] == PARAMETERS[name]
    for parameter in rule.parameters:
        assert parameter.check(parameter.default) == parameter.default == rule.params[parameter.name]
        assert parameter.label and parameter.help
        assert (parameter.choices is None) == (parameter.kind is not str)
        if parameter.choices is None:
            assert parameter.minimum < parameter.maximum and parameter.step > 0


@pytest.mark.parametrize("name", NAMES)
def test_rule_describes_itself_in_single_lines(name):
    rule = RULES[name]
    for text in (rule.label, rule.summary, rule.formula):
        assert text.strip() and "\n" not in text
    assert rule.reads in ("scalar", "vocabulary")
    assert rule.lossless == (name in exact.LOSSLESS)


def test_unknown_rule_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="sps, cactus, cactus_exact.*got 'typical'"):
        make_rule("typical")


def test_unknown_parameter_is_refused_with_the_rules_own():
    with pytest.raises(ValueError, match="tas has no parameter 'delta'; it takes epsilon, alpha"):
        make_rule("tas", delta=1.0)
    with pytest.raises(ValueError, match="sps has no parameter 'delta'"):
        make_rule("sps", delta=1.0)


@pytest.mark.parametrize("internal", [("cactus_budget", "spent"), ("block", "weight")])
def test_carried_state_is_not_a_parameter(internal):
    name, field = internal
    with pytest.raises(ValueError, match=field):
        make_rule(name, **{field: 0.5})
    assert field not in make_rule(name).params


@pytest.mark.parametrize("value", [-0.1, 10.5, float("nan"), float("inf"), True, None, "much", "nan", [1.0], 10**400])
def test_delta_out_of_range_or_not_a_number_is_refused_naming_value_and_range(value):
    with pytest.raises(ValueError, match="delta must be a number between 0 and 10, got"):
        make_rule("cactus", delta=value)


@pytest.mark.parametrize("value", [0, 101, 3.5, True, "2.5", None])
def test_k_must_be_a_whole_number_in_range(value):
    with pytest.raises(ValueError, match="k must be a whole number between 1 and 100, got"):
        make_rule("topk", k=value)


def test_numbers_are_coerced_to_the_declared_kind():
    rule = make_rule("topk", k=3.0)
    assert rule.k == 3 and type(rule.k) is int
    assert make_rule("topk", k="7").k == 7
    delta = make_rule("cactus", delta="1").delta
    assert delta == 1.0 and type(delta) is float


def test_divergence_must_be_one_of_the_six():
    with pytest.raises(ValueError, match="divergence must be one of kl, reverse_kl, chi2, tv"):
        make_rule("cactus_exact", divergence="wasserstein")
    with pytest.raises(ValueError, match="divergence"):
        make_rule("cactus_exact", divergence=1)


def test_a_very_long_bad_value_is_not_repeated_in_full():
    with pytest.raises(ValueError) as refusal:
        make_rule("cactus", delta="9" * 100_000)
    assert len(str(refusal.value)) < 200


def test_lenience_of_zero_is_refused():
    with pytest.raises(ValueError, match="lenience"):
        make_rule("lenience", lenience=0)


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        (Parameter("a", "A", 1.0, "", minimum=0.0), "a number of at least 0"),
        (Parameter("a", "A", 1, "", maximum=5), "a whole number of at most 5"),
        (Parameter("a", "A", 1.0, ""), "a number"),
    ],
)
def test_half_open_ranges_are_worded(parameter, words):
    assert parameter.range == words


def test_rules_are_frozen_and_compared_by_value():
    rule = make_rule("cactus", delta=0.5)
    assert rule == make_rule("cactus", delta="0.5") and hash(rule) == hash(make_rule("cactus", delta=0.5))
    assert rule != make_rule("cactus", delta=0.6) != make_rule("cactus_adaptive", delta=0.6)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.delta = 2.0


@pytest.mark.parametrize("setting", exact.SETTINGS, ids=exact.SETTING_IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes_are_kept_and_inputs_left_alone(setting, dtype):
    rule = exact.made(setting)
    draft = torch.stack([row for row, _ in exact.random_pairs(40, 1) if len(row) == 5]).to(dtype)
    verifier = torch.stack([row for _, row in exact.random_pairs(40, 1) if len(row) == 5]).to(dtype)
    tokens = torch.arange(len(draft)) % 5
    before = draft.clone(), verifier.clone()
    steps = rule.judge(draft, verifier, tokens)
    for column in (steps.accept_prob, steps.boosted_prob, steps.kl):
        assert column.shape == (len(draft),) and column.dtype == dtype
        assert not column.isnan().any()
    assert torch.equal(rule.accept_probs(draft, verifier, tokens), steps.accept_prob)
    standing = rule.at(draft, verifier, tokens, 2)
    for row in (
        standing.recovery_probs(draft[2], verifier[2], int(tokens[2])),
        standing.output_probs(draft[2], verifier[2]),
    ):
        assert row.shape == (5,) and row.dtype == dtype
        assert row.sum().item() == pytest.approx(1.0, abs=1e-5 if dtype == torch.float32 else 1e-12)
    assert torch.equal(draft, before[0]) and torch.equal(verifier, before[1])


@pytest.mark.parametrize("drafted", [40, 400], ids=["few can be drafted", "all can be drafted"])
@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_divergence_is_that_of_the_output(name, drafted):
    """However a rule gets there."""
    generator = torch.Generator().manual_seed(5)
    rule = make_rule(name)
    for _ in range(5):
        draft, verifier = (torch.randn(2, 400, generator=generator, dtype=torch.float64) * 3).softmax(-1)
        draft[torch.randperm(400, generator=generator)[drafted:]] = 0.0
        draft /= draft.sum()
        expected = divergence.kl(divergence.output_probs(rule, draft, verifier), verifier)
        assert float(rule.output_kl(draft, verifier)) == pytest.approx(float(expected), abs=1e-12)
        assert rule.lossless or float(expected) > 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_block_gives_empty_steps(name):
    none = torch.empty(0, 4), torch.empty(0, 4), torch.empty(0, dtype=torch.long)
    assert make_rule(name).judge(*none).accept_prob.shape == (0,)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("cactus_budget", "block")])
def test_memoryless_rules_stand_the_same_everywhere(name):
    rule = make_rule(name)
    draft, verifier = (row.expand(3, -1) for row in exact.CORNERS["plain"])
    assert rule.at(draft, verifier, torch.tensor([1, 1, 1]), 2) == rule == rule.advance(0.7)


@pytest.mark.parametrize("setting", exact.SETTINGS, ids=exact.SETTING_IDS)
def test_what_decides_is_what_is_recorded(setting):
    """`accept_probs` may be cheaper than `judge`, but gives the same: a budget is spent within a block, too."""
    generator = torch.Generator().manual_seed(3)
    rule = exact.made(setting)
    for _ in range(20):
        draft, verifier = torch.stack([exact.random_row(6, generator) for _ in range(8)]).split(4)
        tokens = torch.stack([row.multinomial(1, generator=generator)[0] for row in draft])
        steps = rule.judge(draft, verifier, tokens)
        torch.testing.assert_close(rule.accept_probs(draft, verifier, tokens), steps.accept_prob)
