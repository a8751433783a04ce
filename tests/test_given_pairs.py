"""Pairs of one's own: folders and GGUF files; what is refused before weights are read; how they are found."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import huggingface_hub.file_download  # noqa: F401  (what `cache` sets aside)
import pytest
import test_weights_hub as hub_server
import tiny
import tiny_gguf
import torch
from test_weights_hub import COMMIT, Hub, endpoint  # noqa: F401  (endpoint is a fixture)
from test_weights_hub_cache import cache  # noqa: F401  (a fixture, used by all)
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from cactus import SamplingParams, decode, load_pair, make_rule
from cactus.commands import pair_flags
from cactus.errors import CactusError, UnavailableError
from cactus.models import HFModel, loading
from cactus.models.narrow import NarrowModel, for_vocabulary
from cactus.pairs import find_pair
from cactus.pairs.added import ADDED, AddedPairs
from cactus.pairs.given import given_pair
from cactus.request import RunRequest
from cactus.session import Session

pytestmark = pytest.mark.usefixtures("none_added")


@pytest.fixture(scope="module")
def folders(folders: Path) -> Path:
    """The folders, and beside them the same models as GGUF files."""
    tiny_gguf.write(folders / "verifier.gguf", tiny.model())
    tiny_gguf.write(folders / "draft.gguf", tiny.near())
    return folders


def load(**given):
    return load_pair(**given, device="cpu", dtype="float32")


def greedy(pair, rule: str | None = "sps", count: int = 3):
    run = decode(pair, "the cat sat", make_rule(rule) if rule else None, count, SamplingParams(temperature=0), 24, 0)
    for _ in run:
        pass
    return run.trace


KINDS = {
    "folders": ("draft", "verifier"), "files": ("draft.gguf", "verifier.gguf"),
    "a file drafts": ("draft.gguf", "verifier"),
    "a file verifies": ("draft", "verifier.gguf"), "lookup": (None, "verifier"),
    "lookup, file": (None, "verifier.gguf"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_pair_writes_what_its_verifier_writes(kind, folders):
    draft, verifier = KINDS[kind]
    pair = load(draft=draft and folders / draft, verifier=str(folders / verifier))
    trace = greedy(pair)
    expected = greedy(tiny.pair(draft="near"), None, 0)
    assert trace.text == expected.text
    assert trace.pair == f"{draft or 'prompt lookup'} + {verifier}"
    assert pair.weights == f"{verifier} (given)"
    if draft:
        assert sum(r.accepted_length for r in trace.rounds) > 0


def test_gguf_files_are_unpacked(folders):
    """Packed, which is the library's default, every pass would unpack them again."""
    pair = load(verifier=folders / "verifier.gguf")
    assert {type(module) for module in pair.model.modules() if "Linear" in type(module).__name__} == {torch.nn.Linear}
    for name, value in tiny.model().state_dict().items():
        torch.testing.assert_close(pair.model.state_dict()[name], value)
    with pytest.raises(CactusError, match=r"verifier\.gguf is a GGUF file, rounded already"):
        loading.check_packing("verifier.gguf", "4bit")


def with_tokenizer(folders: Path, place: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    tiny.near().save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def changed(edit) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(edit(tiny.tokenizer().backend_tokenizer.to_str()))
    )


def swapped(state: str) -> str:
    """Two tokens of a vocabulary of the same size change places."""
    first, second = tiny.tokenizer().convert_ids_to_tokens([10, 11])
    for old, new in ((f'"{first}":10', '"@@":10'), (f'"{second}":11', f'"{first}":11'), ('"@@":10', f'"{second}":10')):
        state = state.replace(old, new)
    return state


def no_weights_are_read(monkeypatch) -> None:
    def read(*_, **__):
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "_read", read)


def test_fault_17_permuted_tokens_are_refused_before_weights_are_read(folders, tmp_path, monkeypatch):
    no_weights_are_read(monkeypatch)
    other = with_tokenizer(folders, tmp_path / "other", changed(swapped))
    first, second = tiny.tokenizer().convert_ids_to_tokens([10, 11])
    with pytest.raises(CactusError) as caught:
        load(draft=other, verifier=folders / "verifier")
    message = str(caught.value)
    assert f"token 10 is {second!r} for other and {first!r} for verifier; 2 of 300 ids differ" in message
    assert "take a draft model of the verifier's own family, or none (prompt lookup)" in message
    assert "Translating between tokenizers is not done here" in message


