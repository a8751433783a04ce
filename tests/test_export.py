"""A pair's models as folders that other engines load."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus.cli import BAD_INPUT, main
from cactus.commands.export import NAMES, models
from cactus.drafters import ModelDrafter
from cactus.errors import CactusError
from cactus.models import HFModel
from cactus.models.standalone import standalone

PROMPT = torch.tensor([[5, 9, 30, 7, 12]])


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Verifier and draft model as a user has them."""
    made = {"verifier": tiny.model(), "draft": tiny.near()}
    for name, model in made.items():
        model.save_pretrained(tmp_path / name)
        tiny.tokenizer().save_pretrained(tmp_path / name)
    return {name: tmp_path / name for name in made}


def logits(folder: Path) -> torch.Tensor:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(PROMPT).logits


def test_transformers_loads_what_was_exported(folders, tmp_path, capsys):
    out = tmp_path / "out"
    models_given = ["--verifier", str(folders["verifier"]), "--draft", str(folders["draft"])]
    assert main(["export", *models_given, "--dtype", "float32", "--out", str(out)]) == 0
    for name in NAMES:
        assert torch.equal(logits(out / name), logits(folders[name]))
        words = AutoTokenizer.from_pretrained(out / name)("the cat")["input_ids"]
        assert words == tiny.tokenizer()("the cat")["input_ids"]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in NAMES]


def test_a_cut_output_head_is_made_whole(tmp_path):
    verifier, token_ids = tiny.model(), torch.arange(0, 300, 2)
    drafter = ModelDrafter(HFModel(tiny.shared_draft(verifier, token_ids)), 300, token_ids)
    cut = drafter.model.model(PROMPT).logits  # [1, 5, k]
    whole = standalone(drafter, verifier)
    whole.save_pretrained(tmp_path)
    assert cut.shape[-1] == 150 and logits(tmp_path).shape[-1] == 300
    assert torch.allclose(logits(tmp_path)[..., token_ids], cut, atol=1e-5)
    assert drafter.model.model(PROMPT).logits.shape == cut.shape  # the pair's own stays as it is


def test_what_is_no_language_model_is_refused(tmp_path, capsys):
    with pytest.raises(CactusError, match="PromptLookup, which is no language model"):
        models(tiny.pair(draft="lookup"))
    assert main(["export", "--pair", "nobody", "--out", str(tmp_path)]) == BAD_INPUT
    assert "nobody" in capsys.readouterr().err and not list(tmp_path.iterdir())
