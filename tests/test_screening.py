"""What is refused from a configuration alone, and what only a try can tell. No weights are read for the former."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from transformers import BertConfig, BertLMHeadModel

from cactus.errors import CactusError, UnavailableError
from cactus.models import load_model, read_config
from cactus.models.screening import check_behaviour

CPU = torch.device("cpu")
STATE = "its recurrent state cannot be rewound after a rejected draft; take a model with attention in every layer"
RECURRENT = (
    "mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma", "jamba", "bamba", "zamba", "zamba2", "falcon_h1",
    "qwen3_next", "granitemoehybrid", "nemotron_h", "xlstm",
)  # fmt: skip
REFUSED = {
    "own code": ({"model_type": "weird", "auto_map": {"AutoConfig": "configuration_weird.Config"}},
                 r"mine \(weird\) cannot be used: it brings Python code of its own, which is never run here"),
    "unknown": ({"model_type": "weird"}, "mine cannot be used: transformers .* does not know the model type 'weird'"),
    "encoder-decoder": ({"model_type": "t5"}, r"mine \(t5\) cannot be used: it is an encoder-decoder"),
    "decoder half": ({"model_type": "bart"}, "it is an encoder-decoder"),
    "speech": ({"model_type": "whisper"}, "it is an encoder-decoder"),
    "embeddings": ({"model_type": "bert", "architectures": ["BertModel"]}, "weights are of a BertModel, which does"),
    "classifier": ({"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]}, "does not write text"),
    "vision": ({"model_type": "vit"}, r"mine \(vit\) cannot be used: transformers .* has no model that writes text"),
    "images and text": ({"model_type": "qwen2_5_vl"}, "take a text-only model of the family"),
    "no cache": ({"model_type": "openai-gpt"}, "it has no cache that could be rewound"),
    "no context": ({"model_type": "bloom"}, "its configuration states no context length"),
    "lightning attention": ({"model_type": "minimax"}, "its LinearAttentionLayer state cannot be rewound"),
}  # fmt: skip


def written(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", RECURRENT)
def test_fault_15_recurrent_and_hybrid_models_are_refused_before_their_weights_are_read(kind, tmp_path):
    place = written(tmp_path / "mine", {"model_type": kind})
    (place / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(CactusError, match=rf"^mine \(\w+, {kind}\) cannot be used: {STATE}"):
        load_model(place, CPU, torch.float32)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_verified_token_by_token_is_refused_by_name(case, tmp_path):
    config, reason = REFUSED[case]
    with pytest.raises(CactusError, match=reason) as caught:
        read_config(written(tmp_path / "mine", config))
    assert str(tmp_path) not in str(caught.value)


def test_a_known_type_that_also_brings_code_runs_the_librarys_own(tmp_path):
    tiny.model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    written(tmp_path, config | {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Model"}})
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('run')")
    assert read_config(tmp_path).model_type == "llama"


def test_embedding_models_that_look_like_decoders_are_told_by_the_files_beside(tmp_path):
    tiny.model().save_pretrained(tmp_path / "mine")
    (tmp_path / "mine" / "modules.json").write_text("[]")
    with pytest.raises(CactusError, match=r"mine cannot be used: it is an embedding model"):
        read_config(tmp_path / "mine")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "the configuration of mine cannot be read"),
        ("{}", r"mine has no config\.json that names a model_type"),
        ('{"model_type": "llama", "vocab_size": "many"}', "cannot be read: Validation error for field 'vocab_size'"),
    ],
)
def test_fault_26_configurations_written_wrongly_are_named(text, reason, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(text)
    with pytest.raises(UnavailableError, match=reason) as caught:
        read_config(tmp_path / "mine")
    assert str(tmp_path) not in str(caught.value)


def test_fault_26_damaged_and_missing_weights_are_named(tmp_path):
    place = tmp_path / "mine"
    tiny.model().save_pretrained(place)
    state = next(place.glob("*.safetensors"))
    whole = state.read_bytes()
    for damage in (b"x" * 100, whole[: len(whole) // 2], b""):
        state.write_bytes(damage)
        with pytest.raises(UnavailableError, match="^mine cannot be loaded") as caught:
            load_model(place, CPU, torch.float32)
        assert str(tmp_path) not in str(caught.value)


def test_weights_that_are_not_in_the_files_are_not_drawn_at_random(tmp_path):
    tiny.model(num_hidden_layers=2).save_pretrained(tmp_path / "mine")
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    written(tmp_path / "mine", config | {"num_hidden_layers": 3})
    with pytest.raises(UnavailableError, match=r"9 of its weights are not in its files, model\.layers\.2\.") as caught:
        load_model(tmp_path / "mine", CPU, torch.float32)
    assert "download it again" in str(caught.value)


@pytest.mark.parametrize("family", tiny.ARCHITECTURES)
def test_models_that_can_be_rewound_behave_so(family):
    check_behaviour(tiny.model(family), CPU, "tiny")


def test_a_model_that_sees_what_comes_later_is_found_out():
    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=50)
    config.initializer_range = 1.0
    with pytest.raises(CactusError, match=r"tokens that are taken back and read again give other"):
        check_behaviour(BertLMHeadModel(config).eval(), CPU, "mine")
