"""A crowd of real clients on a real server over the pair `pocket`.

A small crowd unless told otherwise. The whole class, with its figures:
`CACTUS_CROWD=30 CACTUS_CROWD_RUNS=500 pytest -s tests/test_crowd.py`.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from crowd import Server, Tab, call_values, cancel, comes_and_goes, page_values, server
from gradio_client import Client
from gradio_client.utils import Status
from test_sharing import numbers

from cactus.limits import MAX_SESSIONS
from cactus.trace import Trace
from cactus.ui.readers import COMES_SECONDS

CROWD = int(os.environ.get("CACTUS_CROWD", "8"))
RUNS = int(os.environ.get("CACTUS_CROWD_RUNS", "12"))
AGAIN = 10 if CROWD > 12 else 3  # of them are asked for once more, alone
MAX_RUNS = 4 if CROWD > 12 else 2
METHODS: list[dict[str, Any]] = [
    {"method": "cactus", "params": {"delta": 1.0}},
    {"method": "sps", "draft_length": "auto"},
    {"method": "ar"},
    {"method": "block", "draft_length": 8},
]
ANIMALS = ("frog", "cat", "owl", "fox", "bee", "hen")


@pytest.fixture(scope="module")
def place() -> Iterator[Server]:
    with server(MAX_RUNS) as running:
        yield running


@dataclass
class Served:
    """What one client got, and what it was told meanwhile."""

    trace: Trace
    text: str
    seconds: float
    ranks: list[int]


def asked(number: int) -> dict[str, Any]:
    """No two clients ask for the same; some share the seed, some the prompt."""
    prompt = f"Tell a story about a {ANIMALS[number % len(ANIMALS)]}."
    return {
        "prompt": prompt, "pair": "pocket", "seed": number // 2, "max_new_tokens": 24 + number % 5,
        **METHODS[number % len(METHODS)],
    }  # fmt: skip


def ask(client: Client, number: int) -> Served:
    begin, ranks = time.monotonic(), []
    job = client.submit(**asked(number), api_name="/generate")
    while not job.done():
        status = job.status()
        if status.code == Status.IN_QUEUE and status.rank is not None:
            ranks.append(status.rank)
        time.sleep(0.05)
    text, trace = job.result()
    return Served(Trace.from_json(json.dumps(trace)), text, time.monotonic() - begin, ranks)


def test_fault_24_everyone_is_served_or_told_their_place_and_nothing_is_mixed(place):
    with ThreadPoolExecutor(CROWD) as pool:
        clients = list(pool.map(lambda _: Client(place.address, verbose=False), range(CROWD)))
        begin = time.monotonic()
        served = list(pool.map(ask, clients, range(CROWD)))
        seconds = time.monotonic() - begin
    for number, one in enumerate(served):
        wanted = asked(number)
        assert (one.trace.prompt, one.trace.seed, one.trace.method) == (
            wanted["prompt"], wanted["seed"], wanted["method"],
        )  # fmt: skip
        assert one.trace.text == one.text and one.trace.check() == []
    told = [max(one.ranks) for one in served if one.ranks]
    assert len(told) >= CROWD // 2 - MAX_RUNS and max(told) < CROWD
    assert place.seconds_until_free() < 5
    for number in random.Random(0).sample(range(CROWD), min(CROWD, AGAIN)):
        alone = ask(clients[number], number)
        assert numbers(alone.trace) == numbers(served[number].trace), f"client {number} got another text in the crowd"
    turns = statistics.median(one.trace.timings.waiting_seconds for one in served)
    times = [one.seconds for one in served]
    report(
        f"{CROWD} clients, {MAX_RUNS} at once: all served in {seconds:.1f} s; {len(told)} were told their place, up to "
        f"number {max(told) + 1}; from asking to the text median {statistics.median(times):.1f} s, longest "
        f"{max(times):.1f} s, of which {turns:.1f} s waiting for turns (median)"
    )


def test_fault_25_who_comes_and_goes_leaves_nothing_behind(place):
    """Stop, a closed tab, a lost connection, a caller that hangs up, each at a random moment."""
    tokens, together = 30, min(CROWD, 6)
    fresh = settled(place)
    # What stays is there by then: threads, buffers, and Gradio's memory of as many tabs as it remembers.
    crowd_of(place, together + min(RUNS // 2, MAX_SESSIONS), tokens, together, seed=1)
    before = settled(place)
    ways = crowd_of(place, RUNS, tokens, together, seed=2)
    freed = place.seconds_until_free()
    after = settled(place)
    what = ", ".join(f"{count} {way}" for way, count in sorted(ways.items()))
    report(
        f"{RUNS} runs ({what}): before the first tabs {fresh}, with as many as are remembered {before}, after {after}; "
        f"free {freed:.2f} s behind the last"
    )
    assert after["places"] == after["models"] == 0
    assert after["memory"] < 1.05 * before["memory"]
    assert after["threads"] <= before["threads"] + together  # a server's spare workers; one left by each run is more
    assert after["files"] <= before["files"] + together  # and connections it keeps a moment


def crowd_of(place: Server, runs: int, tokens: int, together: int, seed: int) -> Counter[str]:
    """So many visitors, a few at a time; how they went."""

    def go(number: int) -> str:
        return comes_and_goes(place, random.Random(1000 * seed + number), tokens)

    with ThreadPoolExecutor(together) as pool:
        return Counter(pool.map(go, range(runs)))


def settled(place: Server) -> dict[str, int]:
    """What is held once idle threads and closed connections are gone."""
    place.seconds_until_free()
    held = place.state(held=True)
    end = time.monotonic() + (30 if CROWD > 12 else 2)
    while time.monotonic() < end:
        time.sleep(0.5)
        now = place.state(held=True)
        held = {name: min(held[name], now[name]) for name in held}
    return held


def test_fault_23_a_visitor_who_goes_away_frees_the_model_at_once(place):
    """Measured from outside, with all that lies between."""
    seconds: dict[str, list[float]] = {}
    for way in ("stop", "close", "drop"):
        for moment in (2, 5):
            with Tab(place) as tab:
                tab.run(page_values(3, 400))
                for number, _ in enumerate(tab.messages()):
                    if number == moment:
                        break
                if way == "stop":
                    tab.stop()
                elif way == "drop":
                    tab.drop()
                else:
                    tab.__exit__()
                seconds.setdefault(way, []).append(place.seconds_until_free())
    report("free after " + ", ".join(f"{way} {max(times):.2f} s" for way, times in seconds.items()))
    assert max(max(times) for times in seconds.values()) < 2


def test_fault_23_a_call_taken_back_in_its_very_first_moment_leaves_no_place_taken(place):
    """Before an event has given anything Gradio does not know what it would have to close."""
    client = Client(place.address, verbose=False)
    for moment in range(8):
        job = client.submit("a frog", pair="pocket", max_new_tokens=400, temperature=1.5, api_name="/generate")
        cancel(job, moment / 40)
    assert place.seconds_until_free() < 2
    assert client.predict("a frog", pair="pocket", max_new_tokens=4, api_name="/generate")


def test_fault_23_a_run_that_nobody_reads_never_has_the_model(place):
    """A tab closed before its second connection is open, and a program that asks and never fetches."""
    with Tab(place) as tab:
        tab.run(page_values(3, 400))
        url = place.address + "/gradio_api/call/generate"
        number = httpx.post(url, json={"data": call_values(3, 400)}, timeout=60).json()["event_id"]
        end = time.monotonic() + 2 * COMES_SECONDS / 3
        while time.monotonic() < end:
            assert place.state() == {"places": 0, "models": 0}
    time.sleep(COMES_SECONDS)
    assert "nobody came" in httpx.get(f"{url}/{number}", timeout=60).text
    assert place.state() == {"places": 0, "models": 0}


def test_a_program_that_fetches_a_moment_later_gets_its_text(place):
    url = place.address + "/gradio_api/call/generate"
    number = httpx.post(url, json={"data": call_values(3, 4)}, timeout=60).json()["event_id"]
    time.sleep(1)
    assert "event: complete" in httpx.get(f"{url}/{number}", timeout=60).text


def test_strangers_can_neither_send_files_nor_read_any(place):
    sent = httpx.post(place.address + "/gradio_api/upload", files={"files": ("trace.json", b"{} ", "application/json")})
    assert sent.status_code == 413
    for path in ("/etc/hostname", "app.py", "../app.py", "cactus/session.py", str(Path(__file__))):
        assert httpx.get(f"{place.address}/gradio_api/file={path}").status_code in (403, 404), path
    config = httpx.get(place.address + "/config").json()
    parts = {part["props"].get("elem_id"): part["props"] for part in config["components"]}
    assert parts["load-trace"]["visible"] is False and "own-verifier" not in parts
    assert "/home/" not in json.dumps(config) and str(Path.home()) not in json.dumps(config)


def report(line: str) -> None:
    """Seen with `pytest -s`."""
    print(f"\n{line}")  # noqa: T201
