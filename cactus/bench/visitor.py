"""The page as it is served, and one visitor who presses Run and reads what comes, drawing nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from cactus.errors import CactusError

TIMEOUT = httpx.Timeout(600.0)
UPDATE, LAST = b'"process_generating"', b'"close_stream"'


@dataclass(frozen=True)
class Traffic:
    """What one run sent to the page: how often, and how many bytes in all."""

    updates: int
    bytes: int


class Visitor:
    """One tab of the page at this address."""

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=address, timeout=TIMEOUT)
        self._tab = secrets.token_hex(5)
        self._event = _event_of("run", self._http.get("/config").raise_for_status().json())

    def run(self, row: Sequence[Any]) -> Traffic:
        """Press Run with these values of the controls; what had come when the server closed the stream."""
        asked = {"data": list(row), "fn_index": self._event, "session_hash": self._tab}
        self._http.post("/gradio_api/queue/join", json=asked).raise_for_status()
        updates = size = 0
        with self._http.stream("GET", "/gradio_api/queue/data", params={"session_hash": self._tab}) as stream:
            for part in stream.iter_raw():
                updates += part.count(UPDATE)
                size += len(part)
                if LAST in part:
                    return Traffic(updates, size)
        raise CactusError("the page broke off in the midst of a run")

    def close(self) -> None:
        """Leave."""
        self._http.close()


@contextmanager
def visited(demo: Any) -> Iterator[Visitor]:
    """Serve the page (a `gr.Blocks`) on this machine as long as somebody visits it."""
    demo.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, ssr_mode=False, run_history=False)
    visitor = Visitor(demo.local_url)
    try:
        yield visitor
    finally:
        visitor.close()
        demo.close(verbose=False)


def _event_of(name: str, config: dict[str, Any]) -> int:
    """The number of the event that a click on the part of this name starts first."""
    parts = {part["id"] for part in config["components"] if part["props"].get("elem_id") == name}
    return next(
        event["id"] for event in config["dependencies"] if any(target[0] in parts for target in event["targets"])
    )
