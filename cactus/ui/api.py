"""The public endpoints, for `gradio_client`, curl and MCP. The page's own events are private."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from typing import Any

import gradio as gr

from cactus.sampling import SamplingParams
from cactus.session import RunRequest
from cactus.ui.desk import Runs


class Endpoints:
    """What other programs may call."""

    def __init__(self, session: Runs) -> None:
        self.session = session

    def generate(
        self,
        prompt: str,
        pair: str = RunRequest.pair,
        method: str = RunRequest.method,
        params: dict[str, Any] | None = None,
        draft_length: int = 5,
        temperature: float = 0.7,
        top_p: float = 1.0,
        top_k: int = 0,
        max_new_tokens: int = 128,
        seed: int | None = None,
        system: str = "",
    ) -> tuple[str, dict[str, Any]]:
        """Generate text by constrained acceptance speculative sampling.

        Returns the text and the whole trace: every token with its verdict, every round with its times.
        `method` is an acceptance rule (cactus, sps, tas, …) or "ar" for the verifier alone; `params` are the
        rule's own, such as {"delta": 1.0}.
        """
        try:
            request = RunRequest(
                pair=pair, method=method, params=params or {}, num_draft_tokens=draft_length,
                sampling=SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k),
                max_new_tokens=max_new_tokens, seed=seed, prompt=prompt, system=system,
            )  # fmt: skip
            with self.session.start(request, stop=threading.Event()) as live:
                for _ in live:
                    pass
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error
        trace = live.trace
        return trace.text, json.loads(trace.to_json())

    def pairs(self) -> list[dict[str, Any]]:
        """The model pairs: name, label, size, where each runs, whether it is loaded, what it needs."""
        return [asdict(state) for state in self.session.states()]
