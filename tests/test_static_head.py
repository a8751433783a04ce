"""The feature head on static caches: the tokens, numbers and turns of a conversation are those of growing caches."""

from __future__ import annotations

import copy
import random
from itertools import zip_longest

import pytest
import tiny
import torch
from tape import TapeRecorder

from cactus import SamplingParams, Trace, decode, load_pair, make_rule
from cactus.cli import main
from cactus.drafters import FeatureDrafter
from cactus.models import feature, static, static_head
from cactus.models.feature import HFFeatureHead
from cactus.models.pools import CHUNK, SlotPool
from cactus.models.slots import WIDEST
from cactus.models.static_head import HeadPool, StaticHead
from cactus.pairs import FeatureDraft, Pair, pair_from_models
from cactus.prefix import Prefix

TOKEN_IDS = torch.arange(0, 300, 2)
GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 9, 30, 41, 7]


@pytest.fixture(params=[None, TapeRecorder], ids=["launched", "replayed"])
def recorder(request, monkeypatch):
    """Whether passes are graphs, for the models that pairs make too."""
    monkeypatch.setattr(static, "recorder_for", lambda device: request.param)
    monkeypatch.setattr(static_head, "recorder_for", lambda device: request.param)
    monkeypatch.setattr(SlotPool, "prepare", lambda pool, widths: None)  # made when they are needed
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    head = feature.build(tiny.model(), TOKEN_IDS)
    with torch.no_grad():
        head.join.weight.add_(0.1 * torch.randn(head.join.weight.shape, generator=torch.Generator().manual_seed(0)))
    folder = tmp_path_factory.mktemp("head")
    feature.save(folder, head, TOKEN_IDS)
    return folder


def pair(folder, on_static: bool, **changes) -> Pair:
    verifier = tiny.model(**changes)
    codec = pair_from_models(verifier, tiny.tokenizer()).codec
    drafting = FeatureDraft(folder).build(verifier, codec, on_static)
    return Pair("feature", verifier, codec, drafting.new, "", drafting.weights, on_static, drafting.caches)


def text(length: int, seed: int = 3) -> list[int]:
    return torch.randint(3, 300, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def ids(rounds) -> list[int]:
    return [token.id for round_ in rounds if round_ for token in round_.tokens]


def run(pair, prompt=PROMPT, method="sps", sampling=None, count=4, length=30, **options):
    return decode(pair, prompt, make_rule(method), count, sampling or SamplingParams(), length, 5, **options)


def test_estimates_after_random_rewinds_are_those_of_a_growing_cache(folder, recorder):
    head, _ = feature.load(folder, tiny.model())
    ours, theirs = HeadPool(head, 512, recorder).new(), HFFeatureHead(head, 512)
    choice, generator = random.Random(1), torch.Generator().manual_seed(1)
    for _ in range(24):
        width = choice.choice([1, 1, 2, 5, WIDEST, WIDEST + 3])
        features = torch.randn(width, 32, generator=generator)
        found, wanted = (model.feed(text(width), features) for model in (ours, theirs))
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.hidden, wanted.hidden, atol=1e-5, rtol=1e-5)
        back = max(0, ours.length - choice.randrange(width + 1)) if ours.length < 400 else 0
        for model in (ours, theirs):
            model.rewind(back)
    assert recorder is None or ours.cache.widths == [1, 2, 5, WIDEST]


def test_long_feeds_go_through_in_chunks(folder, recorder):
    head, _ = feature.load(folder, tiny.model())
    features = torch.randn(CHUNK + 40, 32, generator=torch.Generator().manual_seed(1))
    found = HeadPool(head, 2048, recorder).new().feed(text(CHUNK + 40), features)
    wanted = HFFeatureHead(head, 2048).feed(text(CHUNK + 40), features)
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.hidden, wanted.hidden, atol=1e-4, rtol=1e-4)


def test_outputs_stay_what_they_are_when_more_is_fed(folder, recorder):
    head, _ = feature.load(folder, tiny.model())
    model = HeadPool(head, 64, recorder).new()
    first = model.feed([5, 9], torch.ones(2, 32))
    logits, hidden = first.logits.clone(), first.hidden.clone()
    model.rewind(0)
    model.feed([70, 80], torch.zeros(2, 32))
    assert torch.equal(first.logits, logits) and torch.equal(first.hidden, hidden)


@pytest.mark.parametrize("method", ["sps", "cactus"])
@pytest.mark.parametrize("sampling", [SamplingParams(), GREEDY], ids=["sampled", "greedy"])
def test_a_seed_gives_the_same_text_on_either_kind_of_cache(folder, recorder, method, sampling):
    found, wanted = (pair(folder, kind) for kind in (True, False))
    assert type(found.new_drafter().model) is StaticHead and type(wanted.new_drafter().model) is HFFeatureHead
    options = {"method": method, "sampling": sampling, "count": 3 if method == "sps" else 6}
    assert ids(run(found, **options)) == ids(run(wanted, **options))


