"""What if: on the recorded drafts, against runs of tiny models and against sums over all outcomes."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from tiny import pair
from ui_fakes import make_trace
from ui_fakes import token as make_token

from cactus import decode, whatif
from cactus.acceptance import RULES, make_rule
from cactus.acceptance.lift import DELTA
from cactus.errors import CactusError
from cactus.sampling import SamplingParams
from cactus.trace import Trace


@cache
def recorded(name: str = "cactus", seed: int = 3, **params) -> Trace:
    """A run of tiny, unrelated models that often disagree; its records hold what they gave."""
    rule = make_rule(name, **(params or ({"delta": 0.05} if DELTA in RULES[name].parameters else {})))
    run = decode(pair(draft="other"), "the cat sat", rule, 4, SamplingParams(temperature=1.0), 40, seed)
    list(run)
    return run.trace


def test_the_scalar_rules_are_those_that_say_so():
    assert whatif.SCALAR_RULES == ("sps", "cactus", "cactus_exact", "cactus_budget", "interp", "lenience")


@pytest.mark.parametrize("name", whatif.SCALAR_RULES)
def test_the_rule_of_the_run_itself_changes_nothing_and_accepts_what_was_recorded(name):
    trace = recorded(name)
    assert sum(token.status == "rejected" for round_ in trace.rounds for token in round_.tokens) > 3
    rule = make_rule(name, **trace.params)
    assert whatif.first_change(trace, rule) is None
    for round_, accept, standing in whatif._round_chances(trace, rule):
        for chance, token in zip(accept, round_.tokens, strict=False):
            if token.judged and standing == rule:
                assert chance == pytest.approx(token.accept_prob, abs=1e-5)


def test_the_expected_length_is_the_sum_over_all_outcomes():
    trace, rule = recorded(), make_rule("cactus_exact", delta=0.3)
    expected = 0.0
    rounds = list(whatif._round_chances(trace, rule))
    for _, accept, _ in rounds:
        for passes in itertools.product((True, False), repeat=len(accept)):
            chance = 1.0
            for passed, a in zip(passes, accept, strict=True):
                chance *= a if passed else 1 - a
            expected += chance * next((i for i, passed in enumerate(passes) if not passed), len(passes))
    found = whatif.outlook(trace, rule)
    assert found.accepted_length == pytest.approx(expected / len(rounds), abs=1e-12)
    assert whatif.accepted_lengths(trace, [rule]) == [pytest.approx(found.accepted_length, abs=1e-12)]
    assert sum(place.accepted for place in found.places) == pytest.approx(expected, abs=1e-9)
    assert found.places[0].reached == found.places[0].drafted == len(rounds)
    for before, after in itertools.pairwise(found.places):
        assert after.reached <= before.accepted + 1e-9


def test_the_first_change_is_the_first_verdict_that_turns():
    trace, rule = recorded(delta=0.5), make_rule("sps")
    change = whatif.first_change(trace, rule)
    assert change is not None and change.token.status == "accepted"
    assert change.token.uniform >= change.accept_prob == pytest.approx(whatif.lossless_accept_prob(change.token))
    for round_ in trace.rounds[: change.round_index + 1]:
        for place, token in enumerate(round_.tokens):
            if (round_.index, place) >= (change.round_index, change.place) or not token.judged:
                continue
            lossless = min(1.0, token.verifier_prob / token.draft_prob)
            assert (token.uniform < lossless) == (token.status == "accepted")


def test_a_run_with_the_other_setting_is_the_same_up_to_the_change():
    """With δ a little larger, what a real run emits agrees until the change or the first recovery."""
    trace, rule = recorded(delta=0.05), make_rule("cactus", delta=0.06)
    change, other = whatif.first_change(trace, rule), recorded(delta=0.06)
    last = change.round_index if change else len(trace.rounds)
    for old, new in zip(trace.rounds[:last], other.rounds, strict=False):
        drafted = [token.id for token in old.tokens[: old.num_draft_tokens]]
        assert [token.id for token in new.tokens[: new.num_draft_tokens]] == drafted
        assert [token.status for token in new.tokens] == [token.status for token in old.tokens]
        if old.tokens[-1].id != new.tokens[-1].id:
            break


def test_more_delta_accepts_more():
    trace = recorded()
    lengths = whatif.sweep(trace, "cactus", "delta", [0.0, 0.05, 0.5, 5.0], {})
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
    assert lengths[0] == pytest.approx(whatif.accepted_lengths(trace, [make_rule("sps")])[0])


def test_a_budget_is_spent_along_the_run():
    trace = recorded("sps")
    free, bound, none = whatif.accepted_lengths(
        trace, [make_rule("cactus_budget", delta=1.0, budget=budget) for budget in (1000.0, 1.0, 0.0)]
    )
    assert none == pytest.approx(whatif.accepted_lengths(trace, [make_rule("sps")])[0])
    assert free == pytest.approx(whatif.accepted_lengths(trace, [make_rule("cactus", delta=1.0)])[0])
    assert none < bound < free


@pytest.mark.parametrize("name", sorted(set(RULES) - set(whatif.SCALAR_RULES)))
def test_a_rule_that_reads_the_vocabulary_is_refused(name):
    with pytest.raises(CactusError, match=f"{name} reads the whole vocabulary"):
        whatif.outlook(make_trace(), make_rule(name))


def test_a_run_without_drafts_or_without_numbers_is_refused():
    with pytest.raises(CactusError, match="drafted nothing"):
        whatif.outlook(make_trace(method="ar", drafted=0), make_rule("sps"))
    round_ = make_trace(count=1).rounds[0]
    bare = [token.model_copy(update={"draft_prob": None}) for token in round_.tokens]
    with pytest.raises(CactusError, match="lacks probabilities"):
        whatif.outlook(make_trace(rounds=(round_.model_copy(update={"tokens": tuple(bare)}),)), make_rule("sps"))


def test_lossless_acceptance_of_a_token():
    assert whatif.lossless_accept_prob(make_token(" x", "accepted", 0, draft_prob=0.5, verifier_prob=0.2)) == 0.4
    assert whatif.lossless_accept_prob(make_token(" x", "accepted", 0, draft_prob=0.2, verifier_prob=0.5)) == 1.0
    assert whatif.lossless_accept_prob(make_token(" x", "bonus", 0)) is None
