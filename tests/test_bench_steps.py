"""bench --steps: shapes, the check against the CPU, the times and the report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny
import torch

from cactus import pairs
from cactus.bench import against_cpu, shapes, step_times, steps, ways
from cactus.bench.shapes import SHAPES, changed, config_of, models_of, parse_changes, random_model
from cactus.cli import main
from cactus.errors import CactusError, UnavailableError
from cactus.models.quantized import quantized
from cactus.models.slots import WIDEST
from cactus.models.static import can_be_static
from cactus.weights import ShippedWeights

CPU = torch.device("cpu")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A verifier's config without weights and a draft model with them."""
    monkeypatch.setattr(step_times, "TRIALS", 2)
    monkeypatch.setattr(step_times, "SMALL_COPY", 1 << 16)
    tiny.model().config.save_pretrained(tmp_path / "verifier")
    tiny.near().save_pretrained(tmp_path / "draft")
    return str(tmp_path / "verifier"), str(tmp_path / "draft")


def test_every_listed_shape_is_a_model_that_can_run_on_static_caches_and_has_its_size():
    millions = {
        "smollm2-135m-instruct": 135, "smollm2-1.7b": 1711, "llama-3.2-1b": 1236, "llama-3.1-8b": 8030,
        "qwen3-0.6b": 596, "qwen3-8b": 8191, "qwen3-14b": 14768,
    }  # fmt: skip
    assert millions.keys() == SHAPES.keys()
    for name, shape in SHAPES.items():
        with torch.device("meta"):
            model = random_model(config_of(name), torch.device("meta"), torch.bfloat16)
        assert round(model.num_parameters() / 1e6) == millions[name]
        assert can_be_static(model)
        assert not shape.draft or SHAPES[shape.draft].sizes["vocab_size"] == shape.sizes["vocab_size"]


def test_weights_are_read_where_there_are_any_and_random_where_not(folders):
    models = models_of(*folders, {}, CPU, torch.float32)
    assert models.weights == "random weights"
    assert torch.equal(models.draft.lm_head.weight, tiny.near().lm_head.weight)
    assert models.verifier.num_parameters() == tiny.model().num_parameters()
    again = models_of(*folders, {}, CPU, torch.float32).verifier
    assert torch.equal(models.verifier.lm_head.weight, again.lm_head.weight)


def test_a_pair_of_the_registry_is_taken_as_it_is_and_by_its_shape_where_it_has_no_weights(monkeypatch, tmp_path):
    for name, model in (("whole", tiny.model()), ("small", tiny.near())):
        model.save_pretrained(tmp_path / name)
        tiny.tokenizer().save_pretrained(tmp_path / name)
    weights = ShippedWeights("tiny", tmp_path / "whole", licence="none")
    spec = pairs.PairSpec("mine", "mine", weights, pairs.OwnDraft(tmp_path / "small"))
    monkeypatch.setitem(pairs.PAIRS, "mine", spec)
    models = models_of("mine", None, {}, CPU, torch.float32)
    assert models.weights.startswith("tiny (shipped")
    assert torch.equal(models.verifier.lm_head.weight, tiny.model().lm_head.weight)
    assert torch.equal(models.draft.lm_head.weight, tiny.near().lm_head.weight)
    monkeypatch.setitem(pairs.PAIRS, "mine", replace(spec, drafter=pairs.Lookup()))
    alone = models_of("mine", None, {}, CPU, torch.float32)
    assert (alone.weights, alone.draft.config.num_hidden_layers) == ("weights of mine", 2)

    absent = ShippedWeights("qwen3-0.6b", tmp_path / "nowhere", licence="none")
    monkeypatch.setitem(pairs.PAIRS, "mine", replace(spec, verifier=absent))
    assert config_of("mine").hidden_size == 1024
    monkeypatch.setitem(pairs.PAIRS, "mine", replace(spec, verifier=replace(absent, name="unlisted")))
    with pytest.raises(UnavailableError, match="mine: its weights are not here"):
        config_of("mine")


def test_without_a_draft_model_a_part_of_the_verifier_stands_for_one(folders):
    models = models_of(folders[0], None, {"num_hidden_layers": 5, "hidden_size": 64}, CPU, torch.float32)
    assert [model.config.num_hidden_layers for model in (models.verifier, models.draft)] == [5, 2]
    assert models.draft.config.hidden_size == 64


def test_changes_are_read_and_wrong_ones_named():
    assert parse_changes("hidden_size=64,num_hidden_layers=3") == {"hidden_size": 64, "num_hidden_layers": 3}
    assert parse_changes("") == {}
    for wrong in ("hidden_size", "hidden_size=", "hidden_size=0", "hidden_size=-3", "hidden_size=x"):
        with pytest.raises(CactusError, match="--config has"):
            parse_changes(wrong)
    with pytest.raises(CactusError, match="no size 'hiden_size'"):
        changed(config_of("qwen3-8b"), {"hiden_size": 64})
    assert len(changed(config_of("qwen3-8b"), {"num_hidden_layers": 50}).layer_types) == 50


