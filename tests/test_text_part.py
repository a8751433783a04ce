"""Of a checkpoint that also reads images only the text model is loaded, and it is the same model."""

from __future__ import annotations

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from cactus.models import choose_device, load_model
from cactus.models.text_part import text_part

IDS = torch.tensor([[3, 5, 9, 30, 7]])


@pytest.mark.parametrize("written", ["new", "old"])
def test_the_text_model_of_gemma3_alone_gives_the_same_numbers(written, tmp_path):
    whole = tiny.model("gemma3 with images")
    whole.save_pretrained(tmp_path, save_original_format=written == "old")
    loaded = load_model(tmp_path, choose_device("cpu"), torch.float32)
    assert type(loaded).__name__ == "Gemma3ForCausalLM"
    assert sum(p.numel() for p in loaded.parameters()) < sum(p.numel() for p in whole.parameters())
    with torch.inference_mode():
        assert torch.equal(loaded(input_ids=IDS).logits, whole(input_ids=IDS).logits)
    assert loaded.generation_config.eos_token_id == whole.generation_config.eos_token_id


def test_names_of_the_latest_form_are_found_too(tmp_path):
    """Where the library writes `model.language_model.…`, as it does for most families by now."""
    whole = tiny.model("gemma3 with images")
    whole.save_pretrained(tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    renamed = {
        name.replace("language_model.model.", "model.language_model.").replace(
            "language_model.lm_head", "lm_head"
        ): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(renamed, file, metadata={"format": "pt"})
    loaded = load_model(tmp_path, choose_device("cpu"), torch.float32)
    with torch.inference_mode():
        assert torch.equal(loaded(input_ids=IDS).logits, whole(input_ids=IDS).logits)


def test_other_models_are_left_as_they_are():
    config = tiny.model("gemma3").config
    assert text_part(config) == (config, {})
