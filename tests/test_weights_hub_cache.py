"""Models in the hub library's cache: what is there is used as it is, the rest is downloaded, checked and named."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest
from test_weights_hub import COMMIT, FILES, Hub, endpoint, point_to  # noqa: F401  (endpoint is a fixture)

from cactus.errors import UnavailableError
from cactus.weights import HubWeights, hub_cache

WEIGHTS = HubWeights("org/model", "MIT", parameters=1_000, cache_numbers=8)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library binds the folder's name when it is imported, as a default of a function too."""
    folder = tmp_path / "hub"
    monkeypatch.setenv("CACTUS_CACHE", str(tmp_path / "cactus"))
    for module in (huggingface_hub.constants, huggingface_hub.file_download.constants):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(folder))
    yield folder


def put(cache: Path, files: dict[str, bytes]) -> Path:
    """A snapshot as another program may have left it."""
    repository = cache / "models--org--model"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


WHOLE = {name: FILES[name] for name in ("config.json", "tokenizer.json", "model.safetensors")}


def test_what_another_program_has_downloaded_is_used_without_a_network(cache, monkeypatch):
    folder = put(cache, WHOLE)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert WEIGHTS.is_kept and WEIGHTS.fetch() == folder
    assert WEIGHTS.origin(folder) == f"org/model (model hub, MIT, {COMMIT[:8]})"


def test_what_is_missing_is_downloaded_once_into_the_shared_cache(endpoint, cache):  # noqa: F811
    said = []
    assert not WEIGHTS.is_kept
    folder = WEIGHTS.fetch(lambda share, message: said.append(message))
    assert folder.is_relative_to(cache) and WEIGHTS.is_kept
    assert sorted(path.name for path in folder.iterdir()) == sorted(WHOLE)
    assert said[0] == "looking for org/model on the model hub"
    served = len(Hub.served)
    assert WEIGHTS.fetch() == folder and len(Hub.served) == served


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "model-00002-of-00002.safetensors"])
def test_half_a_model_is_not_taken_for_a_whole_one(missing, cache):
    files = dict(WHOLE)
    if missing.startswith("model-"):
        first = "model-00001-of-00002.safetensors"
        files[first] = files.pop("model.safetensors")
        files["model.safetensors.index.json"] = f'{{"weight_map": {{"a": "{first}", "b": "{missing}"}}}}'.encode()
    files.pop(missing, None)
    put(cache, files)
    assert not WEIGHTS.is_kept


def test_a_cut_off_file_is_named(cache):
    put(cache, {**WHOLE, "model.safetensors": b"\xff\x00\x00\x00\x00\x00\x00\x00{"})
    words = r"org/model cannot be had: model\.safetensors is damaged: .*, and it cannot be fetched again: not reachable"
    with pytest.raises(UnavailableError, match=words):
        WEIGHTS.fetch()


def test_verify_compares_with_the_hubs_checksum(cache):
    folder = put(cache, WHOLE)
    data = WHOLE["model.safetensors"]
    blobs = cache / "models--org--model" / "blobs"
    blobs.mkdir()
    for name, sound in ((hashlib.sha256(data).hexdigest(), True), ("0" * 64, False)):
        (blobs / name).write_bytes(data)
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors").symlink_to(blobs / name)
        if sound:
            WEIGHTS.fetch(verify=True)
        else:
            with pytest.raises(
                UnavailableError, match=r"model\.safetensors is damaged: its checksum differs, and it cannot"
            ):
                WEIGHTS.fetch(verify=True)


@pytest.mark.parametrize(("status", "reason"), [(403, "approved accounts"), (404, "no such repository")])
def test_a_refusal_is_named_and_for_a_gated_model_what_to_do(status, reason, endpoint, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Hub, "status", status)
    with pytest.raises(UnavailableError, match=f"org/model cannot be had: .*{reason}"):
        WEIGHTS.fetch()
    with pytest.raises(
        UnavailableError, match="accept its licence at https://huggingface.co/org/model, then set HF_TOKEN"
    ):
        replace(WEIGHTS, gated=True).fetch()


def test_offline_is_said_at_once(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnavailableError, match="switched off"):
        WEIGHTS.fetch()


def test_a_disk_that_is_too_small_is_named_before_the_download(endpoint, monkeypatch):  # noqa: F811
    monkeypatch.setattr(hub_cache.hub, "wanted_bytes", lambda info, patterns: 10**18)
    with pytest.raises(UnavailableError, match="cannot be kept in .*1,000,000,000,000 MB needed"):
        WEIGHTS.fetch()
    assert Hub.served == []


def test_sizes_are_those_of_two_bytes_a_number():
    assert (WEIGHTS.size_bytes, WEIGHTS.download_bytes) == (2_000, 2_000)
    assert replace(WEIGHTS, stored=1_500).download_bytes == 3_000
