"""Automatic draft lengths: what they pay attention to, and that they change nothing but the length."""

import itertools

import pytest
import tiny
import torch

from cactus import RULES, SamplingParams, Trace, decode, make_rule
from cactus.costs import measure_costs
from cactus.drafters import FeatureDrafter
from cactus.errors import CactusError
from cactus.models import feature
from cactus.pace import Chances, Paying, StepCosts, first_guesses
from cactus.pairs import Pair, pair_from_models
from cactus.request import RunRequest
from cactus.settings import parse_draft_length
from cactus.verdict import judge

CHEAP, DEAR = StepCosts(0.01, 1.0, 0.01), StepCosts(1.0, 1.0, 0.1)
SPS = make_rule("sps")


def length(pace: Paying, probs=None, most: int = 50) -> int:
    pace.begin()
    for count, prob in enumerate(probs or itertools.repeat(0.9), 1):
        if pace.enough(prob) or count == most:
            return count
    return count


def taught(costs: StepCosts, accept: float, prob: float = 0.9, rounds: int = 100) -> Paying:
    pace = Paying(costs, SPS)
    for _ in range(rounds):
        count = length(pace, itertools.repeat(prob), 8)
        pace.learn([accept] * count, 1 + round(accept * count))
    return pace


def test_cheap_drafts_and_good_ones_are_longer():
    assert length(Paying(DEAR, SPS)) == 1
    assert length(Paying(CHEAP, SPS)) > 3
    assert length(taught(CHEAP, 0.95)) > length(taught(CHEAP, 0.5)) > length(taught(CHEAP, 0.05)) == 1


def test_the_length_maximises_tokens_per_second_where_all_tokens_are_alike():
    """Against the closed form: m tokens of accept probability a each make (1 - a^(m+1))/(1 - a) tokens a round."""
    for accept, draft in itertools.product((0.3, 0.5, 0.7, 0.85), (0.03, 0.06, 0.12)):
        costs = StepCosts(draft, 1.0, 0.02)

        def rate(m, accept=accept, costs=costs):
            return (1 - accept ** (m + 1)) / (1 - accept) / (costs.verify + m * (costs.draft + costs.verify_more))

        pace = Paying(costs, SPS)
        for _ in range(400):
            m = length(pace, itertools.repeat(0.9), 16)
            judged = [accept] * m
            pace.learn(judged, (1 - accept ** (m + 1)) / (1 - accept))
        best = max(rate(m) for m in range(1, 17))
        assert rate(length(pace, itertools.repeat(0.9), 16)) > 0.98 * best


def test_doubtful_tokens_end_a_draft():
    pace = Paying(CHEAP, SPS)
    for _ in range(50):
        length(pace, [0.9, 0.9, 0.01], 3)
        pace.learn([0.95, 0.95, 0.02], 3)
    assert length(pace, [0.9, 0.9, 0.9, 0.01, 0.9, 0.9]) == 4


def test_a_first_token_is_always_drafted_and_nothing_is_known_at_first():
    pace = Paying(DEAR, SPS)
    assert length(pace) == 1
    pace.learn([], 1)
    assert length(pace) == 1


@pytest.mark.parametrize("name", RULES)
def test_every_rule_says_how_lenient_it_is_before_a_token_is_judged(name):
    guesses = first_guesses(make_rule(name))
    assert len(guesses) == 6 and all(0 <= guess <= 1 for guess in guesses)
    assert guesses is first_guesses(make_rule(name))


