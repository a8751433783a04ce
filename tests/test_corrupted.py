"""Each file of the caches, damaged in every way: the next start repairs or names it, and no weights are ever wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from supply import Supply, repository_of, supplying
from test_disk_full import Trained, chunk
from test_weights import FakeSource
from test_weights_hub import point_to
from ui_fakes import make_trace

from cactus import recorded, weights
from cactus.bench.measurement import Measurement, Store
from cactus.bench.plan import settle
from cactus.errors import CactusError, UnavailableError
from cactus.pairs import POCKET_PAIR, OwnDraft, find_pair
from cactus.sums import SUMS
from cactus.training import corpus, texts
from cactus.training.train import Checkpoints
from cactus.weights import HubWeights, ShippedWeights
from cactus.weights.given import Given


def flip(path: Path, place: int | None = None) -> None:
    """One bit of it, by default in the middle."""
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut short": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "a bit turned": flip,
    "a bit turned at the end": lambda path: flip(path, -1),
    "empty": lambda path: path.write_bytes(b""),
    "a folder in its place": directory,
    "gone": Path.unlink,
}


@pytest.fixture(params=DAMAGE)
def damage(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return DAMAGE[request.param]


def files_of(folder: Path) -> list[Path]:
    """All, links too, without what they lead to."""
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())


def each(folder: Path, work: Path) -> Iterator[Path]:
    """Every file in turn, each time of a fresh copy of the folder at `work`."""
    for file in files_of(folder):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder, work, symlinks=True)
        yield work / file.relative_to(folder)


# --- weights --------------------------------------------------------------------------------------


def test_fault_26_each_file_of_a_kept_copy_is_repaired(damage, folders, tmp_path, monkeypatch):
    source = FakeSource(folders / "verifier")
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path / "sound"))
    whole = repository_of(weights.ensure([source], "tiny"))
    assert {"manifest.json", "model.safetensors", "tokenizer.json", "config.json"} <= whole.keys()
    del whole["manifest.json"]
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path / "cache"))
    for file in each(tmp_path / "sound", tmp_path / "cache"):
        damage(file)
        folder = weights.ensure([source], "tiny")
        found = repository_of(folder)
        assert found.pop("manifest.json") and found == whole, file.name
        assert weights.origin(folder) == "a fake" and weights.kept([source], "tiny") == folder


def test_a_folder_where_the_lock_belongs_is_named(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path))
    (tmp_path / ".tiny.lock").mkdir()
    with pytest.raises(UnavailableError, match=r"cannot be kept in .*\(\.tiny\.lock\)"):
        weights.ensure([FakeSource(folders / "verifier")], "tiny")


def test_fault_26_each_bit_of_a_manifest_counts_or_changes_nothing(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path))
    source = FakeSource(folders / "verifier")
    manifest = weights.ensure([source], "tiny") / "manifest.json"
    sound = manifest.read_bytes()
    for place in range(0, len(sound), 7):
        manifest.write_bytes(sound)
        flip(manifest, place)
        if weights.kept([source], "tiny"):
            assert weights.origin(manifest.parent) == "a fake"


@pytest.fixture
def hub(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supply]:
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path / "cactus"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    use(tmp_path / "sound", monkeypatch)
    with supplying(Supply(repository=repository_of(folders / "verifier"))) as supply:
        point_to(monkeypatch, supply.url)
        yield supply


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the hub library's cache. What it has read before it would remember by the folder's name."""
    for module in (huggingface_hub.constants, huggingface_hub.file_download.constants):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})


FETCH: dict[str, Callable[[], Path]] = {
    "of the registry": lambda: HubWeights("org/model", "MIT", 1000, 8).fetch(),
    "of one's own": lambda: Given(repo_id="org/model").fetch().folder,
}


WAYS = [("of the registry", kind) for kind in DAMAGE] + [("of one's own", kind) for kind in ("a bit turned", "gone")]


@pytest.mark.parametrize(("named", "kind"), WAYS)
def test_fault_26_each_file_of_the_hub_librarys_cache_is_repaired(named, kind, hub, tmp_path, monkeypatch):
    fetch, damage = FETCH[named], DAMAGE[kind]
    fetch()
    kinds = {part for path in files_of(tmp_path / "sound") for part in path.parts}
    assert {"blobs", "refs", "snapshots", "trees"} <= kinds
    for file in each(tmp_path / "sound", tmp_path / "cache"):
        use(tmp_path / "cache", monkeypatch)
        damage(file)
        assert repository_of(fetch()) == hub.repository, file
        use(tmp_path / "cache", monkeypatch)
        asked = len(hub.sent)
        assert repository_of(fetch()) == hub.repository and len(hub.sent) == asked, f"{file} is not repaired for good"


