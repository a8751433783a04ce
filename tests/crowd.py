"""A crowd on the real page: a server process over the pair `pocket`, and visitors who come, stop, and go away.

`python tests/crowd.py` takes the flags of `app.py`; it answers each line on its standard input by its state in JSON.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = httpx.Timeout(120.0)


def serve(flags: list[str]) -> None:
    """The page as `app.py` serves it, over the pair `pocket`; says how it stands whenever it is asked."""
    sys.path.insert(0, str(ROOT))
    import app
    from cactus.session import Session
    from cactus.ui.layout import build

    args = app.parse_args(flags)
    session = Session(dtype="float32", limits=args.limits)
    session.load("pocket")
    demo = build(session)
    demo.launch(**app.launch_options(args), prevent_thread_lock=True, quiet=True)
    for asked in sys.stdin:
        state = {"places": len(session._places), "models": len(session._models)}
        if asked.strip():
            state |= _held()
        print(json.dumps(state), flush=True)  # noqa: T201
    demo.close()


def _held() -> dict[str, int]:
    gc.collect()
    own = psutil.Process()
    return {
        "memory": own.memory_info().rss,
        "threads": own.num_threads(),
        "files": own.num_fds(),
    }


class Server:
    """The process and its address."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address
        self._lock = threading.Lock()
        config = httpx.get(address + "/config", timeout=TIMEOUT).json()
        names = {part["id"]: part["props"].get("elem_id") for part in config["components"]}
        clicks = [(target[0], item["id"]) for item in config["dependencies"] for target in item["targets"]]
        self.events = {names.get(part): number for part, number in reversed(clicks)}  # the first of each part

    def state(self, held: bool = False) -> dict[str, int]:
        """Places taken and runs that want a turn; what is held: bytes of memory, threads, open files."""
        assert self._process.stdin and self._process.stdout
        with self._lock:
            self._process.stdin.write("held\n" if held else "\n")
            self._process.stdin.flush()
            return json.loads(next(line for line in self._process.stdout if line.startswith("{")))  # Gradio speaks, too

    def seconds_until_free(self, places: int = 0, most: float = 20.0) -> float:
        """How long until no more than so many places are taken."""
        begin = time.monotonic()
        while self.state()["places"] > places:
            if time.monotonic() - begin > most:
                raise AssertionError(f"still {self.state()}")
            time.sleep(0.01)
        return time.monotonic() - begin


@contextmanager
def server(max_runs: int, *more: str) -> Iterator[Server]:
    """The process and `more` flags of `app.py`, until the block ends."""
    from browser import free_port

    port = free_port()
    flags = ["--host", "127.0.0.1", "--port", str(port), "--max-runs", str(max_runs), "--public", *more]
    command = [sys.executable, str(Path(__file__)), *flags]
    env = {key: value for key, value in os.environ.items() if not key.startswith("GRADIO_")}
    env["GRADIO_ANALYTICS_ENABLED"] = "False"
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address, process)
        yield Server(process, address)
    finally:
        process.kill()
        process.wait()