def test_a_lenient_rule_begins_with_longer_drafts():
    costs = StepCosts(0.05, 1.0, 0.02)
    lengths = [length(Paying(costs, make_rule("cactus", delta=delta))) for delta in (0.0, 0.2, 1.0, 10.0)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
    assert first_guesses(make_rule("cactus", delta=0.0)) == pytest.approx(first_guesses(SPS))


def test_chances_follow_what_was_judged_and_grades_not_seen_follow_the_others():
    chances = Chances(SPS)
    rare, first = chances.of(0.001), chances.of(0.9)
    for _ in range(200):
        chances.learn(0.9, 0.97)
    assert chances.of(0.9) == pytest.approx(0.97, abs=0.01) and chances.of(0.9) > first
    assert chances.of(0.001) > rare + 0.2 and chances.mean == pytest.approx(0.97, abs=0.01)
    for _ in range(400):
        chances.learn(0.3, 0.1)
    assert chances.of(0.3) == pytest.approx(0.1, abs=0.01) and chances.of(0.9) > 0.9


@pytest.mark.parametrize("draft", ["near", "lookup"])
@pytest.mark.parametrize("name", ["sps", "block", "cactus"])
def test_greedy_text_does_not_depend_on_the_length(name, draft):
    pair = costed(tiny.pair(draft=draft), CHEAP)
    greedy = SamplingParams(temperature=0.0)
    alone = decode(pair, [5, 9, 30], None, 0, greedy, 40, 0)
    rule = make_rule("cactus", delta=0.0) if name == "cactus" else make_rule(name)
    auto = decode(pair, [5, 9, 30], rule, "auto", greedy, 40, 0)
    list(alone), list(auto)
    assert [t.id for t in auto.trace.tokens] == [t.id for t in alone.trace.tokens]
    lengths = {round_.num_draft_tokens for round_ in auto.rounds}
    assert draft == "lookup" or len(lengths) > 1


def costed(pair: Pair, costs: StepCosts) -> Pair:
    pair.__dict__["costs"] = costs
    return pair


def test_a_seed_gives_the_same_run_again_and_the_trace_says_auto():
    pair = costed(tiny.pair(), CHEAP)
    first, second = (decode(pair, [5, 9, 30], make_rule("sps"), "auto", SamplingParams(), 60, 3) for _ in range(2))
    list(first), list(second)
    tokens = [[(t.id, t.status) for r in run.rounds for t in r.tokens] for run in (first, second)]
    assert tokens[0] == tokens[1] and first.trace.check() == []
    again = Trace.from_json(first.trace.to_json())
    assert again.num_draft_tokens == "auto" and again.draft_limit == 16 and again == first.trace


@pytest.mark.parametrize("name", ["sps", "block"])
def test_lossless_rules_stay_lossless_when_the_draft_says_how_long_it_is(name):
    """The law of the first two tokens, by enumeration of drafts; verdicts by many draws of the uniforms."""
    generator = torch.Generator().manual_seed(0)
    first_draft, first = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    later_draft = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]])  # [after, token]
    later = torch.tensor([[0.1, 0.5, 0.4], [0.3, 0.4, 0.3], [0.5, 0.25, 0.25]])
    lengths = {0: 1, 1: 2, 2: 2}  # behind a 0 the drafter stops
    rule, law = make_rule(name), torch.zeros(3, 3)
    rounds = 4000
    for x in range(3):
        drafts = [([x], float(first_draft[x]))]
        if lengths[x] == 2:
            drafts = [([x, y], float(first_draft[x] * later_draft[x, y])) for y in range(3)]
        for tokens, weight in drafts:
            probs = torch.stack([first_draft, later_draft[x]])[: len(tokens)]
            rows = [first, *(later[token] for token in tokens)]
            for _ in range(rounds):
                verdict = judge(rule, torch.tensor(tokens), probs, torch.stack(rows), generator)
                emitted = [*tokens[: int(verdict.accepted)], int(verdict.drawn)]
                if len(emitted) > 1:
                    law[emitted[0], emitted[1]] += weight / rounds
                else:  # the next round is exact by itself
                    law[emitted[0]] += later[emitted[0]] * weight / rounds
    torch.testing.assert_close(law, first[:, None] * later, atol=0.008, rtol=0)


def test_costs_are_measured_for_every_kind_of_drafter_and_kept():
    verifier = tiny.model()
    codec = pair_from_models(verifier, tiny.tokenizer()).codec
    ids = torch.arange(300)
    head = feature.build(verifier, ids)
    heads = Pair("f", verifier, codec, lambda: FeatureDrafter(feature.HFFeatureHead(head, 512), 300, ids))
    for pair in (tiny.pair(), tiny.pair(draft="lookup"), heads):
        costs = measure_costs(pair.new_verifier(), pair.new_drafter(), pair.codec.vocab_size)
        assert costs.verify > 0 and costs.draft >= 0 and costs.verify_more >= 0
        assert pair.costs is pair.costs
    assert heads.costs.draft > 0


@pytest.mark.parametrize("bad", ["", "often", "0", "17", "-1", "2.5"])
def test_what_is_no_draft_length(bad):
    with pytest.raises(CactusError, match="num_draft_tokens is .*auto|num_draft_tokens is .*1 to 16"):
        parse_draft_length(bad)


def test_draft_lengths_as_people_write_them():
    assert parse_draft_length("auto") == "auto" and parse_draft_length(" 7") == 7
    assert RunRequest(prompt="x", num_draft_tokens="auto").num_draft_tokens == "auto"
    with pytest.raises(CactusError, match="'far'"):
        RunRequest(prompt="x", num_draft_tokens="far")
