"""A vLLM server over its OpenAI-compatible API: what it serves, and its answers piece by piece.

Whatever is wrong with a server is a `ServerError` that names it and says what to do. Knows nothing of pages or traces.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from cactus.errors import CactusError
from cactus.server.rounds import Counts

SILENCE = 120.0  # seconds without a word from the server
LOOK = 0.1  # seconds between two looks at a stop signal
PROBE = {"prompt": "a", "max_tokens": 3, "temperature": 1.0, "ignore_eos": True}
METRICS_FLAG = "--per-request-spec-decode-metrics detailed"


class ServerError(CactusError):
    """A server cannot be used as asked; the message names it and what is needed."""


@dataclass(frozen=True)
class Served:
    """What a server serves. num_draft_tokens: fixed when it was started, 0 where it does not speculate."""

    model: str
    context_length: int | None
    version: str
    num_draft_tokens: int


@dataclass(frozen=True)
class Piece:
    """What came at once, `at` which second. finish: why the answer ended; counts: behind the last tokens."""

    at: float
    ids: Sequence[int] = ()
    names: Sequence[str] = ()
    text: str = ""
    prompt_tokens: int | None = None
    finish: str = ""
    counts: Counts | None = None


class Server:
    """One server. `model`: which of those it serves, the first if not given. Safe to share between threads."""

    def __init__(self, url: str, model: str = "") -> None:
        self.url = url.strip().rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise ServerError(f"url is {url!r:.200}; only http://… or https://… is allowed")
        self._model = model
        waits = httpx.Timeout(SILENCE, connect=5.0, pool=None)
        self._client = httpx.Client(timeout=waits, limits=httpx.Limits(max_connections=None))

    def look(self, speculates: bool = True) -> Served:
        """What it serves. `ServerError` where it cannot be reached, or lacks the model, the plugin or its counts."""
        model = self._find_model()
        drafted = self._speculation(model["id"]) if speculates else 0
        return Served(model["id"], model.get("max_model_len"), self._version(), drafted)

    def answer(self, path: str, body: Mapping[str, Any], stop: threading.Event) -> Iterator[Piece]:
        """The pieces of an answer; none after `stop` is set. Leaving ends the work on the server too."""
        inbox: queue.SimpleQueue[Piece | Exception | None] = queue.SimpleQueue()
        gone = threading.Event()
        threading.Thread(target=self._listen, args=(path, body, inbox, gone), name="listen", daemon=True).start()
        try:
            while not stop.is_set():
                try:
                    piece = inbox.get(timeout=LOOK)
                except queue.Empty:
                    continue
                if piece is None:
                    return
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            gone.set()

    def _listen(self, path: str, body: Mapping[str, Any], inbox: Any, gone: threading.Event) -> None:
        """In a thread of its own, so that a stop is heard while the server is silent."""
        try:
            with self._client.stream("POST", self.url + path, json=dict(body)) as response:
                if response.is_error:
                    response.read()
                    raise self._refusal(response)
                for line in _lines(response):
                    if gone.is_set():
                        return
                    if line.startswith(b"data: {"):
                        inbox.put(self._piece(json.loads(line[6:]), time.perf_counter()))
        except httpx.HTTPError as error:
            inbox.put(self._unreachable(error))
        except Exception as error:
            inbox.put(error)
        finally:
            inbox.put(None)

    def _piece(self, event: Mapping[str, Any], at: float) -> Piece:
        if "error" in event:
            raise ServerError(f"{self.url} ended its answer: {event['error'].get('message', event['error'])!s:.300}")
        counted = ((event.get("metrics") or {}).get("speculative_decoding") or {}) if not event["choices"] else {}
        if not event["choices"]:
            return Piece(at, counts=_counts(counted), prompt_tokens=(event.get("usage") or {}).get("prompt_tokens"))
        choice = event["choices"][0]
        prompt = event.get("prompt_token_ids") or choice.get("prompt_token_ids")
        return Piece(
            at,
            ids=choice.get("token_ids") or (),
            names=_names(choice.get("logprobs") or {}),
            text=choice["text"] if "text" in choice else choice["delta"].get("content") or "",
            prompt_tokens=len(prompt) if prompt is not None else None,
            finish=choice.get("finish_reason") or "",
        )

    def _find_model(self) -> Mapping[str, Any]:
        models = self._asked("GET", "/v1/models").get("data") or []
        names = [model.get("id", "") for model in models]
        if not names or (self._model and self._model not in names):
            raise ServerError(f"{self.url} serves {', '.join(names) or 'no model'}, not {self._model or 'any'!r}")
        return models[names.index(self._model) if self._model else 0]

    def _version(self) -> str:
        try:
            return str(self._asked("GET", "/version").get("version", "unknown"))
        except ServerError:
            return "unknown"

    def _speculation(self, model: str) -> int:
        """Tokens it drafts a round, once it is clear that it listens to the plugin's arguments."""
        impossible = self._send(
            "POST", "/v1/completions", PROBE | {"model": model, "vllm_xargs": {"cactus_method": "?"}}
        )
        if not impossible.is_error:
            raise ServerError(
                f"{self.url} does not know the arguments of cactus: install this project there (pip install --no-deps "
                ".) and start it again; VLLM_PLUGINS, if it is set, must name cactus"
            )
        if "cactus_method" not in impossible.text:
            raise self._refusal(impossible)
        probe = PROBE | {"model": model, "vllm_xargs": {"cactus_method": "sps"}}
        counted = (self._asked("POST", "/v1/completions", probe).get("metrics") or {}).get("speculative_decoding") or {}
        if _counts(counted) is None:
            raise ServerError(
                f"{self.url} does not say how many tokens each round brought: start it with {METRICS_FLAG}"
            )
        return int(counted["num_spec_tokens"])

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        response = self._send(method, path, body)
        if response.is_error:
            raise self._refusal(response)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ServerError(f"{self.url}{path} does not answer as vLLM does")
        return answer

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            return self._client.request(method, self.url + path, json=dict(body) if body is not None else None)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx.HTTPError) -> ServerError:
        what = "has been silent for too long" if isinstance(error, httpx.ReadTimeout) else "cannot be reached"
        return ServerError(f"the server {self.url} {what} ({type(error).__name__}): start it, or give another --url")

    def _refusal(self, response: httpx.Response) -> ServerError:
        try:
            told = response.json()
            message = (told.get("error") or told)["message"]
        except (ValueError, KeyError, AttributeError, TypeError):
            message = f"HTTP {response.status_code} for {response.request.url.path}: not an answer of vLLM"
        return ServerError(f"{self.url} refused: {message!s:.400}")


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Lines as the server ends them: `iter_lines` also ends one at a line separator within a model's text."""
    rest = b""
    for block in response.iter_bytes():
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
    yield rest


def _names(logprobs: Mapping[str, Any]) -> Sequence[str]:
    """Each token as text, from a chat's or a completion's answer."""
    return [one["token"] for one in logprobs["content"]] if "content" in logprobs else logprobs.get("tokens") or ()


def _counts(counted: Mapping[str, Any]) -> Counts | None:
    accepted, drafted = counted.get("per_step_accepted"), counted.get("per_step_drafted")
    return Counts(drafted, accepted) if accepted is not None and drafted is not None else None
