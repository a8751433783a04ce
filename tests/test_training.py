"""Sampling, training and evaluation of a shared draft model, on a tiny random Llama."""

import copy
import json
from dataclasses import replace
from itertools import islice

import pytest
import tiny
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cactus.cli import main
from cactus.drafters import ModelDrafter, PromptLookup
from cactus.models import HFModel, shared
from cactus.pairs import find_pair
from cactus.training import acceptance_command, command, corpus
from cactus.training import recipe as recipes
from cactus.training.data import Dataset, likely_tokens
from cactus.training.evaluate import Answer, acceptance_by_position, held_out_answers
from cactus.training.kinds import Feature, Layers
from cactus.training.loss import distil
from cactus.training.prompts import held_out_prompts, training_prompts
from cactus.training.sampler import draw, sample
from cactus.training.train import Checkpoints, SharedStudent, Trainer, TrainingPlan

VOCAB, EOS = 97, 2


@pytest.fixture(scope="module")
def verifier() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    model.model.embed_tokens.weight.mul_(12)  # peaked enough to be worth imitating
    for layer in model.model.layers:  # and layers that matter
        for linear in (layer.self_attn.v_proj, layer.self_attn.o_proj, *layer.mlp.children()):
            getattr(linear, "weight", torch.empty(0)).mul_(8)
    return model


@pytest.fixture(scope="module")
def chunks(verifier):
    generator = torch.Generator().manual_seed(1)
    return [
        corpus.sample_batch(
            verifier,
            corpus.Batch(torch.randint(VOCAB, (24, length), generator=generator), length),
            [EOS],
            24,
        )
        for length in (5, 7)
    ]


def trainer_for(verifier, chunks, plan: TrainingPlan) -> Trainer:
    return Trainer(SharedStudent(shared.build(verifier, torch.arange(64))), Dataset(chunks), plan)


# prompts


def test_prompts_are_deterministic_distinct_and_apart_from_the_held_out():
    some = list(islice(training_prompts(3), 2000))
    assert some == list(islice(training_prompts(3), 2000))
    assert len(set(some)) == 2000 and not set(some) & set(held_out_prompts())
    assert not any("{" in prompt for prompt in some)
    assert len(set(held_out_prompts())) >= 20


# sampling


def test_hidden_states_and_ids_match_a_plain_forward(verifier, chunks):
    samples = chunks[0]
    with torch.no_grad():
        hidden = verifier.model(samples.ids.long()).last_hidden_state
    start = samples.prompt_length - 1
    for row, length in enumerate(samples.lengths.tolist()):
        found = samples.hidden[row, :length].float()
        torch.testing.assert_close(found, hidden[row, start : start + length], atol=0.03, rtol=0.02)
    torch.testing.assert_close(samples.prompt_hidden.float(), hidden[:, :start], atol=0.03, rtol=0.02)


def test_nothing_behind_the_end(chunks):
    for samples in chunks:
        for row, length in enumerate(samples.lengths.tolist()):
            answer = samples.ids[row, samples.prompt_length :]
            ends = (answer == EOS).nonzero()
            assert length == (int(ends[0]) + 1 if len(ends) else len(answer))
            assert not answer[length:].any()