def test_fault_26_an_altered_file_of_the_hub_is_named_where_it_cannot_be_fetched_again(hub, tmp_path, monkeypatch):
    for fetch in FETCH.values():
        flip(fetch() / "model.safetensors", -1)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(UnavailableError, match=r"model\.safetensors is damaged: its checksum differs"):
            fetch()
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        assert repository_of(fetch()) == hub.repository


def test_fault_26_each_file_that_is_shipped_is_named(damage, tmp_path):
    spec, work = find_pair(POCKET_PAIR), tmp_path / "work"
    for folder, own in (
        (spec.verifier.folder, ShippedWeights("pocket", work, "MIT")),
        (spec.drafter.folder, OwnDraft(work)),
    ):
        for file in each(folder, work):
            damage(file)
            try:
                own.fetch()
                assert file.name == SUMS  # the weights are as they were
            except UnavailableError as error:
                found = str(error)
                assert "part of this installation, are damaged" in found and "install again" in found
                assert any(name in found for name in (file.name, "it has no", "not complete")) or file.name == SUMS


# --- what training, benchmarks and recordings keep ------------------------------------------------


def test_a_damaged_checkpoint_is_named_whichever_bit_it_is(tmp_path):
    checkpoints = Checkpoints(tmp_path / "training.pt")
    checkpoints.save(Trained())  # type: ignore[arg-type]
    sound, wanted = checkpoints.path.read_bytes(), checkpoints.load()
    places = random.Random(0).sample(range(len(sound)), 60)
    damages = [*DAMAGE.values(), *(lambda path, place=place: flip(path, place) for place in places)]
    named = 0
    for damage in damages:
        if checkpoints.path.is_dir():
            checkpoints.path.rmdir()
        checkpoints.path.write_bytes(sound)
        damage(checkpoints.path)
        try:
            found = checkpoints.load()
        except CactusError as error:
            assert "cannot resume from" in str(error) and "training.pt" in str(error) and "remove it" in str(error)
            named += 1
        else:  # between the archive's members, and in what it says of its own making, bits mean nothing
            assert torch.equal(found["weights"].pop("a"), wanted["weights"]["a"])
            assert found == wanted | {"weights": {}}
    assert named > len(damages) * 0.9


def test_damaged_texts_of_a_training_are_noticed(damage, tmp_path):
    answers, written = tmp_path / "chunk-00000.safetensors", tmp_path / "texts-00000.json"
    corpus.save_chunk(answers, chunk())
    texts._write(written, [texts.Text("p", "t" * 99, 3)])
    damage(answers)
    assert not corpus.is_whole(answers) and corpus.whole_chunks(tmp_path) == []
    damage(written)
    if written.is_file() and len(written.read_bytes()) > 100:  # a letter of a text is no more than another letter
        return
    with pytest.raises(CactusError, match=r"texts-00000\.json") if written.exists() else pytest.raises(CactusError):
        texts._read(written)


def test_a_damaged_benchmark_is_named(damage, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps({"pair": "pocket"}))
    store = Store(tmp_path / "measurements.jsonl")
    for repeat in range(3):
        store.append(Measurement("a", "b", "qa", repeat, 0))
    damage(tmp_path / "plan.json")
    with pytest.raises(CactusError, match=r"plan\.json|holds a benchmark"):
        settle(plan(), tmp_path, resume=True)
    damage(tmp_path / "measurements.jsonl")
    try:
        assert all(isinstance(item, Measurement) for item in store.read())
    except CactusError as error:
        assert "measurements.jsonl" in str(error)


def plan():
    from cactus.bench.plan import Plan

    return Plan("pocket", ("ar",), (2,), (), "", 1, 8, 0.0, 0, "cpu", "float32", "", {})


def test_a_damaged_recording_is_named(damage, tmp_path):
    trace = make_trace(3)
    recorded.write(
        tmp_path / "sound", [(recorded.RecordedRun("1.json.gz", "t", "p", "s", "s", 2, 0, 3), trace)], "record"
    )
    for file in each(tmp_path / "sound", tmp_path / "runs"):
        damage(file)
        try:
            assert recorded.read("1.json.gz", tmp_path / "runs") == recorded.compact(trace)
        except CactusError as error:
            assert "1.json.gz" in str(error) or "index" in str(error)