@pytest.mark.parametrize("owner", ["draft", "verifier"])
def test_fault_17_a_special_token_that_only_one_has_is_named(owner, folders, tmp_path, monkeypatch):
    no_weights_are_read(monkeypatch)
    more = changed(lambda state: state)
    more.add_special_tokens({"additional_special_tokens": ["<|extra|>"]})
    other = with_tokenizer(folders, tmp_path / "other", more)
    own = {"draft": folders / "draft", "verifier": folders / "verifier"} | {owner: other}
    said = {"draft": "'<|extra|>' for other and no token at all for verifier",
            "verifier": "no token at all for draft and '<|extra|>' for other"}  # fmt: skip
    with pytest.raises(CactusError, match="token 300 is .*; 1 of 301 ids differ") as caught:
        load(**own)
    assert said[owner] in str(caught.value)


def test_fault_17_unequal_padding_is_no_difference(tmp_path, folders):
    for name, columns in (("wide", 320), ("wider", 352)):
        tiny.model(vocab_size=columns).save_pretrained(tmp_path / name)
        tiny.tokenizer().save_pretrained(tmp_path / name)
    pair = load(draft=tmp_path / "wider", verifier=tmp_path / "wide")
    assert pair.codec.vocab_size == 300
    assert greedy(pair).text == greedy(pair, None, 0).text
    assert all(0 <= token.id < 300 for round_ in greedy(pair).rounds for token in round_.tokens)


def test_fault_17_a_draft_model_with_fewer_rows_reads_what_it_does_not_know_as_another_token(tmp_path, folders):
    tiny.model(vocab_size=290, seed=3).save_pretrained(tmp_path / "small")
    tiny.tokenizer().save_pretrained(tmp_path / "small")
    pair = load(draft=tmp_path / "small", verifier=folders / "verifier")
    run = decode(pair, [5, 295, 299, 9], make_rule("sps"), 4, SamplingParams(temperature=1.0), 64, 1)
    drafted = [t.id for round_ in run for t in round_.tokens if t.status in ("accepted", "rejected", "discarded")]
    assert drafted and max(drafted) < 290
    alone = decode(pair, [5, 295, 299, 9], None, 0, SamplingParams(temperature=0), 32, 1)
    text = "".join(t.text for round_ in alone for t in round_.tokens)
    run = decode(pair, [5, 295, 299, 9], make_rule("sps"), 4, SamplingParams(temperature=0), 32, 1)
    for _ in run:
        pass
    assert run.trace.text == text


def test_a_narrow_model_keeps_the_cache_of_its_own():
    new = for_vocabulary(lambda: HFModel(tiny.model(vocab_size=290)), 290, 300)
    narrow, plain = new(), HFModel(tiny.model(vocab_size=290))
    assert isinstance(narrow, NarrowModel) and narrow.context_length == plain.context_length
    for fed in ([5, 299], torch.tensor([295])):
        known = [min(int(token), 289) for token in fed]
        torch.testing.assert_close(narrow.feed(fed).logits, plain.feed(known).logits)
    other = narrow.fork()
    other.feed([7])
    narrow.rewind(1)
    assert (narrow.length, other.length, narrow.device) == (1, 4, torch.device("cpu"))
    assert not isinstance(for_vocabulary(lambda: plain, 300, 300)(), NarrowModel)


@pytest.mark.parametrize("role", ["draft", "verifier"])
def test_fault_26_what_is_no_model_fails_at_once_by_name(role, folders, tmp_path, monkeypatch):
    no_weights_are_read(monkeypatch)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.gguf").write_text("not it")
    for wrong in ("empty", "notes.gguf", "gone"):
        start = time.monotonic()
        with pytest.raises(UnavailableError, match=wrong) as caught:
            load(**{"verifier": folders / "verifier"} | {role: str(tmp_path / wrong)})
        assert time.monotonic() - start < 5 and str(tmp_path) not in str(caught.value)


def serve(monkeypatch, place: Path, **other: bytes) -> None:
    files = {file.name: file.read_bytes() for file in place.iterdir()}
    monkeypatch.setattr(hub_server, "FILES", files | {name.replace("_json", ".json"): d for name, d in other.items()})


