"""The public endpoints, for `gradio_client`, curl and MCP. The page's own events are private."""

# Annotations stay objects here: Gradio reads them for the API's documentation.
import json
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

import gradio as gr

from cactus import compare
from cactus.faults import in_words
from cactus.request import RunRequest
from cactus.sampling import SamplingParams
from cactus.session import LiveRun, Progress
from cactus.settings import DEFAULT_DRAFT_TOKENS, DraftLength
from cactus.trace import Trace
from cactus.ui.desk import Runs, Starts
from cactus.ui.readers import read
from cactus.ui.waiting import Told, told

PROGRESS_SECONDS = 0.1  # a caller that has gone away is noticed with the next news

News = dict[str, Any]


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
        raw: bool = False,
    ) -> tuple[str, dict[str, Any]]:
        """Generate text by constrained acceptance speculative sampling.

        Gives the text and the whole trace: every token with its verdict, every round with its times. Until then, an
        empty text and the news: {"waiting": "3rd in line: …"} or {"round": 12}.

        Args:
            prompt: One user turn, put into the pair's chat template.
            pair: A model pair; `pairs` lists them.
            method: An acceptance rule (sps, cactus, tas, …), or "ar" for the verifier alone.
            params: The rule's own parameters, such as {"delta": 1.0}.
            draft_length: Tokens drafted a round, 1 to 16, or "auto" for as many as pay.
            temperature: 0 to 100; 0 is greedy.
            top_p: Above 0 and at most 1; 1 is off.
            top_k: 0 is off.
            max_new_tokens: The text ends there at the latest.
            seed: 0 to 4294967295; the same seed gives the same text. Without one it is a new one.
            system: A system prompt.
            raw: Go on from the prompt as it is, without the chat template.
        """
        with _in_words():
            request = RunRequest(
                pair=pair, method=method, params=params or {}, num_draft_tokens=draft_length,
                sampling=SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k),
                max_new_tokens=max_new_tokens, seed=seed, prompt=prompt, system=system, raw=raw,
            )  # fmt: skip
            yield from self._generated(request)

    def _generated(self, request: RunRequest) -> Iterator[tuple[str, News | dict[str, Any]]]:
        for news in _followed(self.session, request):
            if isinstance(news, Trace):
                yield news.text, json.loads(news.to_json())
            else:
                yield "", news

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
        raw: bool = False,
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Run one prompt and seed under several methods, the verifier alone first, one after another.

        Gives a table, one row a lane, and all traces. Until then, an empty table and the news, such as
        {"lane": 2, "round": 12}.

        Args:
            prompt: One user turn, put into the pair's chat template.
            lanes: One to three methods, such as "sps", "cactus:delta=1" or "cactus_exact:delta=0.5:divergence=js:m=8".
            pair: A model pair; `pairs` lists them.
            draft_length: Of lanes without m=…: tokens drafted a round, 1 to 16, or "auto" for as many as pay.
            temperature: 0 to 100; 0 is greedy.
            top_p: Above 0 and at most 1; 1 is off.
            top_k: 0 is off.
            max_new_tokens: Each text ends there at the latest.
            seed: 0 to 4294967295, the same for all lanes. Without one it is a new one.
            system: A system prompt.
            raw: Go on from the prompt as it is, without the chat template.
        """
        with _in_words():
            request = RunRequest(
                pair=pair, num_draft_tokens=draft_length, max_new_tokens=max_new_tokens, seed=seed, prompt=prompt,
                system=system, raw=raw,
                sampling=SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k),
            )  # fmt: skip
            yield from self._compared(compare.lane_requests(request, lanes or compare.USUAL))

    def _compared(self, requests: list[RunRequest]) -> Iterator[tuple[list[dict[str, Any]], News | dict[str, Any]]]:
        lanes: list[Trace] = []
        with self.session.seat() as seat:
            for request in requests:
                for news in _followed(seat, request):
                    if isinstance(news, Trace):
                        lanes.append(news)
                    else:
                        yield [], {"lane": len(lanes) + 1, **news}
        whole = compare.Comparison(lanes=tuple(lanes))
        yield [result.as_dict() for result in compare.results(lanes)], json.loads(whole.to_json())

    def pairs(self) -> list[dict[str, Any]]:
        """The model pairs: name, label, size, licence, where it runs, its state here, what it needs."""
        return [asdict(state) for state in self.session.states()]


def _followed(starts: Starts, request: RunRequest) -> Iterator[News | Trace]:
    """What a run waits for and how far it is, several times a second; its trace at the end."""
    stop, due = threading.Event(), 0.0

    def start(report: Progress) -> LiveRun:
        reader()
        return starts.start(request, stop=stop, progress=report)

    try:
        with read(stop) as reader, (yield from _as_news(told(start, stop, PROGRESS_SECONDS))) as live:
            for round_ in live:
                if time.monotonic() >= due:
                    yield {"round": round_.index + 1}
                    due = time.monotonic() + PROGRESS_SECONDS
    finally:
        stop.set()
    yield live.trace


def _as_news(waits: Generator[Told, None, LiveRun]) -> Generator[News, None, LiveRun]:
    with closing(waits):
        while True:
            try:
                share, message = next(waits)
            except StopIteration as end:
                return end.value
            yield {"waiting": message, "share": share}


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise gr.Error(in_words(error), print_exception=False) from error
