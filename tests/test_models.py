"""Adapters: what is refused, chat templates, tokenizers."""

from __future__ import annotations

import pytest
import tiny
import torch
from tokenizers import Tokenizer
from transformers import MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast, Qwen3NextConfig, Qwen3NextForCausalLM

from cactus.errors import CactusError, PromptError, UnavailableError
from cactus.models import HFCodec, HFModel, check_rewindable, check_same_tokens, choose_device, choose_dtype, load_model
from cactus.pairs import load_pair


def test_fault_15_recurrent_models_are_refused_by_name():
    mamba = MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=50, state_size=4))
    with pytest.raises(CactusError, match="MambaForCausalLM"):
        check_rewindable(mamba)


def test_fault_15_hybrid_models_are_refused_by_name():
    config = Qwen3NextConfig(
        hidden_size=16, num_hidden_layers=2, vocab_size=50, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=16, layer_types=["linear_attention", "full_attention"], num_experts=2,
        num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8,
        linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    with pytest.raises(CactusError, match="Qwen3NextForCausalLM"):
        check_rewindable(Qwen3NextForCausalLM(config))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_attention_models_are_taken(family):
    check_rewindable(tiny.model(family))
    assert HFModel(tiny.model(family)).feed([5, 9]).logits.shape == (1, 300)


def test_feeding_beyond_the_context_or_rewinding_forward_is_refused():
    model = HFModel(tiny.model(max_position_embeddings=8))
    model.feed([5] * 8)
    with pytest.raises(CactusError, match="context of 8"):
        model.feed([5])
    model.rewind(3)
    assert model.length == 3
    with pytest.raises(CactusError, match="cannot rewind"):
        model.rewind(4)


def test_a_fork_leaves_the_original_alone():
    model = HFModel(tiny.model("gemma3"))
    model.feed([5, 9, 30])
    other = model.fork()
    other.feed([7] * 20)
    assert (model.length, other.length) == (3, 23)
    fresh = HFModel(tiny.model("gemma3"))
    torch.testing.assert_close(model.feed([8]).logits, fresh.feed([5, 9, 30, 8]).logits, atol=1e-5, rtol=1e-5)


def codec(template=tiny.TEMPLATE) -> HFCodec:
    return HFCodec(tiny.tokenizer(template), tiny.model())


def text_of(ids) -> str:
    return tiny.tokenizer().decode(ids)


def test_a_string_is_one_user_turn_through_the_template():
    assert text_of(codec().encode_prompt("hi")) == "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert text_of(codec().encode_prompt("hi", "be kind")).startswith("<|start|>system\nbe kind<|end|>")
    assert codec().encode_prompt([{"role": "user", "content": "hi"}]) == codec().encode_prompt("hi")
    assert codec().encode_prompt([5, 9]) == [5, 9]


def test_fault_19_without_a_template_the_raw_prompt_is_sent():
    bare = HFCodec(tiny.tokenizer(None), tiny.model())
    assert not bare.has_template
    assert text_of(bare.encode_prompt("hi")) == "hi"


def test_fault_19_a_template_that_refuses_a_system_role_gets_it_in_the_user_turn():
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + tiny.TEMPLATE
    text = text_of(codec(refusing).encode_prompt("hi", "be kind"))
    assert "<|start|>user\nbe kind\n\nhi<|end|>" in text and "system" not in text


def test_fault_19_a_template_that_refuses_anything_is_a_named_error():
    with pytest.raises(PromptError, match="never"):
        codec("{{ raise_exception('never') }}").encode_prompt("hi")


@pytest.mark.parametrize("message", [{"role": "robot", "content": "x"}, {"role": "user"}, {"content": "x"}, "x", 1.5])
def test_bad_messages_are_named(message):
    with pytest.raises(PromptError, match="chat message"):
        codec().encode_prompt([message])


def test_special_tokens_are_described_by_name_and_left_out_of_text():
    made = codec()
    assert made.decode([2, 0]) == ""
    assert made.describe(2) == "<|end|>"
    assert made.describe(tiny.tokenizer()("🌵")["input_ids"][0]) not in ("", "\ufffd")


def test_fault_17_permuted_tokens_are_refused_naming_the_first_difference():
    ours = tiny.tokenizer()
    vocab = dict(ours.get_vocab())
    check_same_tokens(ours, ours)
    first, second = sorted(vocab, key=vocab.get)[10:12]
    state = ours.backend_tokenizer.to_str()
    for old, new in ((f'"{first}":10', '"@@":10'), (f'"{second}":11', f'"{first}":11'), ('"@@":10', f'"{second}":10')):
        state = state.replace(old, new)
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(state))
    with pytest.raises(CactusError) as caught:
        check_same_tokens(ours, other)
    assert f"token 10 is {first!r} for the draft model and {second!r} for the verifier" in str(caught.value)


def test_fault_26_a_misspelt_id_or_folder_is_named(tmp_path):
    with pytest.raises(UnavailableError, match="no-such-folder"):
        load_model(tmp_path / "no-such-folder", torch.device("cpu"), torch.float32)


def test_fault_25_what_cannot_fit_is_refused_before_loading_with_both_sizes(tmp_path, monkeypatch):
    tiny.model().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000})())
    with pytest.raises(UnavailableError, match="GB of memory"):
        load_model(tmp_path, torch.device("cpu"), torch.float32)


def test_devices_and_dtypes_are_checked():
    assert choose_dtype("auto", torch.device("cpu")) in (torch.bfloat16, torch.float32)
    with pytest.raises(CactusError, match="dtype is 'int3'"):
        choose_dtype("int3", torch.device("cpu"))
    with pytest.raises(CactusError, match="'toaster'"):
        choose_device("toaster")


def test_custom_pairs_load_from_folders(tmp_path):
    for name, seed in (("draft", 7), ("verifier", 0)):
        tiny.model(seed=seed).save_pretrained(tmp_path / name)
        tiny.tokenizer().save_pretrained(tmp_path / name)
    pair = load_pair(draft=tmp_path / "draft", verifier=tmp_path / "verifier", device="cpu", dtype="float32")
    assert pair.new_verifier().feed([5]).logits.shape == (1, 300)
    with pytest.raises(CactusError, match="not both"):
        load_pair("smollm2-135m", verifier=tmp_path)
    with pytest.raises(CactusError, match="pair is 'nope'; smollm2-135m"):
        load_pair("nope")
