"""The feature head on a tiny random Llama: drafting, caches, files, and its training."""

import copy
import json

import pytest
import tiny
import torch

from cactus import SamplingParams, decode, make_rule
from cactus.drafters import FeatureDrafter
from cactus.errors import CactusError
from cactus.interfaces import DraftContext
from cactus.models import HFModel, feature
from cactus.pairs import FeatureDraft, Pair, pair_from_models
from cactus.training import corpus
from cactus.training.data import Dataset
from cactus.training.feature import FeatureStudent, unroll
from cactus.training.train import Trainer, TrainingPlan

TOKEN_IDS = torch.arange(0, 300, 2)
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def verifier():
    return tiny.model()


@pytest.fixture
def head(verifier):
    made = feature.build(verifier, TOKEN_IDS)
    with torch.no_grad():
        made.join.weight.add_(0.1 * torch.randn(made.join.weight.shape, generator=torch.Generator().manual_seed(0)))
    return made


def pair_of(verifier, head, token_ids=TOKEN_IDS) -> Pair:
    codec = pair_from_models(verifier, tiny.tokenizer()).codec
    return Pair(
        "feature",
        verifier,
        codec,
        lambda: FeatureDrafter(feature.HFFeatureHead(head, 512), codec.vocab_size, token_ids),
    )


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 6])
def test_greedy_text_is_the_verifiers(verifier, head, num_draft_tokens):
    alone = decode(pair_of(verifier, head), [5, 9, 30], None, 0, GREEDY, 40, 0)
    run = decode(pair_of(verifier, head), [5, 9, 30], make_rule("sps"), num_draft_tokens, GREEDY, 40, 0)
    list(alone), list(run)
    assert [t.id for t in run.trace.tokens] == [t.id for t in alone.trace.tokens]
    assert all(round_.num_draft_tokens for round_ in run.rounds[:-1])


def test_drafts_only_its_vocabulary_and_from_a_single_token_nothing(verifier, head):
    run = decode(pair_of(verifier, head), [5], make_rule("sps"), 4, SamplingParams(), 60, 3)
    list(run)
    assert run.rounds[0].num_draft_tokens == 0  # no hidden state yet
    drafted = [
        t for round_ in run.rounds for t in round_.tokens if t.draft_prob is not None and t.status != "recovered"
    ]
    assert len(run.rounds) > 5 and drafted and all(token.id % 2 == 0 for token in drafted if token.status != "bonus")


def test_the_cache_holds_pairs_of_verified_tokens_only(verifier, head):
    """However many rounds later, what it would draft next is what a fresh head drafts from the whole text."""
    rounds = 0
    for seed in range(6):
        run = decode(pair_of(verifier, head), [5, 9, 30], make_rule("sps"), 2, SamplingParams(), 90, seed)
        drafter, loop = run._loop.drafter, run._loop
        for round_ in run:
            if round_.num_draft_tokens:
                assert drafter.model.length == len(loop.committed) - 1 - (round_.accepted_length + 1)
            rounds += 1
        output = drafter._read(loop.committed, loop._take_hidden())
        torch.testing.assert_close(output.logits, next_logits(verifier, head, loop.committed), atol=1e-4, rtol=1e-4)
    assert rounds > 100


def next_logits(verifier, head, committed):
    hidden = verifier.model(torch.tensor([committed[:-1]])).last_hidden_state[0]
    return feature.HFFeatureHead(head, 512).feed(committed[1:], hidden).logits


def test_hidden_states_come_whole_whatever_the_prompts_chunks(verifier, head, monkeypatch):
    monkeypatch.setattr("cactus.loop.PREFILL_CHUNK", 7)
    prompt = list(range(20, 60))
    run = decode(pair_of(verifier, head), prompt, make_rule("sps"), 3, GREEDY, 8, 0)
    run.prefill()
    assert run._loop.drafter.model.length == len(prompt) - 2
    proposal = run._loop._propose()
    expected = next_logits(verifier, head, prompt)[0].argmax()
    assert proposal.tokens[0] == TOKEN_IDS[expected]


