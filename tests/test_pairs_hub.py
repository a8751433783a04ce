"""A pair of two hub models: found in the cache, checked, loaded, and as exact as any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
import tiny

from cactus import SamplingParams, decode, make_rule
from cactus.errors import CactusError, UnavailableError
from cactus.machine import Accelerator, Machine
from cactus.models import HFCodec
from cactus.pairs import PAIRS, HubDraft, PairSpec, find_pair, spec
from cactus.weights import HubWeights

GB = 10**9
COMMIT = "0" * 40
GREEDY = SamplingParams(temperature=0.0)
ASKS = "{% if enable_thinking is defined and enable_thinking is false %}<quiet>{% endif %}"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (huggingface_hub.constants, huggingface_hub.file_download.constants):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path / "cactus"))
    return tmp_path


def put(cache: Path, name: str, model, tokenizer) -> HubWeights:
    """A model as the hub's library would have left it."""
    repository = cache / f"models--org--{name}"
    folder = repository / "snapshots" / COMMIT
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return HubWeights(f"org/{name}", "MIT", parameters=model.num_parameters(), cache_numbers=64)


def two(cache: Path, verifier_columns: int = 300, draft_columns: int = 300, **changes) -> PairSpec:
    verifier = put(cache, "large", tiny.model("qwen2", vocab_size=verifier_columns), tiny.tokenizer())
    draft = put(cache, "small", tiny.model("qwen2", 5, vocab_size=draft_columns), tiny.tokenizer())
    return PairSpec("two", "Two", verifier, HubDraft(draft), **changes)


@pytest.mark.parametrize(("verifier_columns", "draft_columns"), [(300, 300), (320, 304), (304, 320)])
def test_greedy_texts_are_the_verifiers_whatever_columns_pad_the_vocabularies(verifier_columns, draft_columns, cache):
    pair = two(cache, verifier_columns, draft_columns).load("cpu", "float32")
    options = {"sampling": GREEDY, "max_new_tokens": 40, "seed": 0}
    alone = decode(pair, "the cat", None, 0, **options)
    drafted = decode(pair, "the cat", make_rule("sps"), 4, **options)
    texts = [[token.id for round_ in run for token in round_.emitted] for run in (alone, drafted)]
    assert texts[0] == texts[1] and max(texts[0]) < 300
    assert pair.weights == "org/large (model hub, MIT, 00000000)" and pair.draft_weights == "float32"


def test_progress_goes_up_and_ends_with_the_pair(cache):
    said = []
    two(cache).load("cpu", "float32", lambda share, message: said.append((share, message)))
    shares = [share for share, _ in said if share is not None]
    assert shares == sorted(shares) and said[-1] == (1.0, "Two is ready")


def test_models_with_other_tokens_are_refused(cache):
    spec = two(cache)
    other = put(cache, "other", tiny.model("qwen2", 5), tiny.tokenizer(vocab_size=280))
    with pytest.raises(CactusError, match="token"):
        replace(spec, drafter=HubDraft(other)).load("cpu", "float32")


def test_what_the_chat_template_is_told(cache):
    asking = tiny.tokenizer(tiny.TEMPLATE + ASKS)
    verifier = put(cache, "large", tiny.model("qwen2"), asking)
    draft = put(cache, "small", tiny.model("qwen2", 5), tiny.tokenizer())
    plain = PairSpec("two", "Two", verifier, HubDraft(draft))
    quiet = replace(plain, template={"enable_thinking": False})
    ids = [made.load("cpu", "float32").codec.encode_prompt("the cat") for made in (plain, quiet)]
    told = asking("<quiet>", add_special_tokens=False)["input_ids"]
    assert ids[1] == ids[0] + told


def test_a_word_switches_what_the_template_is_told_and_the_last_one_counts():
    asking = tiny.tokenizer(tiny.TEMPLATE + ASKS)
    switches = find_pair("qwen3-0.6b-8b").switches
    codec = HFCodec(asking, tiny.model("qwen3"), {"enable_thinking": False}, switches)

    def quiet(*contents: str, system: str = "") -> bool:
        roles = ("user", "assistant")
        messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(contents)]
        return asking.decode(codec.encode_prompt(messages, system)).endswith("<quiet>")

    assert quiet("the cat") and not quiet("the cat /think")
    assert not quiet("the cat", system="/think") and quiet("the cat /no_think", system="/think")
    assert quiet("sat /think", "on", "the mat /no_think") and not quiet("sat /think", "on", "the mat")
    assert quiet("sat", "/think", "the mat")  # its own words are no wish
    assert quiet("a/think") and quiet("/thinking")


def test_every_qwen3_pair_answers_at_once_and_r1_thinks():
    for name, listed in PAIRS.items():
        of_qwen3 = name.startswith("qwen3-")
        assert (listed.template == {"enable_thinking": False}) == of_qwen3 == bool(listed.switches), name


def test_one_model_missing_is_named(cache):
    spec = two(cache)
    (cache / "models--org--small" / "refs" / "main").unlink()
    with pytest.raises(UnavailableError, match="org/small cannot be had: switched off"):
        spec.load("cpu", "float32")


def placed(monkeypatch, name: str, machine: Machine, device: str = "auto", dtype: str = "auto"):
    monkeypatch.setattr(spec, "look", lambda device: machine)
    placement = find_pair(name)._placement(device, dtype)
    return placement.dtype, placement.device_map


def test_where_a_pair_goes_on_which_machine(monkeypatch):
    laptop = Machine(memory=6 * GB, number_bytes=4)
    card = Accelerator("NVIDIA A", 23 * GB, 24 * GB)
    assert placed(monkeypatch, "smollm2-135m", laptop) == ("auto", None)
    assert placed(monkeypatch, "qwen2.5-0.5b-1.5b", laptop) == ("bfloat16", None)
    assert placed(monkeypatch, "qwen3-0.6b-8b", Machine(30 * GB, (card,))) == ("auto", None)
    assert placed(monkeypatch, "qwen3-0.6b-14b", Machine(30 * GB, (card,))) == ("auto", "auto")
    assert placed(monkeypatch, "qwen3-0.6b-14b", Machine(9 * GB, (card, card))) == ("auto", "auto")
    assert placed(monkeypatch, "qwen3-0.6b-14b", Machine(30 * GB, (card,)), device="cpu") == ("auto", None)
    with pytest.raises(UnavailableError, match="Qwen3 32B"):
        placed(monkeypatch, "qwen3-4b-32b", Machine(30 * GB, (card,)))


def test_a_wish_for_wide_numbers_is_refused_where_they_do_not_fit(monkeypatch):
    with pytest.raises(UnavailableError, match="too large here"):
        placed(monkeypatch, "qwen2.5-0.5b-1.5b", Machine(memory=6 * GB, number_bytes=2), dtype="float32")
