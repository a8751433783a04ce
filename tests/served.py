"""A server that plays what a vLLM server with the plugin really answered (`recorded_server.json`)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serving import Quiet, serving

RECORDED = json.loads((Path(__file__).parent / "recorded_server.json").read_text(encoding="utf-8"))
MODEL = RECORDED["models"]["data"][0]["id"]


class Played:
    """How the server behaves, and what it was asked. `answer`: which recorded answer a chat gets."""

    def __init__(self) -> None:
        self.answer: list[str] = RECORDED["chat"]
        self.plugin = self.counts = True
        self.pause = 0.0  # seconds before each event
        self.refusal: dict[str, Any] | None = None
        self.asked: list[dict[str, Any]] = []
        self.left = threading.Event()  # somebody went away in the midst of an answer
        self.url = ""

    def respond(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and answer; a list is a stream."""
        self.asked.append(body)
        if self.plugin and (body.get("vllm_xargs") or {}).get("cactus_method") == "?":
            return 400, RECORDED["refusal"]
        if self.refusal is not None and body.get("stream"):
            return 400, self.refusal
        if body.get("stream"):
            return 200, RECORDED["completion"] if "prompt" in body else self.answer
        return 200, RECORDED["probe"] if self.counts else RECORDED["probe"] | {"metrics": None}


@contextmanager
def playing(played: Played | None = None) -> Iterator[Played]:
    """A server on a free port until the block ends."""
    played = played or Played()

    class Handler(Quiet):
        def do_GET(self) -> None:
            known = {"/v1/models": RECORDED["models"], "/version": RECORDED["version"]}
            self._send(200 if self.path in known else 404, known.get(self.path, {"detail": "Not Found"}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, answer = played.respond(body)
            if isinstance(answer, list):
                self._stream(answer)
            else:
                self._send(status, answer)

        def _send(self, status: int, answer: Any) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, events: list[str]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            try:
                for event in events:
                    time.sleep(played.pause)
                    self.wfile.write(f"{event}\n\n".encode())
                    self.wfile.flush()
            except OSError:
                played.left.set()

    with serving(Handler) as played.url:
        yield played


def events(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def as_lines(events: list[dict[str, Any]]) -> list[str]:
    return [f"data: {json.dumps(event, ensure_ascii=False)}" for event in events] + ["data: [DONE]"]


def joined(lines: list[str], first: int, count: int) -> list[str]:
    """The same answer with these events as one, as a server sends them that has fallen behind."""
    every = events(lines)
    many = every[first : first + count]
    one = json.loads(json.dumps(many[-1]))
    choices = [event["choices"][0] for event in many]
    one["choices"][0]["token_ids"] = [token for choice in choices for token in choice["token_ids"]]
    one["choices"][0]["delta"]["content"] = "".join(choice["delta"]["content"] for choice in choices)
    one["choices"][0]["logprobs"]["content"] = [name for c in choices for name in c["logprobs"]["content"]]
    return as_lines([*every[:first], one, *every[first + count :]])
