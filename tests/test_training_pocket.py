"""The pocket pair's recipe: cleaning, vocabulary, students, its stages, on tiny models."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice

import pytest
import tiny
import torch

from cactus.cli import main
from cactus.errors import CactusError, PromptError
from cactus.models import HFCodec, load_model, load_tokenizer
from cactus.training import pocket, texts
from cactus.training.cleaning import clean
from cactus.training.loss import distil_logits
from cactus.training.pocket import PROMPTS, PocketMaker, PocketRecipe, encode
from cactus.training.prompts import held_out_prompts, messages, num_introductions, training_prompts, with_articles
from cactus.training.recipe import Verifier
from cactus.training.registry import RECIPES, find_recipe
from cactus.training.scratch import Shape, new_model, read_model, save_model
from cactus.training.steps import STEPS_FILE, StepLog, draw
from cactus.training.students import Writer
from cactus.training.text_data import TextDataset
from cactus.training.texts import Text
from cactus.training.train import Progress, Trainer, TrainingPlan
from cactus.training.vocabulary import train_tokenizer

SMALL = Shape(layers=2, hidden=32, inner=48, heads=2, kv_heads=1)
STORY = "Once there was a {0} who lived in a small house. The {0} was happy. One day the {0} found a {1} by the sea."
ANIMALS, THINGS = ["cat", "dog", "frog", "bear", "fox", "hen"], ["ball", "key", "drum", "cake"]


def stories(count: int) -> list[Text]:
    chance = random.Random(0)
    chosen = [(chance.choice(ANIMALS), chance.choice(THINGS), number) for number in range(count)]
    return [
        Text(f"Tell a story about a {animal}.", f"{STORY.format(animal, thing)} It was number {number}.", 30)
        for animal, thing, number in chosen
    ]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return texts.usable(stories(80))


@pytest.fixture(scope="module")
def tokenizer(pairs):
    return train_tokenizer([text for pair in pairs for text in pair], 320, 1024)


# prompts


def test_pocket_prompts_are_distinct_and_apart_from_the_held_out():
    some = list(islice(training_prompts(3, PROMPTS), 3000))
    assert len(set(some)) == 3000 and not set(some) & set(held_out_prompts(PROMPTS))
    assert len(set(held_out_prompts(PROMPTS))) >= 20
    assert not any("{" in prompt or " a old" in prompt or " a a" in prompt for prompt in some)


@pytest.mark.parametrize(
    "text, right",
    [("a owl and a cat", "an owl and a cat"), ("A elephant", "An elephant"), ("a one, a unicorn", "a one, a unicorn")],
)
def test_articles(text, right):
    assert with_articles(text) == right


def test_introductions_show_one_story_and_one_explanation_in_both_orders():
    chats = [messages("Why?", number, PROMPTS) for number in range(num_introductions(PROMPTS))]
    assert all([m["role"] for m in chat] == ["system", *["user", "assistant"] * 2, "user"] for chat in chats)
    assert all(chat[-1]["content"] == "Why?" for chat in chats)
    assert len({json.dumps(chat) for chat in chats}) == len(chats) == 16
    assert Counter("story" in chat[1]["content"] for chat in chats) == {True: 8, False: 8}


# cleaning


@pytest.mark.parametrize(
    "raw, kept",
    [
        ("A cat sat on a mat. It was a very warm mat. The cat was", "A cat sat on a mat. It was a very warm mat."),
        (
            "The dog ran down the long road. It saw a cow.\n\nThe cow was big. The dog ran",
            "The dog ran down the long road. It saw a cow. The cow was big.",
        ),
        (
            "He had a red hat and a blue coat. She had a green one. He had a red hat and a blue coat. End.",
            "He had a red hat and a blue coat. She had a green one.",
        ),
        ("A fox came to the big old tree. It was special special. It slept there all day long.", None),
        (
            "“Come in,” said the old owl. Mr. Fox came in and sat down by the fire. “Thank you",
            '"Come in," said the old owl. Mr. Fox came in and sat down by the fire.',
        ),
        (
            'The hen was sad all day. A duck came by the farm. "Why are you sad?" it asked. "I am lost. Help',
            'The hen was sad all day. A duck came by the farm. "Why are you sad?" it asked.',
        ),
        ("To make tea:\n1. Boil the water.\n2. Pour it into the cup. Then wait for three minutes.", None),
        ("Short one. Yes.", None),
        ("It costs $5 to see the bear in the park. The bear is big. It eats fish.", None),
        ("and then he went home to his mother. She was glad to see him. They ate bread.", None),
        ("Le chat est là-bas avec ses amis dans la forêt. Il dort. Il mange du poisson.", None),
    ],
)
def test_cleaning(raw, kept):
    assert clean(raw) == kept


def test_each_text_is_used_once():
    twice = stories(3) * 2
    assert len(texts.usable(twice)) == 3


# vocabulary


def test_any_text_survives_the_tokenizer(tokenizer):
    for text in ("The cat found a key.", "Ünïcode 🌵 and\ttabs\n", "<|end|x"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) <= 320 and len(tokenizer("Once there was a cat")["input_ids"]) <= 8


def test_the_template_ends_where_the_answer_begins(tokenizer):
    codec = HFCodec(tokenizer, new_model(SMALL, tokenizer, 64))
    ids = codec.encode_prompt("Why?")
    assert tokenizer.convert_ids_to_tokens([ids[0], ids[-2], ids[-1]]) == ["<|user|>", "<|end|>", "<|assistant|>"]
    folded = codec.encode_prompt("Why?", system="Be kind.")
    assert codec.decode(folded) == "Be kind.\n\nWhy?"
    with pytest.raises(PromptError, match="wizard"):
        codec.encode_prompt([{"role": "wizard", "content": "Why?"}])


def test_a_vocabulary_too_small_is_refused():
    with pytest.raises(ValueError, match="260"):
        train_tokenizer(["a"], 200, 64)


# students


def test_the_loss_counts_answers_and_their_end_only(tokenizer, pairs):
    rows = encode(tokenizer, pairs[:7])
    batch = TextDataset(rows).collate(torch.arange(7))
    targets = batch.ids.flatten()[batch.positions + 1].tolist()
    assert targets == [token for row in rows for token in row.ids[row.prompt_length :]]
    assert targets.count(tokenizer.eos_token_id) == 7


def test_distilled_logits_against_autograd():
    generator = torch.Generator().manual_seed(0)
    draft, verifier = (2 * torch.randn(40, 30, generator=generator) for _ in range(2))
    draft.requires_grad_(True)
    result = distil_logits(draft, verifier, 0.3)
    (found,) = torch.autograd.grad(result.loss, draft)
    overlap = torch.minimum(draft.softmax(-1), verifier.softmax(-1)).sum(-1).mean()
    cross_entropy = -(verifier.softmax(-1) * draft.log_softmax(-1)).sum(-1).mean()
    loss = 0.7 * cross_entropy + 0.3 * (1 - overlap)
    torch.testing.assert_close(result.loss, loss)
    torch.testing.assert_close(found, torch.autograd.grad(loss, draft)[0], atol=1e-6, rtol=1e-4)


def writer_trainer(tokenizer, pairs, steps: int) -> Trainer[Writer]:
    writer = Writer(new_model(SMALL, tokenizer, 64))
    plan = TrainingPlan(steps, batch_size=8, learning_rate=0.01)
    return Trainer(writer, TextDataset(encode(tokenizer, pairs)), plan, writer.tables)


def test_a_writer_learns_and_resumes_where_it_stopped(tokenizer, pairs):
    heard: list[Progress] = []
    whole = writer_trainer(tokenizer, pairs, 24)
    whole.run(24, heard.append)
    assert heard[-1].loss < heard[0].loss - 1 and heard[-1].acceptance > heard[0].acceptance + 0.04
    stopped = writer_trainer(tokenizer, pairs, 24)
    stopped.run(11)
    resumed = writer_trainer(tokenizer, pairs, 24)
    resumed.restore(stopped.state())
    resumed.run(24)
    for name, value in whole.student.own_state().items():
        assert torch.equal(value, resumed.student.own_state()[name]), name


def test_only_training_drops(tokenizer, pairs):
    writer = Writer(new_model(SMALL, tokenizer, 64), dropout=0.5)
    batch = TextDataset(encode(tokenizer, pairs)).collate(torch.arange(4))
    in_training = writer.loss(batch, 0.0).loss
    writer.model.eval()
    assert not torch.isclose(in_training, writer.loss(batch, 0.0).loss)
    plain = writer.model(batch.ids).logits.flatten(0, 1)[batch.positions]
    expected = torch.nn.functional.cross_entropy(plain, batch.ids.flatten()[batch.positions + 1])
    torch.testing.assert_close(writer.loss(batch, 0.0).loss, expected)


def test_new_models_are_seeded_and_leave_the_random_state_alone(tokenizer):
    state = torch.get_rng_state()
    one, same, other = (new_model(SMALL, tokenizer, 64, seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())


def test_a_saved_model_is_an_ordinary_folder(tmp_path, tokenizer):
    model = new_model(SMALL, tokenizer, 64)
    save_model(tmp_path, model, tokenizer)
    loaded = load_model(tmp_path, torch.device("cpu"), torch.float32)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight.bfloat16().float())
    assert torch.equal(read_model(tmp_path).lm_head.weight, loaded.lm_head.weight)
    again = load_tokenizer(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab() and again.chat_template == tokenizer.chat_template
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True
    assert not any(file.stat().st_mode & 0o044 != 0o044 for file in tmp_path.iterdir())


# texts


def test_texts_are_sampled_in_batches_of_like_prompts_and_resumed(tmp_path):
    model, words = tiny.model(), tiny.tokenizer()
    batches = texts.plan(words, PROMPTS, 800, 4, seed=1)
    assert len(batches) > 3 and len({batch.seed for batch in batches}) == len(batches)
    shared = batches[0].ids
    assert len(batches[0].prompts) == 4 and (shared[:, :40] == shared[:1, :40]).all()
    heard: list[int] = []
    texts.grow(tmp_path, model, words, batches[:2], [2], 60, 6, heard.append)
    first = texts.read_all(tmp_path)
    assert len(first) == 8 and sum(heard) == sum(text.tokens for text in first)
    assert [text.prompt for text in first[:4]] == list(batches[0].prompts)
    (tmp_path / "texts-00001.json").unlink()
    texts.grow(tmp_path, model, words, batches[:2], [2], 60, 6)
    assert texts.read_all(tmp_path) == first
    texts.grow(tmp_path, model, words, batches[:3], [2], 0, 6)
    assert texts.read_all(tmp_path) == first  # no time left
    (tmp_path / "texts-00000.json").write_text("[{")
    with pytest.raises(ValueError, match="texts-00000.json"):
        texts.read_all(tmp_path)


# the log of steps


def test_the_log_forgets_what_is_trained_again_and_is_drawn(tmp_path):
    log = StepLog(tmp_path / STEPS_FILE)
    for stage in ("verifier", "drafter"):
        for step in range(1, 41):
            log.add(stage, Progress(step, 3.0 / step, step / 40, 1.0, 100))
    log.rewind("drafter", 20)
    steps = [(record["stage"], record["step"]) for record in log.records()]
    assert max(step for stage, step in steps if stage == "drafter") == 20
    assert max(step for stage, step in steps if stage == "verifier") == 40
    with log.path.open("a") as file:
        file.write('{"stage": "drafter", "st')  # the machine stopped here
    assert len(log.records()) == len(steps)
    draw(log.records(), tmp_path / "plot.html")
    page = (tmp_path / "plot.html").read_text("utf-8")
    assert "drafter: acceptance" in page and "verifier: loss" in page and "<script src" not in page


# the whole recipe


def test_recipe_from_texts_to_a_pair_and_again_from_its_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(pocket, "held_out_prompts", lambda name: held_out_prompts(name)[:3])
    recipe = PocketRecipe(
        minutes=0.1, sampling_share=1e-6, verifier_share=0.4, own_share=0.2, num_prompts=200, sampling_batch=4,
        max_new_tokens=10, vocabulary=300, verifier=SMALL, drafter=Shape(1, 32, 48, 2, 2), batch_size=8,
    )  # fmt: skip
    work, out, stages = tmp_path / "work", tmp_path / "out", []
    (work / "texts").mkdir(parents=True)
    texts._write(work / "texts" / "texts-00000.json", stories(60))
    large = Verifier(tiny.model(), tiny.tokenizer(), (2,))

    def make() -> list:
        return PocketMaker(recipe, work, out, lambda stage, *rest, **more: stages.append(stage)).make(large)

    results = make()
    assert [name for name in dict.fromkeys(stages) if name != "write texts"] == [
        "vocabulary", "verifier", "sample", "drafter", "evaluate",
    ]  # fmt: skip
    assert [result.temperature for result in results] == [1.0, 0.7]
    assert all(0 < value <= 1 for result in results for value in result.by_position)
    weights = (out / "verifier" / "model.safetensors").read_bytes()
    stages.clear()
    assert make() == results and not {"sample", "verifier", "drafter"} & set(stages)
    assert (out / "verifier" / "model.safetensors").read_bytes() == weights
    recorded = json.loads((out / "training.json").read_text())
    assert recorded["usable_texts"] == 60 and recorded["acceptance"][0]["prompts"] == 3
    assert {record["stage"] for record in StepLog(work / STEPS_FILE).records()} == {"verifier", "drafter"}


@pytest.mark.parametrize(
    "bad, named",
    [
        ({"minutes": 0}, "minutes"),
        ({"minutes": 1, "own_share": 0.9}, "shares"),
        ({"minutes": 1, "vocabulary": 9}, "260"),
        ({"minutes": 1, "learning_rate": 0}, "learning_rate"),
    ],
)
def test_recipe_refuses(bad, named):
    with pytest.raises(CactusError, match=named):
        PocketRecipe(**bad)


def test_every_recipe_is_of_a_known_pair_and_takes_minutes_and_seed():
    for name in RECIPES:
        settings = find_recipe(name).choose({"minutes": 3.0, "seed": 5})
        assert (settings.minutes, settings.seed) == (3.0, 5)


def test_command_refuses_a_setting_the_recipe_does_not_have(tmp_path, capsys):
    asked = ["train", "--pair", "pocket", "--start-from", str(tmp_path), "--work", str(tmp_path / "work")]
    assert main(asked) == 2 and "--start-from" in capsys.readouterr().err
