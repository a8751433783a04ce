"""Fetching from the model hub: a small server in this process plays the hub, reachable or not."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import huggingface_hub.constants
import pytest

from cactus import weights
from cactus.weights import hub
from cactus.weights.source import SourceError, silent

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": 1}',
    "model.safetensors": b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
    "pytorch_model.bin": b"pickled",
    "modeling_evil.py": b"raise SystemExit",
    "onnx/config.json": b"{}",
}
ERROR_CODES = {403: "GatedRepo", 404: "RepoNotFound", 410: "RevisionNotFound"}
REFUSALS = {403: "approved accounts", 404: "no such repository", 410: "no such revision", 500: "not reachable"}


class Hub(BaseHTTPRequestHandler):
    """The few routes that a download of public files uses."""

    status = 200
    served: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = self.path.split("?")[0]
        if self.status != 200:
            self._send(self.status, b"{}", with_body, {"X-Error-Code": ERROR_CODES.get(self.status, "")})
        elif path.startswith("/api/models/org/model/tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in FILES.items()
            ]
            self._send(200, json.dumps(entries).encode(), with_body, {})
        elif path.startswith("/api/models/org/model"):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            info = {"id": "org/model", "sha": COMMIT, "siblings": siblings}
            self._send(200, json.dumps(info).encode(), with_body, {})
        elif not path.startswith("/org/"):
            self._send(404, b"{}", with_body, {})
        else:
            name = path.removeprefix(f"/org/model/resolve/{COMMIT}/")
            self.served.append(name)
            self._send(200, FILES[name], with_body, {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT})

    def _send(self, status: int, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setattr(Hub, "served", [])
    monkeypatch.setattr(Hub, "status", 200)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    point_to(monkeypatch, address)
    yield address
    server.shutdown()
    server.server_close()


def point_to(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    monkeypatch.setattr(
        huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


SOURCE = weights.HubSource(repo_id="org/model", licence="MIT")


def test_takes_safetensors_json_and_tokenizer_only(endpoint: str, tmp_path: Path) -> None:
    messages: list[str] = []
    folder = SOURCE.fetch(tmp_path, lambda share, message: messages.append(message))
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    assert set(Hub.served) == set(names)
    assert (folder / "tokenizer.json").read_bytes() == FILES["tokenizer.json"]
    assert messages[0] == "looking for org/model on the model hub"


@pytest.mark.parametrize(("status", "message"), REFUSALS.items())
def test_refusals_are_named(status: int, message: str, endpoint: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Hub, "status", status)
    with pytest.raises(SourceError, match=message):
        SOURCE.fetch(tmp_path, silent)


def test_offline_is_not_even_tried(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE"):
        SOURCE.fetch(tmp_path, silent)
    assert Hub.served == []


def test_a_closed_port_falls_through_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    point_to(monkeypatch, address)
    start = time.monotonic()
    with pytest.raises(SourceError, match="not reachable"):
        SOURCE.fetch(tmp_path, silent)
    assert time.monotonic() - start < 5


def test_a_silent_hub_falls_through_within_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        point_to(monkeypatch, f"http://127.0.0.1:{deaf.getsockname()[1]}")
        monkeypatch.setattr(hub, "REACH_SECONDS", 1.0)
        start = time.monotonic()
        with pytest.raises(SourceError, match="not reachable"):
            SOURCE.fetch(tmp_path, silent)
        assert time.monotonic() - start < 3
