"""Prompt lookup, trimmed and unequal vocabularies."""

from __future__ import annotations

import pytest
import tiny
import torch

from cactus import SamplingParams, decode, make_rule
from cactus.drafters import ModelDrafter, PromptLookup
from cactus.errors import CactusError
from cactus.interfaces import DraftContext, Output
from cactus.models import HFModel
from cactus.sampling import pick, probs_from_logits


def lookup(**options) -> PromptLookup:
    return PromptLookup(20, torch.device("cpu"), **options)


def propose(drafter, tokens, count=4, enough=None):
    return drafter.propose(DraftContext(tokens, count, None, enough=enough))


def test_prompt_lookup_proposes_what_followed_the_longest_match():
    tokens = [1, 2, 3, 9, 9, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    assert propose(lookup(), tokens).tokens.tolist() == [9, 9, 2, 3]
    assert propose(lookup(max_ngram=2), tokens).tokens.tolist() == [4, 5, 6, 7]
    assert propose(lookup(), tokens, count=2).tokens.tolist() == [9, 9]
    assert propose(lookup(), tokens, enough=lambda token, prob: token == 9 and prob == 1.0).tokens.tolist() == [9]
    assert propose(lookup(), [1, 2, 3]).tokens.tolist() == []
    assert propose(lookup(min_ngram=2), [1, 2, 3, 1]).tokens.tolist() == []


def test_fault_2_prompt_lookup_is_one_hot():
    proposal = propose(lookup(), [1, 2, 3, 1, 2])
    assert proposal.tokens.tolist() == [3, 1, 2, 3]
    assert torch.equal(proposal.probs, torch.nn.functional.one_hot(torch.tensor([3, 1, 2, 3]), 20).float())


def test_prompt_lookup_goes_on_past_the_end_of_the_text():
    assert propose(lookup(), [5, 7, 8, 7, 8], count=7).tokens.tolist() == [7, 8, 7, 8, 7, 8, 7]
    assert propose(lookup(min_ngram=2), [7, 8, 1, 4, 7, 8], count=9).tokens.tolist() == [1, 4, 7, 8, 1, 4, 7, 8, 1]
    assert propose(lookup(), [7, 7], count=0).tokens.tolist() == []


def test_prompt_lookup_keeps_up_with_new_tokens_and_forgets_nothing():
    drafter, tokens = lookup(), [1, 2, 3]
    drafter.prefill(tokens)
    for new in ([4, 5], [1, 2], [6], [4, 5]):
        tokens = tokens + new
        proposal = propose(drafter, tokens)
        drafter.rewind(len(tokens))
    assert proposal.tokens.tolist() == [1, 2, 6, 4]


def test_prompt_lookup_refuses_impossible_sizes():
    with pytest.raises(CactusError, match="min_ngram is 0"):
        lookup(min_ngram=0)


class Fixed:
    """A cached model with the same logits everywhere."""

    def __init__(self, logits):
        self.logits, self.length, self.context_length = logits, 0, 100
        self.device = torch.device("cpu")

    def feed(self, tokens, keep=1, want_hidden=False):
        self.length += len(tokens)
        return Output(self.logits[None].expand(keep, -1))

    def rewind(self, length):
        self.length = length


@pytest.mark.parametrize(
    ("columns", "token_ids", "expected"),
    [
        (3, [5, 0, 2], {5: 0, 0: 1, 2: 2}),  # a trimmed head
        (4, None, {0: 0, 1: 1, 2: 2, 3: 3}),  # fewer padding columns than the verifier
        (9, None, {i: i for i in range(6)}),  # more
    ],
)
def test_fault_17_draft_probabilities_stand_in_the_verifiers_vocabulary(columns, token_ids, expected):
    logits = torch.linspace(0.0, 2.0, columns)
    ids = None if token_ids is None else torch.tensor(token_ids)
    drafter = ModelDrafter(Fixed(logits), vocab_size=6, token_ids=ids)
    generator = torch.Generator().manual_seed(0)

    def choose(given, token_ids):
        probs = probs_from_logits(given, SamplingParams())
        return pick(probs, generator), probs

    proposal = drafter.propose(DraftContext([1, 2], 3, choose))
    weights = torch.tensor([float(logits[expected[i]].exp()) if i in expected else 0.0 for i in range(6)])
    assert proposal.probs.shape == (3, 6)
    torch.testing.assert_close(proposal.probs[0], weights / weights.sum())
    assert set(proposal.tokens.tolist()) <= set(expected)
    assert (proposal.probs.gather(1, proposal.tokens[:, None]) > 0).all()
    if ids is not None:
        assert proposal.token_ids.tolist() == token_ids and ids[proposal.columns].equal(proposal.tokens)


def test_fault_17_unequal_padded_vocabularies_decode_like_the_verifier_alone():
    verifier, draft = tiny.model(vocab_size=320), tiny.model(vocab_size=304)
    pair = tiny.pair_from_models(verifier, tiny.tokenizer(), draft)
    greedy = SamplingParams(temperature=0.0)
    texts = []
    for rule, m in ((None, 0), (make_rule("sps"), 4)):
        made = decode(pair, [5, 9, 30], rule, m, greedy, 30, 0)
        list(made)
        texts.append([token.id for token in made.trace.tokens])
    assert texts[0] == texts[1]
    known = max(tiny.tokenizer().get_vocab().values())
    for seed in range(3):
        made = decode(pair, [5, 9, 30], make_rule("sps"), 4, SamplingParams(temperature=5.0), 60, seed)
        list(made)
        everything = [token.id for round_ in made.rounds for token in round_.tokens]
        assert max(everything) <= known


class NeedsHidden(ModelDrafter):
    """Checks what a drafter that reads the verifier's hidden states is given."""

    seen = 0

    def check(self, tokens, hidden):
        self.seen += len(hidden)
        assert self.seen == len(tokens)  # every committed token but the newest, once
        fresh = tiny.model().model(torch.tensor([tokens])).last_hidden_state[0]
        torch.testing.assert_close(hidden, fresh[len(tokens) - len(hidden) :], atol=1e-3, rtol=1e-3)

    def prefill(self, tokens, hidden=None):
        self.check(tokens, hidden)
        super().prefill(tokens, hidden)

    def propose(self, context):
        hidden = torch.empty(0, 32) if context.hidden is None else context.hidden  # None: read with the prompt
        self.check(context.committed[:-1], hidden)
        return super().propose(context)


def test_a_drafter_that_asks_for_hidden_states_gets_those_of_committed_tokens():
    pair = tiny.pair()
    made = decode(pair, [5, 9, 30], make_rule("sps"), 3, SamplingParams(), 30, 0)
    made._loop.drafter = NeedsHidden(HFModel(tiny.near()), pair.codec.vocab_size, wants_hidden=True)
    list(made)
    assert len(made.rounds) > 5
