"""Whether the hub can be reached: asked in the background, within a limit, and not again and again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest
from test_weights_hub import point_to

from cactus.weights import reach
from cactus.weights.reach import HubProbe


class Answering(BaseHTTPRequestHandler):
    status = 200
    asked = 0

    def do_HEAD(self) -> None:
        type(self).asked += 1
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Answering]]:
    monkeypatch.setattr(Answering, "asked", 0)
    running = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    point_to(monkeypatch, f"http://127.0.0.1:{running.server_port}")
    yield Answering
    running.shutdown()
    running.server_close()


@pytest.mark.parametrize(("status", "state"), [(200, "reachable"), (404, "reachable"), (503, "unreachable")])
def test_any_answer_but_a_fault_of_its_own_is_a_sign_of_life(status, state, server, monkeypatch):
    monkeypatch.setattr(server, "status", status)
    probe = HubProbe()
    assert probe.state(wait=5.0) == state == probe.state()
    assert server.asked == 1  # remembered


def test_an_old_answer_is_asked_for_again(server, monkeypatch):
    monkeypatch.setattr(reach, "FRESH_SECONDS", 0.0)
    probe = HubProbe()
    for _ in range(3):
        probe.state(wait=5.0)
    assert server.asked == 3


def test_a_silent_hub_does_not_hold_up(monkeypatch):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        point_to(monkeypatch, f"http://127.0.0.1:{deaf.getsockname()[1]}")
        probe, start = HubProbe(), time.monotonic()
        assert probe.state() == "unknown"
        assert probe.state(wait=0.3) == "unreachable"
        assert time.monotonic() - start < 1.0


def test_a_hub_whose_port_is_closed_is_unreachable_at_once(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        point_to(monkeypatch, f"http://127.0.0.1:{free.getsockname()[1]}")
    assert HubProbe().state(wait=5.0) == "unreachable"


def test_switched_off_is_not_even_asked(server, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert HubProbe().state(wait=1.0) == "switched off" and server.asked == 0