def test_what_is_no_source_is_named(monkeypatch):
    monkeypatch.setattr(
        shapes.AutoConfig, "from_pretrained", lambda *_, **__: (_ for _ in ()).throw(OSError("no file"))
    )
    with pytest.raises(CactusError, match=r"'no/such' is no pair, no shape \(smollm2-135m-instruct,.*no file"):
        config_of("no/such")


def test_the_report_has_every_step_and_the_check(folders, tmp_path, capsys):
    assert steps.run(*folders, {}, "cpu", "float32", tmp_path / "out", "bench --steps") == 0
    record = json.loads((tmp_path / "out" / "steps.json").read_text("utf-8"))
    assert [(step["model"], step["width"]) for step in record["steps"]] == [
        ("draft", 1), *(("verify", width) for width in range(1, WIDEST + 1)),
    ]  # fmt: skip
    for step in record["steps"]:
        assert step["seconds"].keys() == {ways.LAUNCHED, ways.STATIC}
        assert all(seconds > 0 for seconds in step["seconds"].values())
        fastest = min(step["seconds"].values())
        assert step["bandwidth_share"] == pytest.approx(step["weight_bytes"] / record["bandwidth"] / fastest)
    assert [item["passed"] for item in record["checks"]] == [True, True]
    assert all(item["tokens"] == item["equal"] == 2 * against_cpu.CHECKED_TOKENS for item in record["checks"])
    printed = capsys.readouterr().out
    assert "verify 17" in printed and "equal: verify in float32 (2 of 2 layers)" in printed
    report = (tmp_path / "out" / "steps.md").read_text("utf-8")
    assert "| draft 1 |" in report and "bench --steps" in report and "random weights" in report


def test_a_device_that_computes_something_else_is_found_out(folders, tmp_path, monkeypatch, capsys):
    real = against_cpu.ways

    def wrong(model):
        spoilt = random_model(model.config, CPU, torch.float32, seed=9)
        return real(spoilt) if model.dtype == torch.float32 else real(model)

    monkeypatch.setattr(against_cpu, "ways", wrong)
    assert steps.run(*folders, {}, "cpu", "float32", tmp_path / "out", "") == 1
    assert "NOT EQUAL: draft in float32" in capsys.readouterr().out


def test_weights_that_a_pass_reads():
    tied, untied = tiny.model(tie_word_embeddings=True), tiny.model(tie_word_embeddings=False)
    assert step_times.weight_bytes(tied) == 4 * tied.num_parameters()
    assert step_times.weight_bytes(untied) == 4 * (untied.num_parameters() - 300 * 32)
    linear = [layer.weight for layer in untied.modules() if isinstance(layer, torch.nn.Linear)]
    spared = sum(3 * weight.numel() - 4 * len(weight) for weight in linear)  # one byte each, and a scale a row
    assert step_times.weight_bytes(quantized(untied)) == step_times.weight_bytes(untied) - spared


def test_large_models_are_checked_in_part(monkeypatch):
    monkeypatch.setattr(against_cpu, "CHECKED_WHOLE", 0)
    monkeypatch.setattr(against_cpu, "CHECKED_LAYERS", 1)
    found = against_cpu.check("verify", tiny.model(), CPU)
    assert found.passed and found.layers == "1 of 2 layers"


def test_the_command_line(folders, tmp_path, capsys):
    verifier, draft = folders
    out = str(tmp_path / "out")
    line = [
        "bench",
        "--steps",
        "--pair",
        verifier,
        "--draft",
        draft,
        "--config",
        "num_hidden_layers=3",
        "--device",
        "cpu",
    ]
    assert main([*line, "--dtype", "float32", "--out", out]) == 0
    record = json.loads((tmp_path / "out" / "steps.json").read_text("utf-8"))
    assert "--steps" in record["command"] and "--config num_hidden_layers=3" in record["command"]
    assert "--methods" not in record["command"]
    assert [item["layers"] for item in record["checks"]] == ["2 of 2 layers", "3 of 3 layers"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--draft", "qwen3-0.6b"], "--draft needs --verifier"),
        (["--config", "hidden_size=64"], "--config needs --steps"),
        (["--steps", "--long"], "one of --steps, --long and --page"),
        (["--steps", "--config", "hidden_size=x"], "--config has 'hidden_size=x'"),
    ],
)
def test_flags_that_do_not_go_together_are_named(flags, message, tmp_path, capsys):
    assert main(["bench", *flags, "--out", str(tmp_path / "out")]) != 0
    assert message in capsys.readouterr().err
