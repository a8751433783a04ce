"""Draft models with int8 weights."""

import pytest
import tiny
import torch
from torch import nn

from cactus import SamplingParams, decode, make_rule
from cactus.models import HFModel, cheapest, shared
from cactus.models.quantized import FEW_ROWS, Int8Linear, can_quantize, quantized
from cactus.pairs import OwnDraft, Pair, SharedDraft, pair_from_models


@pytest.fixture(scope="module")
def model():
    made = tiny.FAMILIES["llama"](**{**tiny.SIZES, "vocab_size": 300, "hidden_size": 64})
    made.load_state_dict(tiny.model(hidden_size=64).state_dict())
    return made.bfloat16().eval().requires_grad_(False)


def test_a_layer_is_within_rounding_of_its_original_and_exact_for_many_rows():
    linear = nn.Linear(96, 64, bias=False, dtype=torch.bfloat16)
    layer, rows = Int8Linear(linear), torch.randn(1, FEW_ROWS, 96).bfloat16()
    wanted = linear(rows).float()
    assert layer(rows).shape == wanted.shape
    assert (layer(rows).float() - wanted).abs().max() < 0.03 * wanted.abs().max()
    many = torch.randn(FEW_ROWS + 1, 96).bfloat16()
    assert torch.equal(layer(many), linear(many))


def test_a_row_of_zeros_stays_zero():
    linear = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        linear.weight[3] = 0
    assert Int8Linear(linear)(torch.ones(1, 64).bfloat16())[0, 3] == 0


def test_the_copy_shares_what_it_does_not_change_and_leaves_the_original_alone(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    twin = quantized(model)
    assert twin.model.embed_tokens.weight is model.model.embed_tokens.weight
    assert twin.lm_head.exact.weight is model.lm_head.weight
    assert isinstance(twin.model.layers[0].mlp.up_proj, Int8Linear)
    assert isinstance(model.model.layers[0].mlp.up_proj, nn.Linear)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    drafted = HFModel(twin).feed([5, 9, 30]).logits.softmax(-1)
    assert (drafted - HFModel(model).feed([5, 9, 30]).logits.softmax(-1)).abs().sum() < 0.2


def test_only_bfloat16_on_the_cpu_is_quantised(model):
    assert not can_quantize(tiny.model())
    kept, kind = cheapest(tiny.model(), HFModel.one_step)
    assert kept is tiny.model() and kind == "float32"
    assert cheapest(model, HFModel.one_step)[1] in ("int8", "bfloat16")


def test_whichever_is_faster_is_taken_and_named(model, monkeypatch):
    if not can_quantize(model):
        pytest.skip("no int8 kernel here")
    for slow in ("int8", "bfloat16"):
        ticks = {"now": 0.0}
        monkeypatch.setattr("cactus.models.quantized.time.perf_counter", lambda ticks=ticks: ticks["now"])

        def step(rival, slow=slow, ticks=ticks):
            is_int8 = isinstance(rival.lm_head, Int8Linear)

            def run():
                ticks["now"] += 2.0 if is_int8 == (slow == "int8") else 1.0

            return run

        chosen, kind = cheapest(model, step)
        assert kind == ({"int8", "bfloat16"} - {slow}).pop()
        assert isinstance(chosen.lm_head, Int8Linear) == (kind == "int8")


def test_the_trace_tests_and_records_what_was_really_drawn_from(model):
    twin = quantized(model)
    pair = pair_from_models(model, tiny.tokenizer(), twin)
    pair = Pair(pair.name, pair.model, pair.codec, pair.drafter, draft_weights="int8")
    run = decode(pair, [5, 9, 30], make_rule("sps"), 3, SamplingParams(), 40, 0)
    list(run)
    assert run.trace.check() == [] and run.trace.versions["draft weights"] == "int8"
    rejected = [t for r in run.rounds for t in r.tokens if t.accept_prob is not None]
    for token in rejected:
        assert token.accept_prob == pytest.approx(min(1.0, token.verifier_prob / token.draft_prob), rel=1e-4)


def test_pairs_take_the_cheaper_form(tmp_path, model):
    codec = pair_from_models(model, tiny.tokenizer()).codec
    shared.save(tmp_path / "shared", shared.build(model, torch.arange(64), 1, (0,)), torch.arange(64))
    model.save_pretrained(tmp_path / "own")
    tiny.tokenizer().save_pretrained(tmp_path / "own")
    for source in (SharedDraft(tmp_path / "shared"), OwnDraft(tmp_path / "own")):
        drafting = source.build(model, codec)
        assert drafting.weights in ("int8", "bfloat16")
        assert drafting.new() is not drafting.new()