def test_a_hub_id_is_looked_at_downloaded_and_run(folders, endpoint, monkeypatch):  # noqa: F811
    serve(monkeypatch, folders / "verifier")
    pair = load(draft=folders / "draft", verifier="org/model")
    assert pair.name == "draft + org/model" and pair.weights == f"org/model (model hub, {COMMIT[:8]})"
    assert greedy(pair).text == greedy(tiny.pair(draft="near"), None, 0).text
    served = len(Hub.served)
    load(verifier="org/model")
    assert len(Hub.served) == served


@pytest.mark.parametrize("config", [b'{"model_type": "mamba"}', b'{"model_type": "x", "auto_map": {"A": "x.X"}}'])
@pytest.mark.usefixtures("endpoint")
def test_a_hub_model_that_cannot_be_used_is_refused_before_its_download(config, folders, monkeypatch):
    serve(monkeypatch, folders / "verifier", config_json=config)
    with pytest.raises(CactusError, match="org/model .*cannot be used"):
        load(verifier="org/model")
    assert Hub.served and not any(name.endswith(".safetensors") for name in Hub.served)


@pytest.mark.usefixtures("endpoint")
def test_tokenizers_are_compared_before_a_hub_models_weights_are_downloaded(folders, tmp_path, monkeypatch):
    serve(monkeypatch, with_tokenizer(folders, tmp_path / "other", changed(swapped)))
    with pytest.raises(CactusError, match=r"token 10 is .* for org/model and .* for verifier"):
        load(draft="org/model", verifier=folders / "verifier")
    assert Hub.served and not any(name.endswith(".safetensors") for name in Hub.served)


def test_what_is_asked_for_has_to_make_sense(folders):
    for given, message in (
        ({"name": "pocket", "verifier": "x/y"}, "not both"),
        ({"draft": "x/y"}, "verifier="),
        ({"name": "pocket", "quantize": "4bit"}, "need verifier="),
        ({"verifier": ""}, "the verifier is ''"),
        ({"verifier": "x/y", "draft": ""}, "the draft model is ''"),
    ):
        with pytest.raises(CactusError, match=message):
            load_pair(**given)


def test_a_pair_added_is_found_and_used_as_any_other(folders):
    session = Session("cpu", "float32")
    spec = ADDED.add(given_pair(folders / "draft", folders / "verifier"))
    assert find_pair("draft + verifier") is spec
    state = next(state for state in session.states() if state.name == spec.name)
    assert state.description == "verifier with draft" and not state.loaded
    with session.start(RunRequest(pair=spec.name, method="sps", max_new_tokens=8, prompt="hi")) as live:
        assert sum(1 for _ in live) > 0
    assert live.trace.pair == "draft + verifier"
    assert next(state for state in session.states() if state.name == spec.name).loaded


def test_only_a_few_are_remembered_and_names_stay_apart(folders, tmp_path):
    pairs = AddedPairs(most=2)
    first = pairs.add(given_pair(None, folders / "verifier"))
    assert pairs.add(given_pair(None, folders / "verifier")).name == first.name and len(pairs.all()) == 1
    (tmp_path / "verifier").mkdir()
    second = pairs.add(given_pair(None, tmp_path / "verifier"))
    assert second.name == second.label == f"{first.name} (2)" and pairs.find(second.name) is second
    pairs.add(given_pair(None, folders / "draft"))
    assert pairs.find(first.name) is None and len(pairs.all()) == 2
    pairs.drop(second.name)
    assert pairs.find(second.name) is None


def arguments(**given):
    parser = argparse.ArgumentParser()
    pair_flags.add_pair_flags(parser)
    flags = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return parser.parse_args(flags)


def test_flags_of_the_command_line(folders):
    assert pair_flags.pair_of(arguments()).name == "smollm2-135m"
    assert pair_flags.pair_of(arguments(pair="pocket")).name == "pocket"
    own = arguments(draft=folders / "draft", verifier=folders / "verifier", device_map="auto")
    spec = pair_flags.pair_of(own)
    assert find_pair(spec.name) is spec and spec.device_map == "auto"
    assert pair_flags.pair_of(own).name == spec.name  # asked twice, it is the same pair


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"draft": "x/y"}, "--draft needs --verifier"),
        ({"device_map": "auto"}, "--device-map needs --verifier"),
        ({"quantize": "4bit"}, "--quantize needs --verifier"),
        ({"pair": "pocket", "verifier": "x/y"}, "give one of the two"),
        ({"pair": "nope"}, "pair is 'nope'"),
    ],
)
def test_flags_that_do_not_go_together(given, message):
    with pytest.raises(CactusError, match=message):
        pair_flags.pair_of(arguments(**given))