def _wait_for(address: str, process: subprocess.Popen[str], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with suppress(httpx.HTTPError):
            httpx.get(address + "/config", timeout=5)
            return
        time.sleep(0.3)
    raise AssertionError("the server did not answer")


@dataclass
class Tab:
    """A browser's tab, as far as the server can tell: a heartbeat, events that are joined, a stream of what comes."""

    server: Server
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:10])

    def __enter__(self) -> Tab:
        self._http = httpx.Client(base_url=self.server.address + "/gradio_api", timeout=TIMEOUT)
        self._heart = self._open(f"/heartbeat/{self.name}")
        self._stream: httpx.Response | None = None
        return self

    def __exit__(self, *error: object) -> None:
        """Closed or reloaded: every connection is gone."""
        self.drop()
        self._heart.close()
        self._http.close()

    def run(self, values: list[Any]) -> str:
        """Press Run; the number of the event."""
        return self._join("run", values)

    def stop(self) -> None:
        """Press Stop."""
        self._join("stop", [])

    def drop(self) -> None:
        """Lose the connection that brings what is shown."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def listen(self) -> httpx.Response:
        """Open the connection that brings what is shown, as the page does right behind its first event."""
        self._stream = self._open("/queue/data", session_hash=self.name)
        return self._stream

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the server sends, until every event is over."""
        stream = self.listen()
        with suppress(httpx.StreamClosed, httpx.ReadError):
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    message = json.loads(line[5:])
                    if message["msg"] == "close_stream":
                        return
                    yield message

    def _join(self, event: str, data: list[Any]) -> str:
        body = {"data": data, "fn_index": self.server.events[event], "session_hash": self.name}
        answer = self._http.post("/queue/join", json=body)
        answer.raise_for_status()
        return answer.json()["event_id"]

    def _open(self, path: str, **params: str) -> httpx.Response:
        return self._http.send(self._http.build_request("GET", path, params=params), stream=True)


def page_values(seed: int, tokens: int) -> list[Any]:
    """What the Playground's controls hold."""
    from cactus.ui import settings

    values = settings.defaults() | {"pair": "pocket", "prompt": "a frog", "seed": seed, "max_new_tokens": tokens}
    return [values[key] for key in settings.control_keys()]


def comes_and_goes(place: Server, chance: random.Random, tokens: int) -> str:
    """One visitor who presses Run and ends it at some moment, in some way; the way."""
    way = chance.choice([*BY_API, "waits for the end", "stops", "closes the tab", "loses the connection"])
    if way in BY_API:
        return BY_API[way](place, chance, tokens)
    after = chance.randrange(1, 12)
    with Tab(place) as tab:
        tab.run(page_values(chance.randrange(1000), tokens))
        for number, message in enumerate(tab.messages()):
            if message["msg"] == "process_completed":
                break
            if number == after and way == "stops":
                tab.stop()
            elif number == after and way == "closes the tab":
                break
            elif number == after and way == "loses the connection":
                tab.drop()
                time.sleep(0.2)
                break
    return way


def call_values(seed: int, tokens: int) -> list[Any]:
    """The parameters of the endpoint `generate`, in order."""
    from cactus.ui.api import Endpoints

    given = {"prompt": "a frog", "pair": "pocket", "seed": seed, "max_new_tokens": tokens}
    named = list(inspect.signature(Endpoints.generate).parameters.values())[1:]
    return [given.get(each.name, each.default) for each in named]


def _hangs_up(place: Server, chance: random.Random, tokens: int) -> str:
    """A program that calls the API without Gradio's client and breaks off."""
    url = place.address + "/gradio_api/call/generate"
    data = {"data": call_values(chance.randrange(1000), tokens)}
    number = httpx.post(url, json=data, timeout=TIMEOUT).json()["event_id"]
    after = chance.randrange(1, 12)
    with httpx.stream("GET", f"{url}/{number}", timeout=TIMEOUT) as stream:
        for count, _ in enumerate(stream.iter_lines()):
            if count >= after:
                break
    return "calls and hangs up"


def _cancels(place: Server, chance: random.Random, tokens: int) -> str:
    """A program that takes back what it asked for."""
    from gradio_client import Client

    client = Client(place.address, verbose=False)
    job = client.submit(*call_values(chance.randrange(1000), tokens), api_name="/generate")
    cancel(job, chance.random() / 2)
    client.close()
    return "calls and cancels"


def cancel(job: Any, seconds: float) -> None:
    """So long after the server knows of it: Gradio's client does not tell it before."""
    while job.communicator.event_id is None:
        time.sleep(0.005)
    time.sleep(seconds)
    job.cancel()


BY_API = {"calls and hangs up": _hangs_up, "calls and cancels": _cancels}


if __name__ == "__main__":
    serve(sys.argv[1:])
