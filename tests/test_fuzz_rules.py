"""Any tensors and any parameters: a right answer, or a ValueError that names what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import brute_output, pair_strategy
from hostile import THING
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cactus import RULES, make_rule
from cactus.divergence import boosted_prob, output_probs, taylor_boosted_prob

QUICK = settings(max_examples=40, deadline=None, derandomize=True)


def allowed(parameter: Any) -> st.SearchStrategy:
    if parameter.choices:
        return st.sampled_from(parameter.choices)
    if parameter.kind is int:
        return st.integers(int(parameter.minimum), int(parameter.maximum))
    return st.floats(parameter.minimum, parameter.maximum)


@st.composite
def rules(draw: Any) -> Any:
    """Any rule with any allowed parameters, the ends of their ranges among them."""
    kind = RULES[draw(st.sampled_from(sorted(RULES)))]
    return make_rule(kind.name, **{p.name: draw(allowed(p)) for p in kind.parameters})


@QUICK
@given(rules(), pair_strategy(), st.data())
def test_any_allowed_parameters_give_probabilities_and_the_exact_output(rule, pair, data):
    draft, verifier = pair
    token = data.draw(st.sampled_from(draft.nonzero()[:, 0].tolist()))
    accept = rule.accept_probs(draft[None], verifier[None], torch.tensor([token]))
    assert accept.shape == (1,) and 0 <= float(accept) <= 1
    for row in (rule.recovery_probs(draft, verifier, token), output_probs(rule, draft, verifier)):
        assert row.shape == draft.shape and bool((row >= 0).all()) and float(row.sum()) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(
        output_probs(rule, draft, verifier), brute_output(rule, draft, verifier), atol=1e-6, rtol=0
    )
    assert float(rule.output_kl(draft, verifier)) >= 0


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(RULES)), st.data())
def test_any_parameter_is_taken_or_named(name, data):
    parameters = RULES[name].parameters
    known = st.sampled_from([parameter.name for parameter in parameters]) if parameters else st.nothing()
    given_ = data.draw(
        st.dictionaries(st.one_of(known, st.text(min_size=1, max_size=5)), THING, min_size=1, max_size=2)
    )
    try:
        rule = make_rule(name, **given_)
    except ValueError as error:
        assert any(key in str(error) or repr(key) in str(error) for key in given_) and len(str(error)) < 300
    else:
        for parameter in parameters:
            value = rule.params[parameter.name]
            assert isinstance(value, parameter.kind)
            assert value in parameter.choices if parameter.choices else parameter.minimum <= value <= parameter.maximum


@QUICK
@given(THING)
def test_any_name_is_known_or_refused_with_the_known_ones(name):
    if isinstance(name, str) and name in RULES:
        return
    with pytest.raises(ValueError, match="rule must be one of sps, cactus"):
        make_rule(name)


GOOD = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]])
TOKENS = torch.tensor([0, 2])
BAD_ROWS = {
    "no tensor": [[0.5, 0.5]],
    "nothing": None,
    "whole numbers": torch.tensor([[1, 0, 0], [0, 1, 0]]),
    "one row": GOOD[0],
    "too many dimensions": GOOD[None],
    "another vocabulary": torch.tensor([[0.5, 0.5], [0.5, 0.5]]),
    "another m": GOOD[:1],
    "another precision": GOOD.double(),
    "no vocabulary": torch.empty(2, 0),
}
NO_DISTRIBUTIONS = {
    "NaN": GOOD * torch.tensor([1.0, float("nan"), 1.0]),
    "infinite": GOOD + torch.tensor([0.0, float("inf"), 0.0]),
    "negative": torch.tensor([[1.5, -0.5, 0.0], [0.2, 0.2, 0.6]]),
    "logits": torch.tensor([[4.0, -2.0, 1.0], [0.2, 0.2, 0.6]]),
    "zeros": torch.zeros(2, 3),
}
BAD_TOKENS = {
    "a list": [0, 2],
    "fractions": torch.tensor([0.0, 2.0]),
    "truth": torch.tensor([True, False]),
    "too few": TOKENS[:1],
    "a column": TOKENS[:, None],
    "negative": torch.tensor([0, -1]),
    "beyond the vocabulary": torch.tensor([0, 3]),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", BAD_ROWS)
def test_rows_of_another_kind_are_named(name, bad):
    rule, rows = make_rule(name), BAD_ROWS[bad]
    for pair in ((rows, GOOD), (GOOD, rows)):
        with pytest.raises(ValueError, match="_probs must|_probs and"):
            rule.accept_probs(*pair, TOKENS)
    row = rows[0] if isinstance(rows, Tensor) and rows.dim() == 2 else rows
    if isinstance(row, Tensor) and (row.shape, row.dtype) == (GOOD[0].shape, GOOD.dtype):
        return  # of one row there is no m
    for pair in ((row, GOOD[0]), (GOOD[0], row)):
        with pytest.raises(ValueError, match="_probs must|_probs and"):
            rule.recovery_probs(*pair, 0)
        with pytest.raises(ValueError, match="_probs must|_probs and"):
            output_probs(rule, *pair)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", NO_DISTRIBUTIONS)
def test_rows_that_are_no_distributions_have_no_output(name, bad):
    row = NO_DISTRIBUTIONS[bad][0]
    for pair in ((row, GOOD[0]), (GOOD[0], row)):
        with pytest.raises(ValueError, match="_probs must"):
            output_probs(make_rule(name), *pair)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", BAD_TOKENS)
def test_tokens_that_are_none_are_named(name, bad):
    with pytest.raises(ValueError, match="draft_tokens must be|drafted token is"):
        make_rule(name).accept_probs(GOOD, GOOD, BAD_TOKENS[bad])


@pytest.mark.parametrize("token", [-1, 3, 10**30, 0.0, True, "0", None, torch.tensor([0, 1]), torch.tensor(0.0)])
def test_a_token_that_is_none_is_named(token):
    with pytest.raises(ValueError, match="draft_token must be|drafted token is"):
        make_rule("sps").recovery_probs(GOOD[0], GOOD[1], token)


@QUICK
@given(st.one_of(st.floats(0, 1), THING), st.one_of(st.floats(0, 10), THING))
def test_any_budget_is_taken_or_named(verifier_prob, delta):
    for solve in (taylor_boosted_prob, boosted_prob):
        try:
            boosted = solve(verifier_prob, delta)
        except ValueError as error:
            assert "delta must be" in str(error) or "verifier_prob must be" in str(error)
        else:
            assert verifier_prob - 1e-12 <= float(boosted) <= 1