def test_almost_cold_sampling_is_greedy(verifier):
    prompts = torch.tensor([[4, 5, 6], [4, 5, 9]])  # they share a beginning
    cold = torch.full((2,), 1e-4)
    samples = sample(verifier, prompts, cold, 8, [], torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = verifier(samples.ids.long()).logits
    assert torch.equal(logits[:, 2:-1].argmax(-1).int(), samples.ids[:, 3:])


def test_draw_follows_the_distribution():
    logits = torch.randn(600, generator=torch.Generator().manual_seed(0)) * 2
    counts = torch.zeros(600)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        counts += torch.bincount(draw(logits.repeat(2000, 1), generator), minlength=600)
    assert (counts / 40_000 - logits.softmax(-1)).abs().sum() < 0.1


# chunk files


def plan_of(chunks) -> list[corpus.Batch]:
    return [corpus.Batch(c.ids[:, : c.prompt_length].long(), c.prompt_length) for c in chunks]


def test_grow_resumes_and_redoes_damage(tmp_path, verifier, chunks):
    batches, told = plan_of(chunks), []
    corpus.grow(tmp_path, verifier, batches, [EOS], 60, 24, told.append)
    assert told == [int(c.lengths.sum()) for c in chunks]
    first, second = (corpus.chunk_path(tmp_path, i) for i in range(2))
    intact, good = first.stat().st_mtime_ns, second.read_bytes()
    second.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(ValueError, match="checksum"):
        corpus.load_chunk(second)
    assert len(corpus.whole_chunks(tmp_path)) == 1
    corpus.grow(tmp_path, verifier, batches, [EOS], 60, 24)
    assert first.stat().st_mtime_ns == intact
    assert torch.equal(corpus.load_chunk(second).ids, chunks[1].ids)
    second.write_bytes(good[:100])
    assert not corpus.is_whole(second)


def test_samples_of_a_bfloat16_verifier_can_be_stored(tmp_path, verifier, chunks):
    samples = corpus.sample_batch(copy.deepcopy(verifier).bfloat16(), plan_of(chunks)[0], [EOS], 4)
    corpus.save_chunk(corpus.chunk_path(tmp_path, 0), samples)
    assert torch.equal(corpus.whole_chunks(tmp_path)[0].prompt_hidden, samples.prompt_hidden)


def test_every_other_batch_is_an_open_conversation(verifier):
    batches = corpus.plan(CharTokenizer(), 64, 8)
    assert len(batches) >= 4 and [batch.open_ended for batch in batches[:4]] == [False, True, False, True]
    assert len({batch.seed for batch in batches}) == len(batches)
    assert all(batch.prompts.tolist() == [[3, 4]] * 8 for batch in batches if batch.open_ended)
    samples = corpus.sample_batch(verifier, batches[1]._replace(prompts=batches[1].prompts.repeat(8, 1)), [EOS], 40)
    assert (samples.lengths == 40).all()
    turns = (samples.ids[:, 2:-1] == EOS).sum()
    assert turns > 0  # an EOS ends a turn, and the text goes on behind it


def test_no_time_no_chunk(tmp_path, verifier, chunks):
    corpus.grow(tmp_path, verifier, plan_of(chunks), [EOS], 0.0, 24)
    assert corpus.whole_chunks(tmp_path) == []


# loss


@pytest.mark.parametrize("tv_share", [0.0, 0.4, 1.0])
def test_loss_and_gradient_against_autograd(tv_share):
    generator = torch.Generator().manual_seed(0)
    draft, verifier_hidden = (torch.randn(300, 16, generator=generator) for _ in range(2))
    head = torch.randn(50, 16, generator=generator)
    draft.requires_grad_(True)
    result = distil(draft, verifier_hidden, head, tv_share)
    (found,) = torch.autograd.grad(result.loss, draft)
    log_probs = (draft @ head.T).log_softmax(-1)
    verifier_probs = (verifier_hidden @ head.T).softmax(-1)
    overlap = torch.minimum(log_probs.exp(), verifier_probs).sum(-1).mean()
    cross_entropy = -(verifier_probs * log_probs).sum(-1).mean()
    loss = (1 - tv_share) * cross_entropy + tv_share * (1 - overlap)
    torch.testing.assert_close(result.loss, loss)
    torch.testing.assert_close(found, torch.autograd.grad(loss, draft)[0], atol=1e-6, rtol=1e-4)
    assert result.acceptance == pytest.approx(overlap.item(), abs=1e-5)


# data


def test_batches_point_at_the_answers(chunks):
    data = Dataset(chunks)
    seen = 0
    for batch in islice(data.batches(10, 0), 5):
        width = batch.ids.shape[1]
        assert len(batch.positions) == len(batch.verifier_hidden)
        assert (batch.positions % width >= 4).all() and (batch.positions % width < width - 1).all()
        seen += len(batch.positions)
    assert seen == data.num_tokens


def test_batches_can_start_anywhere(chunks):
    data = Dataset(chunks)
    whole = list(islice(data.batches(10, 0), 12))
    late = list(islice(data.batches(10, 0, start=7), 5))
    for one, other in zip(whole[7:], late, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_likely_tokens_are_the_verifiers_and_keep_the_required(verifier, chunks):
    ids = likely_tokens(chunks, verifier.lm_head.weight, 40, [EOS, 96])
    assert {EOS, 96} <= set(ids.tolist()) and len(ids.unique()) == 40
    assert torch.equal(ids, ids.sort().values)
    states = [chunk.hidden[row, : chunk.lengths[row]] for chunk in chunks for row in range(len(chunk.ids))]
    mass = verifier.lm_head(torch.cat(states).float()).softmax(-1).mean(0)
    outside = [token for token in range(VOCAB) if token not in ids.tolist()]
    kept = [token for token in ids.tolist() if token not in (EOS, 96)]
    assert mass[outside].max() <= mass[kept].min()


# training


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_few_steps_help(verifier, chunks, optimizer):
    heard = []
    plan = TrainingPlan(steps=30, batch_size=8, optimizer=optimizer, tv_from=1.0)
    trainer_for(verifier, chunks, plan).run(30, heard.append)
    first, last = heard[:6], heard[-6:]  # an epoch each
    assert sum(p.loss for p in last) < sum(p.loss for p in first) - 6 * 0.1
    assert sum(p.acceptance for p in last) > sum(p.acceptance for p in first) + 6 * 0.03


def test_borrowed_weights_stay(verifier, chunks):
    before = verifier.model.embed_tokens.weight.clone()
    trainer_for(verifier, chunks, TrainingPlan(steps=3, batch_size=8)).run(3)
    assert torch.equal(before, verifier.model.embed_tokens.weight)


def test_resumed_equals_uninterrupted(tmp_path, verifier, chunks):
    plan = TrainingPlan(steps=12, batch_size=8)
    whole = trainer_for(verifier, chunks, plan)
    whole.run(12)
    stopped = trainer_for(verifier, chunks, plan)
    stopped.run(7)
    checkpoints = Checkpoints(tmp_path / "training.pt")
    checkpoints.save(stopped)
    resumed = trainer_for(verifier, chunks, plan)
    resumed.restore(checkpoints.load())
    resumed.run(12)
    for name, value in whole.student.own_state().items():
        assert torch.equal(value, resumed.student.own_state()[name]), name


def test_damaged_checkpoint(tmp_path):
    (tmp_path / "training.pt").write_bytes(b"half")
    with pytest.raises(ValueError, match="training.pt"):
        Checkpoints(tmp_path / "training.pt").load()


def test_schedule():
    plan = TrainingPlan(steps=100)
    rates = [plan.rate_at(step) for step in range(100)]
    assert rates[0] < rates[2] <= 1 and rates[-1] < 0.02 and max(rates) > 0.99
    assert plan.tv_at(0) == plan.tv_at(50) == 0 and plan.tv_at(99) == plan.tv_share
    with pytest.raises(ValueError, match="optimizer"):
        replace(plan, optimizer="sgd")


# evaluation


def test_held_out_answers_follow_prompts_of_unequal_length(verifier):
    class Unequal(CharTokenizer):
        def apply_chat_template(self, chats, add_generation_prompt):
            return {"input_ids": [[3, EOS, 4], [3, EOS, 4, EOS, 9, EOS], [3, 7, 8, 9]]}

    answers = held_out_answers(verifier, Unequal(), ["", "", ""], 1e-4, 6, (EOS,))
    for answer, prompt in zip(answers, Unequal().apply_chat_template([], True)["input_ids"], strict=True):
        assert answer.prompt_length == len(prompt) and answer.ids[: len(prompt)].tolist() == prompt
        said = answer.ids[len(prompt) :].tolist()
        assert len(said) == 6 or said.index(EOS) == len(said) - 1
        with torch.no_grad():
            greedy = verifier(answer.ids[None]).logits[0, len(prompt) - 1 : -1].argmax(-1)
        assert greedy.tolist() == said


def drafter_of(draft_model, token_ids):
    return lambda: ModelDrafter(HFModel(draft_model), VOCAB, token_ids)


def test_nothing_drafted_counts_as_nothing_accepted(verifier):
    answer = Answer(torch.tensor([1, 5, 8, 40, 3, 96, 8, 40, 7]), 3)
    result = acceptance_by_position(verifier, lambda: PromptLookup(VOCAB, torch.device("cpu")), VOCAB, [answer])
    assert 0 < result.by_position[0] < 1 / 3  # only behind the second 8 and the second 40 is there anything to look up


def test_a_perfect_draft_model_is_always_accepted(verifier):
    everything = torch.arange(VOCAB)
    twin = shared.build(verifier, everything, 3, (0, 1, 2))
    answer = Answer(torch.tensor([1, 5, 8, 40, 3, 96, 7, 9]), 3)
    result = acceptance_by_position(verifier, drafter_of(twin, everything), VOCAB, [answer, answer])
    assert result.tokens == 10 and result.prompts == 2
    assert result.by_position == pytest.approx((1.0,) * 5, abs=1e-5)


def test_acceptance_of_position_one_by_hand(verifier):
    token_ids = torch.arange(30)
    draft_model = shared.build(verifier, token_ids)
    ids = torch.tensor([1, 5, 8, 40, 3, 96])
    result = acceptance_by_position(verifier, drafter_of(draft_model, token_ids), VOCAB, [Answer(ids, 2)], 0.7)
    with torch.no_grad():
        draft_probs = (draft_model(ids[None]).logits[0, 1:-1] / 0.7).softmax(-1)
        verifier_probs = (verifier(ids[None]).logits[0, 1:-1] / 0.7).softmax(-1)[:, :30]
    expected = torch.minimum(draft_probs, verifier_probs).sum(-1).mean().item()
    assert result.by_position[0] == pytest.approx(expected, abs=1e-5)


# the whole recipe


class CharTokenizer:
    """Just enough of a tokenizer: a chat is its first few characters."""

    all_special_ids = (0, 1, EOS)

    def apply_chat_template(self, chats, add_generation_prompt):
        assert add_generation_prompt
        return {"input_ids": [[3, 4, *(3 + ord(c) % 90 for c in chat[0]["content"][:5])] for chat in chats]}


@pytest.mark.parametrize("kind", [Layers(), Feature()], ids=["layers", "feature"])
def test_recipe_from_nothing_and_again_from_its_checkpoint(tmp_path, monkeypatch, verifier, kind):
    monkeypatch.setattr(recipes, "held_out_prompts", lambda: held_out_prompts()[:3])
    recipe = recipes.Recipe(
        minutes=0.03, num_prompts=64, sampling_batch=16, max_new_tokens=12, vocabulary=64, batch_size=8
    )
    work, out, stages = tmp_path / "work", tmp_path / "out", []

    def make() -> list:
        own = recipes.Verifier(copy.deepcopy(verifier), CharTokenizer(), (EOS,))
        recipes.prepare(work, resume=bool(stages))
        return recipes.make(own, kind, recipe, work, out, lambda stage, *rest, **more: stages.append(stage))

    results = make()
    assert list(dict.fromkeys(stages)) == ["sample", "hold out", "train", "evaluate"]
    assert [r.temperature for r in results] == [1.0, 0.7] and all(len(r.by_position) == 5 for r in results)
    stages[:] = ["resumed"]
    assert make() == results and "train" not in stages
    with pytest.raises(ValueError, match="--resume"):
        recipes.prepare(work, resume=False)
    recorded = json.loads((out / "training.json").read_text())
    assert recorded["acceptance"][0]["by_position"] == pytest.approx(results[0].by_position)
    assert "temperature" in command.table(results)


@pytest.mark.parametrize("kind", [Layers((1, 2)), Feature()], ids=["layers", "feature"])
def test_a_draft_model_can_begin_as_an_earlier_one_of_another_vocabulary(tmp_path, verifier, kind):
    earlier = kind.begin(verifier, torch.arange(40), None)
    with torch.no_grad():
        for parameter in earlier.parameters:
            parameter.mul_(1.5)
    kind.save(tmp_path, earlier, torch.arange(40))
    student = kind.begin(verifier, torch.arange(64), tmp_path)
    for name, value in student.own_state().items():
        torch.testing.assert_close(value, earlier.own_state()[name], atol=0.01, rtol=0.01)
    drafter = kind.drafters(tmp_path, verifier)()
    assert len(drafter.token_ids) == 40


@pytest.mark.parametrize(
    "bad", [{"minutes": 0}, {"minutes": 1, "sampling_share": 1.0}, {"minutes": 1, "vocabulary": 3}]
)
def test_recipe_refuses(bad):
    with pytest.raises(ValueError, match=list(bad)[-1]):
        recipes.Recipe(**bad)


def test_command_refuses_a_pair_without_a_draft_model_and_a_lost_verifier(tmp_path, capsys):
    lookup = ["train", "--pair", "smollm2-135m-lookup", "--work", str(tmp_path / "a")]
    assert main(lookup) == 2 and "no draft model" in capsys.readouterr().err
    lost = ["train", "--verifier", str(tmp_path / "nowhere"), "--work", str(tmp_path / "b")]
    assert main(lost) == 2 and "nowhere" in capsys.readouterr().err


# the acceptance command


def test_acceptance_command_measures_the_pairs_own_drafter(monkeypatch, capsys):
    pair = tiny.pair()
    spec = replace(find_pair("smollm2-135m"), prompts="pocket_prompts")
    monkeypatch.setattr(type(spec), "load", lambda self: pair)
    monkeypatch.setattr(acceptance_command, "find_pair", lambda name: spec)
    monkeypatch.setattr(acceptance_command, "held_out_prompts", lambda name: held_out_prompts(name)[:3])
    command_line = ["acceptance", "--temperatures", "0.7,1", "--positions", "2", "--max-new-tokens", "6"]
    assert main([*command_line, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert [(r["temperature"], r["prompts"], len(r["by_position"])) for r in results] == [(0.7, 3, 2), (1.0, 3, 2)]
    assert all(0.3 < value < 1 for r in results for value in r["by_position"])  # its draft model is close
    assert main(command_line) == 0 and "spread" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--temperatures=0", "a temperature is '0'"),
        ("--temperatures=1,warm", "'warm'"),
        ("--positions=0", "--positions is 0"),
        ("--max-new-tokens=0", "--max-new-tokens is 0"),
        ("--pair=nope", "pair is 'nope'"),
    ],
)
def test_acceptance_command_refuses(option, said, capsys):
    assert main(["acceptance", option]) == 2 and said in capsys.readouterr().err