def test_the_next_turn_reads_as_much_and_says_the_same(folder, recorder):
    told = []
    for kind in (True, False):
        mine, reuse = pair(folder, kind), Prefix()
        first = run(mine, PROMPT, reuse=reuse, baseline_steps=2)
        said = ids(first)
        second = run(mine, [*PROMPT, *first._loop.committed[5:25], *text(9)], reuse=reuse)
        edited_said = ids(second)
        third = run(mine, [*PROMPT, 77, 78, 79], reuse=reuse)  # the history was edited
        told.append((said, edited_said, ids(third), second.trace.cached_tokens, third.trace.cached_tokens))
    assert told[0] == told[1] and told[0][3] > 15 and told[0][4] > 0


def test_the_context_ends_where_it_ends_for_growing_caches(folder, recorder):
    options = {"prompt": text(20, 8), "count": 4, "length": 90}
    found = run(pair(folder, True, max_position_embeddings=40), **options)
    wanted = run(pair(folder, False, max_position_embeddings=40), **options)
    assert ids(found) == ids(wanted) and found.stop_reason == wanted.stop_reason == "context"


def test_long_prompts_are_read_in_chunks(folder, recorder, monkeypatch):
    monkeypatch.setattr("cactus.loop.PREFILL_CHUNK", 40)
    found, wanted = (run(pair(folder, kind), text(90), length=20) for kind in (True, False))
    assert ids(found) == ids(wanted)


def test_three_runs_of_one_pair_by_turns_give_the_texts_of_each_alone(folder, recorder):
    prompts = [PROMPT, text(30), text(12, 8)]
    wanted = [ids(run(pair(folder, False), prompt)) for prompt in prompts]
    mine = pair(folder, True)
    rounds = list(zip_longest(*(run(mine, prompt) for prompt in prompts)))
    assert [ids(column) for column in zip(*rounds, strict=True)] == wanted
    assert ids(run(mine, PROMPT)) == wanted[0]  # in a slot that was used before


def test_the_baseline_is_timed_on_a_copy_that_changes_nothing(folder, recorder):
    mine = pair(folder, True)
    timed, plain = run(mine, baseline_steps=3), run(mine)
    assert ids(timed) == ids(plain) and timed.trace.baseline.steps == 6


def test_the_trace_says_on_which_caches_passes_ran(folder, recorder):
    kind = "static caches" if recorder is None else "static caches and CUDA graphs"
    for mine, said in ((pair(folder, True), kind), (pair(folder, False), None)):
        done = run(mine, length=8)
        list(done)
        assert done.trace.versions.get("caches") == said
    gemma = tiny.model("gemma3")
    mixed = pair_from_models(gemma, tiny.tokenizer(), tiny.model(), static=True)
    assert mixed.caches == (
        f"verifier: growing caches (sliding windows cannot be rewound by position); drafter: {kind}"
    )


def test_a_drafter_is_what_the_source_makes(folder):
    drafter = pair(folder, True).new_drafter()
    assert isinstance(drafter, FeatureDrafter) and drafter.wants_hidden and drafter.context_length == 512


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["sps", "cactus"])
def test_a_pair_on_a_cuda_device_says_what_the_cpu_says(folder, method):
    """Greedy, float32: by graphs there, launched here."""
    verifier = copy.deepcopy(tiny.model()).to("cuda")
    codec = pair_from_models(verifier, tiny.tokenizer()).codec
    drafting = FeatureDraft(folder).build(verifier, codec, True)
    there = Pair("feature", verifier, codec, drafting.new, "", drafting.weights, True, drafting.caches)
    options = {"method": method, "sampling": GREEDY}
    assert ids(run(there, **options)) == ids(run(pair(folder, False), **options))
    assert there.caches == "static caches and CUDA graphs"


def test_the_shipped_pair_says_the_same_on_either_kind_of_cache_and_the_command_line_names_it(tmp_path, capsys):
    found, wanted = (load_pair("pocket", device="cpu", dtype="float32", static=kind) for kind in (True, False))
    texts = [ids(decode(mine, "the dog", make_rule("cactus", delta=1.0), 4, GREEDY, 40, 0)) for mine in (found, wanted)]
    assert texts[0] == texts[1] and (found.caches, wanted.caches) == ("static caches", "")
    flags = ["--pair", "pocket", "--static", "--device", "cpu", "--max-new-tokens", "8", "--json"]
    assert main(["generate", *flags, str(tmp_path / "run.json"), "the dog"]) == 0
    assert Trace.from_json((tmp_path / "run.json").read_text("utf-8")).versions["caches"] == "static caches"
    assert " · static caches · seed" in capsys.readouterr().err
