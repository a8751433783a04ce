"""Models as people name them: what a name means, what is found wrong at once, and what the hub's cache spares."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.file_download
import pytest
import test_weights_hub as hub_server
from test_weights_hub import COMMIT, Hub, endpoint, point_to  # noqa: F401  (endpoint is a fixture)
from test_weights_hub_cache import cache, put  # noqa: F401  (cache is a fixture, used by all)

from cactus.errors import CactusError, UnavailableError
from cactus.places import place_name, without_folders
from cactus.weights.given import Files, Given, parse_model

WHOLE = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"\x02\x00\x00\x00\x00\x00\x00\x00{}"}
PICKLED = {"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b"pickled"}
PACKED = {"a.gguf": b"GGUF", "b.gguf": b"GGUF", "README.md": b""}


def folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def test_folders_files_and_ids_are_told_apart(tmp_path, monkeypatch):
    place = folder(tmp_path / "qwen", WHOLE | {"a.gguf": b"GGUF\x03"})
    assert parse_model(place) == Given(folder=str(place)) and parse_model(place).name == "qwen"
    assert parse_model(place / "a.gguf") == Given(folder=str(place), gguf="a.gguf")
    assert parse_model(f"  {place}/a.gguf ").name == "a.gguf"
    assert parse_model("Qwen/Qwen3-8B") == Given(repo_id="Qwen/Qwen3-8B")
    assert parse_model("gpt2").name == "gpt2"
    named = parse_model("org/model:q4.gguf")
    assert named == Given(repo_id="org/model", gguf="q4.gguf") and named.name == "org/model:q4.gguf"
    monkeypatch.chdir(tmp_path)
    assert parse_model("qwen").folder == str(place)  # a folder that is there is meant before an id
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_model("~/qwen").folder == str(place)


@pytest.mark.parametrize(
    "text", ["", "   ", "a b", "org/model:notes.txt", "org/model:", "org/model:sub/q.gguf", "org//model", "x" * 600,
             "org/\x00model", "-org/model", "héllo/wörld"],
)  # fmt: skip
def test_names_of_nothing_are_refused_with_what_is_needed(text):
    with pytest.raises(CactusError, match="hub id such as org/model, a folder"):
        parse_model(text)


@pytest.mark.parametrize("text", ["/no/such/place", "./nowhere", "~/nothing-here", "a/b/c", "nope.gguf", "C:\\m.gguf"])
def test_paths_to_nothing_are_no_hub_ids(text):
    with pytest.raises(UnavailableError, match="there is no file") as caught:
        parse_model(text)
    assert "/no/such" not in str(caught.value)


def test_of_single_files_only_gguf_is_read(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04not it")
    with pytest.raises(UnavailableError, match=r"^model\.gguf is not a GGUF file") as caught:
        parse_model(path)
    assert str(tmp_path) not in str(caught.value)


SHARDED = {"model.safetensors.index.json": json.dumps({"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})}
WRONG = {
    "no config": ({"model.safetensors": b""}, "it has no config.json"),
    "empty": ({}, "it has no config.json"),
    "pickled": (PICKLED, r"it has no safetensors \(pytorch_model\.bin is not read: it can carry code\)"),
    "no weights": ({"config.json": b"{}"}, "it has no safetensors; convert it"),
    "packed": (PACKED, "it holds GGUF files; name one of them: a.gguf, b.gguf"),
    "adapter": ({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, "it is an adapter"),
    "half": ({"config.json": b"{}", "x.safetensors": b""} | {n: t.encode() for n, t in SHARDED.items()},
             r"y\.safetensors is missing; download it again"),
    "bad index": (WHOLE | {"model.safetensors.index.json": b"{"},
                  r"model\.safetensors\.index\.json, whole, is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_folder_that_is_no_model_is_named_without_where_it_lies(case, tmp_path):
    files, reason = WRONG[case]
    model = parse_model(folder(tmp_path / "mine", files))
    for look in (model.look, model.fetch):
        with pytest.raises(UnavailableError, match=f"^mine cannot be loaded: {reason}") as caught:
            look()
        assert str(tmp_path) not in str(caught.value)


def test_a_whole_folder_is_used_where_it_is(tmp_path):
    place = folder(tmp_path / "mine", WHOLE)
    model = parse_model(place)
    assert model.look() == model.fetch() == model.kept() == Files(place)
    assert model.size_bytes == len(WHOLE["model.safetensors"])


def serve(monkeypatch, files: dict[str, bytes]) -> None:
    monkeypatch.setattr(hub_server, "FILES", files)


def test_a_hub_model_is_looked_at_before_its_weights_are_downloaded(endpoint, monkeypatch):  # noqa: F811
    serve(monkeypatch, WHOLE)
    model, said = parse_model("org/model"), []
    assert model.kept() is None and model.size_bytes == 0
    looked = model.look(lambda share, message: said.append(message))
    assert sorted(file.name for file in looked.folder.iterdir()) == ["config.json", "tokenizer.json"]
    assert said[0] == "looking for org/model on the model hub" and model.kept() is None
    fetched = model.fetch()
    assert (fetched.folder / "model.safetensors").is_file() and model.kept() == fetched
    served = len(Hub.served)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert model.look() == model.fetch() == fetched and len(Hub.served) == served


def test_one_gguf_file_of_a_hub_repository_is_enough(endpoint, monkeypatch):  # noqa: F811
    serve(monkeypatch, PACKED)
    files = parse_model("org/model:b.gguf").fetch()
    assert files.gguf == "b.gguf" and [file.name for file in files.folder.iterdir()] == ["b.gguf"]
    with pytest.raises(UnavailableError, match=r"there is no c\.gguf in it; it has a\.gguf, b\.gguf"):
        parse_model("org/model:c.gguf").look()


@pytest.mark.parametrize(("files", "reason"), [(PICKLED, "no safetensors"), (PACKED, "name one of them: a.gguf")])
def test_a_repository_that_is_no_model_is_refused_before_anything_is_downloaded(files, reason, endpoint, monkeypatch):  # noqa: F811
    serve(monkeypatch, files)
    with pytest.raises(UnavailableError, match=f"org/model cannot be had from the model hub: .*{reason}"):
        parse_model("org/model").look()
    assert Hub.served == []


@pytest.mark.parametrize(
    ("status", "reason"), [(403, "accept its licence"), (404, "no such repository"), (500, "not reachable")]
)
def test_refusals_of_the_hub_are_named_with_what_to_do(status, reason, endpoint, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Hub, "status", status)
    start = time.monotonic()
    with pytest.raises(UnavailableError, match=f"org/model cannot be had from the model hub: .*{reason}"):
        parse_model("org/model").look()
    assert time.monotonic() - start < 5


def test_without_a_network_a_name_fails_within_five_seconds(monkeypatch):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        point_to(monkeypatch, f"http://127.0.0.1:{deaf.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(UnavailableError, match="not reachable.*give a folder or a .gguf file"):
            parse_model("org/model").look()
        assert time.monotonic() - start < 5


def test_what_another_program_has_downloaded_is_used_offline(cache, monkeypatch):  # noqa: F811
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnavailableError, match="switched off"):
        parse_model("org/model").look()
    place = put(cache, WHOLE)
    assert parse_model("org/model").look() == Files(place)
    (place / "model.safetensors").unlink()
    with pytest.raises(UnavailableError, match="switched off"):
        parse_model("org/model").fetch()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no file /home/ann/models/qwen/model.safetensors found", "no file model.safetensors found"),
        ("`/srv/a/b`: broken", "`b`: broken"),
        ("~/models/x.gguf, C:\\Users\\ann\\y.gguf", "x.gguf, y.gguf"),
        ("see https://hf.co/org/model and org/model or 1/2", "see https://hf.co/org/model and org/model or 1/2"),
    ],
)
def test_messages_lose_their_folders_and_nothing_else(text, shown):
    assert without_folders(text) == shown


def test_places_go_by_their_last_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place_name(tmp_path) == place_name(".") == tmp_path.name
    assert place_name("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B" and place_name("/a/b") == "b"
