"""The page over a live vLLM server with the plugin and a random pair, in Chromium. Skips without vLLM's environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import app_process, free_port
from pages import DONE
from vllm_python import ROOT, vllm_environ, vllm_python

from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.server import Server, ServerSession
from cactus.trace import Trace

START_SECONDS = 240
DRAFTED = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server on one core."""
    python = vllm_python()
    folder = tmp_path_factory.mktemp("pair")
    sys.path.insert(0, str(ROOT / "tests" / "in_vllm"))
    from tiny_pair import CONTEXT, write_pair

    verifier, draft = write_pair(folder)
    port = free_port()
    speculative = (
        f'{{"method": "draft_model", "model": "{draft}", "num_speculative_tokens": {DRAFTED}, '
        '"draft_sample_method": "probabilistic"}'
    )
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(verifier), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", str(CONTEXT),
        "--enforce-eager", "--max-num-seqs", "16", "--speculative-config", speculative,
        "--per-request-spec-decode-metrics", "detailed",
    ]  # fmt: skip
    log = folder / "server.log"
    with log.open("w") as told:
        process = subprocess.Popen(command, env=vllm_environ(), stdout=told, stderr=told, start_new_session=True)
    try:
        _wait(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(process)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            httpx.get(address + "/health", timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.5)
    pytest.fail(f"the server did not start:\n{log.read_text()[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and the processes it made."""
    for how, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, how)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


@pytest.fixture(scope="module")
def session(server: str) -> ServerSession:
    return ServerSession(Server(server))


def run(session: ServerSession, temperature: float = 1.0, **changes: Any) -> Trace:
    fields: dict[str, Any] = {
        "pair": session.states()[0].name, "prompt": "a cactus", "max_new_tokens": 120, "seed": 1,
        "sampling": SamplingParams(temperature=temperature),
    }  # fmt: skip
    with session.start(RunRequest(**fields | changes)) as live:
        list(live)
    assert live.trace.check() == []
    return live.trace


def rate(trace: Trace) -> float:
    value = trace.metrics().acceptance_rate
    assert value is not None
    return value


def test_the_page_shows_a_run_of_the_server(server: str, browser: Any) -> None:
    with app_process("--engine", "vllm", "--url", server) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(60_000)
        page.goto(address + "/?max_new_tokens=32&seed=1")
        page.wait_for_selector("#pair-note .note")
        page.wait_for_function("document.querySelector('#pair-note').innerText.includes('fixed by the server')")
        assert page.input_value("#pair input") == "tiny (vLLM server)"
        page.fill("#prompt textarea", "a cactus")
        page.click("#run")
        page.wait_for_function(DONE)
        ending = page.inner_text("#tokens .stream-end")
        assert f"of {DRAFTED}." in ending and "tokens in" in ending and "rounds" in ending
        assert page.locator("#tokens .tok[data-status=accepted]").count() > 0
        assert "the verifier alone was not measured" in " ".join(page.inner_text("#tiles").split())
        assert "not known of this run" in " ".join(page.inner_text("#tiles").split())
        page.close()


def test_a_budget_is_its_own_requests_among_others(session: ServerSession) -> None:
    budgets = [0.0, 10.0] * 4
    with ThreadPoolExecutor(len(budgets)) as pool:
        traces = list(pool.map(lambda delta: run(session, params={"delta": delta}), budgets))
    strict, lenient = [rate(one) for one in traces[::2]], [rate(one) for one in traces[1::2]]
    assert max(strict) < 0.5 < min(lenient)


def test_greedy_requests_are_untouched(session: ServerSession) -> None:
    plain, lenient = (run(session, temperature=0.0, params={"delta": delta}) for delta in (0.0, 10.0))
    assert [token.id for token in plain.tokens] == [token.id for token in lenient.tokens]
    assert [round_.accepted_length for round_ in plain.rounds] == [round_.accepted_length for round_ in lenient.rounds]


def test_every_served_rule_runs(session: ServerSession) -> None:
    for method in ("sps", "cactus_exact", "cactus_adaptive", "interp", "tas", "mentored", "topk", "lenience"):
        assert run(session, method=method, max_new_tokens=12).method == method


def test_a_bad_argument_is_a_bad_request(server: str) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "vllm_xargs": {"cactus_delta": -1}}
    answer = httpx.post(server + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert "delta must be a number between 0 and 10, got -1" in answer.json()["error"]["message"]