def test_round_trip_and_what_is_refused(tmp_path, verifier, head):
    feature.save(tmp_path, head, TOKEN_IDS)
    loaded, token_ids = feature.load(tmp_path, verifier)
    assert torch.equal(token_ids, TOKEN_IDS)
    for name, value in feature.own_state(head).items():
        assert torch.equal(feature.own_state(loaded)[name], value.bfloat16().float()), name
    assert loaded.backbone.model.embed_tokens is verifier.model.embed_tokens
    codec = pair_from_models(verifier, tiny.tokenizer()).codec
    assert FeatureDraft(tmp_path).build(verifier, codec).new().wants_hidden
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(CactusError, match="2 layers"):
        feature.load(tmp_path, verifier)
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    with pytest.raises(CactusError, match="hidden_size is 64"):
        feature.load(tmp_path, verifier)


def test_unrolled_training_steps_are_what_drafting_does(verifier, head):
    ids = torch.randint(300, (2, 12), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        hidden = verifier.model(ids).last_hidden_state
        estimates = unroll(head, ids, hidden, 3)
    for row in range(2):
        for cut in (2, 7):
            drafting = feature.HFFeatureHead(head, 64)
            output = drafting.feed(ids[row, 1 : cut + 1].tolist(), hidden[row, :cut])
            for step, estimate in enumerate(estimates):
                torch.testing.assert_close(output.hidden[-1], estimate[row, cut + step], atol=1e-4, rtol=1e-4)
                output = drafting.feed([int(ids[row, cut + step + 1])], output.hidden[-1:])


@pytest.fixture(scope="module")
def chunks(verifier):
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(300, (24, 6), generator=generator)
    return [corpus.sample_batch(verifier, corpus.Batch(prompts, 1), [2], 24)]


def test_features_of_a_batch_are_the_verifiers_hidden_states(verifier, chunks):
    batch = next(Dataset(chunks).batches(8, 0))
    with torch.no_grad():
        hidden = verifier.model(batch.ids).last_hidden_state
    flat = torch.arange(batch.ids.numel()).view_as(batch.ids)
    for row in range(len(batch.ids)):
        last = int(batch.positions[torch.isin(batch.positions, flat[row])].max()) - int(flat[row, 0])
        torch.testing.assert_close(
            batch.features[row, : last + 1].float(), hidden[row, : last + 1], atol=0.05, rtol=0.02
        )


def test_training_raises_the_acceptance_of_every_step_and_resumes_exactly(verifier, chunks):
    def trainer() -> Trainer:
        student = FeatureStudent(feature.build(copy.deepcopy(verifier), torch.arange(300)), steps=3)
        return Trainer(student, Dataset(chunks), TrainingPlan(steps=30, batch_size=8, learning_rate=0.02))

    whole = trainer()
    batch = next(whole.data.batches(24, 0))
    before = (whole.student.loss(batch, 0.0), whole.student.by_step)[1]
    whole.run(12)
    state = copy.deepcopy(whole.state())
    whole.run(30)
    after = (whole.student.loss(batch, 0.0), whole.student.by_step)[1]
    assert len(after) == 3 and all(new > old + 0.05 for old, new in zip(before, after, strict=True))
    resumed = trainer()
    resumed.restore(state)
    resumed.run(30)
    for name, value in whole.student.own_state().items():
        assert torch.equal(value, resumed.student.own_state()[name]), name
    assert not any(p.requires_grad for p in (whole.student.head.backbone.lm_head.weight,))


def test_a_loss_on_half_of_the_positions_is_its_own_average(verifier, chunks):
    student = FeatureStudent(feature.build(copy.deepcopy(verifier), torch.arange(300)), steps=1, share=0.5)
    batch = next(Dataset(chunks).batches(24, 0))
    halves = [student.loss(batch, 0.0).acceptance for _ in range(40)]
    student.share = 1.0
    assert sum(halves) / 40 == pytest.approx(student.loss(batch, 0.0).acceptance, abs=0.01)
    assert len(set(halves)) > 10


def test_proposals_end_behind_a_stop_token(verifier, head):
    hidden = HFModel(verifier).feed([5, 9], want_hidden=True).hidden

    def choose(logits, token_ids):
        probs = torch.zeros_like(logits)
        probs[2] = 1.0
        assert token_ids[2] == 4
        return torch.tensor([2]), probs

    for stop, count in ((4, 1), (2, 4)):
        context = DraftContext([5, 9, 30], 4, choose, hidden, lambda token, prob, stop=stop: int(token) == stop)
        proposal = pair_of(verifier, head).new_drafter().propose(context)
        assert proposal.tokens.tolist() == [4] * count and proposal.probs.shape == (count, 300)
        assert (proposal.probs[:, 4] == 1).all()
