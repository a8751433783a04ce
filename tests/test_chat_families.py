"""Every family's chat template, stop tokens and checkpoint folder, through the same code as any other."""

from __future__ import annotations

import json

import pytest
import tiny
import torch
from chats import CHATS, COLUMNS, MODEL_OF, chat_tokenizer, end_ids
from transformers import pipeline

from cactus import SamplingParams, decode, load_pair, make_rule
from cactus.errors import CactusError, PromptError
from cactus.models import HFCodec

CHAT = [
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "<think>sat?</think>sat on"},
    {"role": "user", "content": "the mat"},
]


def codec(name: str, **template) -> HFCodec:
    return HFCodec(chat_tokenizer(name), tiny.model(MODEL_OF.get(name, name), vocab_size=COLUMNS), template)


def text_of(name: str, ids) -> str:
    return chat_tokenizer(name).decode(ids)


@pytest.mark.parametrize("name", CHATS)
def test_messages_go_through_the_template_with_one_bos_token(name):
    tokenizer, ids = chat_tokenizer(name), codec(name).encode_prompt(CHAT)
    rendered = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text_of(name, ids) == rendered
    assert tokenizer.bos_token is None or (ids[0] == tokenizer.bos_token_id and ids.count(ids[0]) == 1)
    for special in CHATS[name].special:
        assert tokenizer.convert_tokens_to_ids(special) in ids


@pytest.mark.parametrize("name", CHATS)
def test_fault_19_a_system_prompt_arrives_once_whatever_the_template_says_of_it(name):
    text = text_of(name, codec(name).encode_prompt("hi", "be kind"))
    assert text.count("be kind") == 1 and text.index("be kind") < text.index("hi")
    if name.startswith("gemma"):
        assert "<start_of_turn>user\nbe kind\n\nhi<end_of_turn>" in text and "system" not in text


def test_fault_19_what_gemma_refuses_besides_is_named():
    with pytest.raises(PromptError, match="must alternate"):
        codec("gemma2").encode_prompt([CHAT[0], CHAT[0]])


def test_qwen3_thinks_unless_its_switch_is_off():
    assert text_of("qwen3", codec("qwen3").encode_prompt("hi")).endswith("<|im_start|>assistant\n")
    silent = codec("qwen3", enable_thinking=False).encode_prompt("hi")
    assert text_of("qwen3", silent).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_deepseek_begins_with_a_thought_and_forgets_earlier_ones():
    text = text_of("deepseek", codec("deepseek").encode_prompt(CHAT))
    assert text.endswith("<｜Assistant｜><think>\n") and "sat?" not in text and "sat on" in text


@pytest.mark.parametrize("name", ["qwen3", "deepseek"])
def test_fault_19_marks_of_thoughts_stay_in_the_text_and_special_tokens_do_not(name):
    tokenizer, made = chat_tokenizer(name), codec(name)
    ids = tokenizer("<think>the cat</think><b>" + CHATS[name].ends[0], add_special_tokens=False)["input_ids"]
    assert made.decode(ids) == "<think>the cat</think><b>"
    assert made.describe(ids[-1]) == CHATS[name].ends[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints as one downloads them: weights, configuration, generation settings and tokenizer files."""
    made = {}
    for name in CHATS:
        family, made[name] = MODEL_OF.get(name, name), tmp_path_factory.mktemp("checkpoints")
        verifier = tiny.model(family, vocab_size=COLUMNS)
        draft = tiny.near(family, noise=0.05, vocab_size=COLUMNS, max_position_embeddings=256)
        for folder, model in (("verifier", verifier), ("draft", draft)):
            model.save_pretrained(made[name] / folder)
            chat_tokenizer(name).save_pretrained(made[name] / folder)
            settings = made[name] / folder / "generation_config.json"
            settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token_id": end_ids(name)}))
    return made


def load(folder):
    return load_pair(draft=folder / "draft", verifier=folder / "verifier", device="cpu", dtype="float32")


@pytest.mark.parametrize("name", CHATS)
def test_a_folder_writes_what_the_pipeline_writes(name, folders):
    pair = load(folders[name])
    assert set(end_ids(name)) == pair.codec.eos_ids
    run = decode(pair, CHAT, make_rule("sps"), 4, SamplingParams(temperature=0.0), 30, 0)
    list(run)
    model = tiny.model(MODEL_OF.get(name, name), vocab_size=COLUMNS)
    theirs = pipeline("text-generation", model=model, tokenizer=chat_tokenizer(name))
    unknown = list(range(len(chat_tokenizer(name)), COLUMNS))
    made = theirs(
        CHAT, max_new_tokens=30, do_sample=False, eos_token_id=end_ids(name), suppress_tokens=unknown,
        return_tensors=True,
    )  # fmt: skip
    prompt = pair.codec.encode_prompt(CHAT)
    assert made[0]["generated_token_ids"][len(prompt) :] == [token.id for token in run.trace.tokens]
    assert 0 < run.trace.metrics().accepted_tokens < run.trace.metrics().drafted_tokens


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("which", [0, -1])
def test_fault_9_every_id_of_the_list_ends_the_text(name, which, folders):
    """The verifier's head is turned so that it says the token at once; its words do not count as text."""
    pair = load(folders[name])
    eos = end_ids(name)[which]
    head = pair.model.get_output_embeddings()
    bare = pair.new_verifier().feed(pair.codec.encode_prompt("the cat"), want_hidden=True).hidden[-1]
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    head.weight[eos] = 50 * bare / bare.norm()
    run = decode(pair, "the cat", make_rule("sps"), 4, SamplingParams(temperature=0.0), 30, 0)
    list(run)
    assert run.stop_reason == "stop" and run.trace.tokens[-1].id == eos and run.trace.tokens[-1].text == ""


def test_fault_17_families_do_not_mix(folders):
    with pytest.raises(CactusError, match="tokenizers differ: token"):
        load_pair(draft=folders["qwen3"] / "draft", verifier=folders["gemma3"] / "verifier", device="cpu")
