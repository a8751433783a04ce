"""The public endpoints, for `gradio_client`, curl and MCP. The page's own events are private."""

# Annotations stay objects here: Gradio reads them for the API's documentation.
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import gradio as gr

from cactus import compare
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.settings import DEFAULT_DRAFT_TOKENS, DraftLength
from cactus.ui.desk import Runs

PROGRESS_SECONDS = 1.0


class Endpoints:
    """What other programs may call."""

    def __init__(self, session: Runs) -> None:
        self.session = session

    def generate(  # type: ignore[misc]  # what is declared is each yield, as Gradio documents it
        self,
        prompt: str,
        pair: str = RunRequest.pair,
        method: str = RunRequest.method,
        params: dict[str, Any] | None = None,
        draft_length: DraftLength = DEFAULT_DRAFT_TOKENS,
        temperature: float = 0.7,
        top_p: float = 1.0,
        top_k: int = 0,
        max_new_tokens: int = 128,
        seed: int | None = None,
        system: str = "",
    ) -> tuple[str, dict[str, Any]]:
        """Generate text by constrained acceptance speculative sampling.

        Gives the text and the whole trace: every token with its verdict, every round with its times. Until then, an
        empty text and how far it is, once a second; so a caller that goes away frees the model.
        `method` is an acceptance rule (cactus, sps, tas, …) or "ar" for the verifier alone; `params` are the
        rule's own, such as {"delta": 1.0}. `draft_length`: a number, or "auto" for as many as pay.
        """
        try:
            request = RunRequest(
                pair=pair, method=method, params=params or {}, num_draft_tokens=draft_length,
                sampling=SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k),
                max_new_tokens=max_new_tokens, seed=seed, prompt=prompt, system=system,
            )  # fmt: skip
            yield from self._run(request)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error

    def _run(self, request: RunRequest) -> Iterator[tuple[str, dict[str, Any]]]:
        stop = threading.Event()
        due = 0.0
        try:
            with self.session.start(request, stop=stop) as live:
                for round_ in live:
                    if time.monotonic() >= due:
                        yield "", {"round": round_.index + 1}
                        due = time.monotonic() + PROGRESS_SECONDS
        finally:
            stop.set()
        yield live.trace.text, json.loads(live.trace.to_json())

    def compare(  # type: ignore[misc]  # as above
        self,
        prompt: str,
        lanes: list[str] | None = None,
        pair: str = RunRequest.pair,
        draft_length: DraftLength = DEFAULT_DRAFT_TOKENS,
        temperature: float = 0.7,
        top_p: float = 1.0,
        top_k: int = 0,
        max_new_tokens: int = 128,
        seed: int | None = None,
        system: str = "",
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Run one prompt and seed under several methods, the verifier alone first, one after another.

        Gives a table, one row a lane, and all traces. Until then, an empty table and which lane is running, once a
        second. `lanes`: up to three such as "sps", "cactus:delta=1" or "cactus_exact:delta=0.5:divergence=js:m=8".
        """
        try:
            request = RunRequest(
                pair=pair, num_draft_tokens=draft_length, max_new_tokens=max_new_tokens, seed=seed, prompt=prompt,
                system=system, sampling=SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k),
            )  # fmt: skip
            yield from self._race(compare.lane_requests(request, lanes or compare.USUAL))
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error

    def _race(self, requests: list[RunRequest]) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
        stop = threading.Event()
        due, traces = 0.0, {}
        try:
            for lane, trace in compare.race(self.session, requests, stop):
                traces[lane] = trace
                if time.monotonic() >= due:
                    yield [], {"lane": lane + 1, "round": len(trace.rounds)}
                    due = time.monotonic() + PROGRESS_SECONDS
        finally:
            stop.set()
        lanes = tuple(traces.values())
        whole = compare.Comparison(lanes=lanes)
        yield [result.as_dict() for result in compare.results(lanes)], json.loads(whole.to_json())

    def pairs(self) -> list[dict[str, Any]]:
        """The model pairs: name, label, size, where each runs, whether it is loaded, what it needs."""
        return [asdict(state) for state in self.session.states()]
