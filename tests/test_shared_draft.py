"""The draft model on borrowed embeddings, on a tiny random Llama."""

import json

import pytest
import tiny
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from cactus.errors import CactusError
from cactus.models import shared

TOKEN_IDS = torch.tensor([0, 2, 3, 5, 8, 13, 21, 34])
IDS = torch.tensor([[1, 5, 8, 40, 3, 96]])


def tiny_llama(hidden_size: int = 32, vocab_size: int = 97, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def verifier() -> LlamaForCausalLM:
    return tiny_llama()


@pytest.fixture
def folder(tmp_path, verifier):
    shared.save(tmp_path, shared.build(verifier, TOKEN_IDS), TOKEN_IDS)
    return tmp_path


def test_shares_the_verifiers_tensors(verifier):
    draft_model = shared.build(verifier, TOKEN_IDS)
    assert draft_model.model.embed_tokens is verifier.model.embed_tokens
    assert torch.equal(draft_model.lm_head.weight, verifier.lm_head.weight[TOKEN_IDS])
    assert draft_model(IDS).logits.shape == (1, 6, len(TOKEN_IDS))
    assert draft_model.config.vocab_size == 97


def test_layers_start_as_copies(verifier):
    draft_model = shared.build(verifier, TOKEN_IDS, 2, (1, -1))
    first = draft_model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(first, verifier.model.layers[1].mlp.up_proj.weight)
    first.data.zero_()
    assert verifier.model.layers[1].mlp.up_proj.weight.any()


def test_cache_changes_nothing(verifier):
    draft_model = shared.build(verifier, TOKEN_IDS)
    with torch.no_grad():
        whole = draft_model(IDS).logits
        start = draft_model(IDS[:, :4], use_cache=True)
        rest = draft_model(IDS[:, 4:], cache=start.past_key_values).logits
    torch.testing.assert_close(torch.cat([start.logits, rest], 1), whole)


def test_round_trip(tmp_path, verifier):
    verifier.bfloat16()
    draft_model = shared.build(verifier, TOKEN_IDS)
    shared.save(tmp_path, draft_model, TOKEN_IDS)
    loaded, token_ids = shared.load(tmp_path, verifier)
    assert torch.equal(token_ids, TOKEN_IDS) and token_ids.dtype == torch.long
    assert loaded.model.embed_tokens is verifier.model.embed_tokens
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, draft_model(IDS).logits)


def test_bfloat16_keeps_the_rotary_frequencies_and_the_global_seed(verifier):
    frequencies = verifier.model.rotary_emb.inv_freq
    for parameter in verifier.parameters():  # as from_pretrained does: weights only
        parameter.data = parameter.data.bfloat16()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    draft_model = shared.build(verifier, TOKEN_IDS)
    assert torch.equal(torch.get_rng_state(), before)
    found = draft_model.model.rotary_emb.inv_freq
    assert found.dtype == torch.float32 and torch.equal(found, frequencies)
    assert draft_model(IDS).logits.dtype == torch.bfloat16


def test_saves_only_its_own(folder):
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert size < 2 * tiny_llama().model.layers[0].mlp.up_proj.weight.numel() * 2 * 10


def test_shards_are_small_and_old_ones_go(tmp_path, verifier, monkeypatch):
    draft_model = shared.build(verifier.bfloat16(), TOKEN_IDS)
    monkeypatch.setattr(shared, "_SHARD_SIZE", "10KB")
    shared.save(tmp_path, draft_model, TOKEN_IDS)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    shared.load(tmp_path, verifier)
    monkeypatch.undo()
    shared.save(tmp_path, draft_model, TOKEN_IDS)
    assert [file.name for file in tmp_path.glob("model*")] == ["model.safetensors"]


def test_missing_shard(tmp_path, verifier, monkeypatch):
    monkeypatch.setattr(shared, "_SHARD_SIZE", "10KB")
    shared.save(tmp_path, shared.build(verifier, TOKEN_IDS), TOKEN_IDS)
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ValueError, match=lost.name):
        shared.load(tmp_path, verifier)


def test_damaged_shard(folder, verifier):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="model.safetensors"):
        shared.load(folder, verifier)


def test_missing_folder(tmp_path, verifier):
    with pytest.raises(ValueError, match="config.json"):
        shared.load(tmp_path / "nowhere", verifier)


@pytest.mark.parametrize("other", [{"hidden_size": 64}, {"vocab_size": 101}], ids=["hidden_size", "vocab_size"])
def test_other_verifier(folder, other):
    with pytest.raises(ValueError, match=next(iter(other))):
        shared.load(folder, tiny_llama(**other))


def test_wrong_shape(folder, verifier):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match="layers.2"):
        shared.load(folder, verifier)
    verifier.config.intermediate_size = 40
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="has shape"):
        shared.load(folder, verifier)


@pytest.mark.parametrize("token_ids", [[], [1, 1], [97], [-1]])
def test_bad_token_ids(verifier, token_ids):
    with pytest.raises(ValueError, match="token_ids"):
        shared.build(verifier, torch.tensor(token_ids, dtype=torch.long))


@pytest.mark.parametrize("family", tiny.ARCHITECTURES)
def test_every_listed_family_can_lend_its_embeddings(tmp_path, family):
    verifier = tiny.model(family)
    draft_model = shared.build(verifier, TOKEN_IDS, 1, (-1,))
    source, layer = verifier.get_decoder().layers[-1], draft_model.model.layers[0]
    assert torch.equal(layer.mlp.up_proj.weight, source.mlp.up_proj.weight)
    shared.save(tmp_path, draft_model, TOKEN_IDS)
    loaded, _ = shared.load(tmp_path, verifier)
    torch.testing.assert_close(loaded(IDS).logits, draft_model(IDS).logits, atol=0.2, rtol=0.2)


def test_others_are_refused_by_name():
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(CactusError, match="GPT2LMHeadModel"):
        shared.build(gpt2, TOKEN_IDS)
