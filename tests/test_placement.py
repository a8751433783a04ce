"""Where a verifier goes: maps over devices give the same text as one device; what cannot fit or be rounded is named.

More than one GPU, and kernels for rounded weights, cannot be tried here: what is asked of the libraries is.
"""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import tiny
import torch
from transformers import BitsAndBytesConfig, Gemma3TextConfig, LlamaConfig

from cactus import SamplingParams, decode, load_pair, make_rule
from cactus.errors import CactusError, UnavailableError
from cactus.models import HFModel, Placement, input_device, is_spread, load_model, load_placed, placement
from cactus.models.static import can_be_static

CPU = torch.device("cpu")
SPLIT = {
    "model.embed_tokens": "disk", "model.layers.0": "disk", "model.layers.1": "cpu", "model.norm": "cpu",
    "model.rotary_emb": "cpu", "lm_head": "cpu",
}  # fmt: skip
MAPS = {"one device": {"": "cpu"}, "automatic": "auto", "memory and disk": SPLIT}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for name, made in (("verifier", tiny.model()), ("draft", tiny.near())):
        made.save_pretrained(place / name)
        tiny.tokenizer().save_pretrained(place / name)
    return place


def greedy(pair, rule="sps"):
    run = decode(pair, "the cat sat", make_rule(rule), 3, SamplingParams(temperature=0), 24, 0)
    for _ in run:
        pass
    return run.trace


@pytest.mark.parametrize("name", MAPS)
def test_a_verifier_spread_by_a_map_writes_the_same_text(name, folders):
    own = {"draft": folders / "draft", "verifier": folders / "verifier", "device": "cpu", "dtype": "float32"}
    plain, spread = load_pair(**own), load_pair(**own, device_map=MAPS[name])
    assert spread.device == CPU and is_spread(spread.model) == (name == "memory and disk")
    expected, found = greedy(plain), greedy(spread)
    assert found.text == expected.text and [r.accepted_length for r in found.rounds] == [
        r.accepted_length for r in expected.rounds
    ]
    assert any(r.accepted_length for r in found.rounds)
    assert found.pair == "draft + verifier" and found.device == "cpu"


def test_inputs_go_where_the_embedding_computes_even_if_its_weights_rest_elsewhere(folders):
    model = load_placed(folders / "verifier", Placement("cpu", "float32", SPLIT))
    assert model.get_input_embeddings().weight.device.type == "meta"
    assert input_device(model) == HFModel(model).device == CPU
    together, cached = (
        HFModel(model).feed([5, 6, 7], keep=3).logits,
        HFModel(load_model(folders / "verifier", CPU, torch.float32)),
    )
    torch.testing.assert_close(together, cached.feed([5, 6, 7], keep=3).logits)


def test_static_caches_need_one_device(folders):
    with pytest.raises(CactusError, match="static caches need a verifier on one device"):
        load_pair(verifier=folders / "verifier", device_map="auto", static=True)
    assert can_be_static(load_model(folders / "verifier", CPU, torch.float32))
    assert not can_be_static(load_placed(folders / "verifier", Placement("cpu", "float32", SPLIT)))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"device_map": "everywhere"}, "device_map is 'everywhere'; auto, balanced, sequential are allowed"),
        ({"quantize": "2bit"}, "quantize is '2bit'; 4bit, 8bit are allowed"),
        ({"quantize": "4bit"}, "needs bitsandbytes: not installed; `pip install bitsandbytes`"),
    ],
)
def test_wishes_that_cannot_be_met_are_named(wish, message, monkeypatch):
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    with pytest.raises(CactusError, match=message):
        Placement(**wish)


def test_rounding_is_bitsandbytes_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(placement, "find_spec", lambda name: name == "bitsandbytes" or None)
    four = Placement("cpu", "bfloat16", quantize="4bit")
    asked = four.options()["quantization_config"]
    assert isinstance(asked, BitsAndBytesConfig) and asked.load_in_4bit
    assert asked.bnb_4bit_compute_dtype == torch.bfloat16 and asked.bnb_4bit_quant_type == "nf4"
    assert four.options()["device_map"] == {"": CPU}  # a rounded model cannot be moved afterwards
    assert Placement("cpu", quantize="8bit").options()["quantization_config"].load_in_8bit
    assert four.label == "rounded to 4 bits with bitsandbytes"


def test_eight_bits_are_torchaos_where_only_that_is_installed(monkeypatch):
    module = ModuleType("torchao.quantization")
    module.Int8WeightOnlyConfig = type("Int8WeightOnlyConfig", (), {})
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.quantization", module)
    monkeypatch.setattr("transformers.TorchAoConfig", lambda kind: kind)
    monkeypatch.setattr(placement, "find_spec", lambda name: name == "torchao" or None)
    asked = Placement("cpu", quantize="8bit").options()["quantization_config"]
    assert isinstance(asked, module.Int8WeightOnlyConfig)
    with pytest.raises(CactusError, match="needs bitsandbytes: not installed"):
        Placement("cpu", quantize="4bit")


def test_a_plain_placement_asks_for_nothing_but_the_dtype():
    assert Placement("cpu", "float16").options() == {"dtype": torch.float16}
    assert Placement("cpu").is_plain and not Placement("cpu", device_map="auto").is_plain


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_sizes_come_from_the_configuration_alone(dtype, size):
    for config in (tiny.model().config, tiny.model("gemma3").config):
        held = sum(parameter.numel() for parameter in tiny.model(config_family(config)).parameters())
        assert placement.model_bytes(config, dtype) == size * held
    whole = placement.model_bytes(tiny.model().config, torch.bfloat16)
    assert 0.25 * whole < placement.model_bytes(tiny.model().config, torch.bfloat16, "4bit") < 0.5 * whole


def config_family(config) -> str:
    return {LlamaConfig: "llama", Gemma3TextConfig: "gemma3"}[type(config)]


def test_fault_25_what_cannot_fit_is_refused_with_sizes_and_what_would_help(monkeypatch):
    big = LlamaConfig(hidden_size=8192, num_hidden_layers=80, intermediate_size=28672, num_attention_heads=64)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 16_000_000_000})())
    with pytest.raises(
        UnavailableError, match=r"big needs about \d\d\d\.\d GB of memory; 16\.0 GB are free on cpu; quantize"
    ):
        placement.check_fits(big, "big", Placement("cpu", "bfloat16"))
    with pytest.raises(UnavailableError, match="are free on all devices"):
        placement.check_fits(big, "big", Placement("cpu", "bfloat16", "auto"))
    placement.check_fits(tiny.model().config, "small", Placement("cpu", "float32"))
