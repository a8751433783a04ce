"""A pair of the visitor's own models, by hub ids or by files and folders of this machine. Not part of a public page."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import gradio as gr

from cactus.faults import in_words
from cactus.pairs.added import ADDED
from cactus.pairs.given import given_pair
from cactus.ui.desk import Runs
from cactus.ui.events import PRIVATE
from cactus.ui.notes import note
from cactus.ui.pair_list import choices
from cactus.ui.parts import Parts, widget
from cactus.ui.waiting import Told, told

LOADING: dict[str, Any] = PRIVATE | {
    "concurrency_id": "own-pair", "concurrency_limit": 1, "show_progress": "hidden", "trigger_mode": "once",
}  # fmt: skip
UNROUNDED = "as stored"
HINT = "Both need the same tokenizer. Safetensors and GGUF only; code that comes with a model is not run."


def build_custom(parts: Parts) -> None:
    """Two names and a button, folded away."""
    with gr.Accordion("Models of your own", open=False, elem_id="own-pair", elem_classes="card"):
        parts.other["own-verifier"] = gr.Textbox(
            label="Verifier", info="Hub id, folder or .gguf file.", placeholder="Qwen/Qwen3-1.7B", max_lines=1,
            elem_id="own-verifier",
        )  # fmt: skip
        parts.other["own-draft"] = gr.Textbox(
            label="Draft model", info="Likewise. Empty: prompt lookup.", placeholder="Qwen/Qwen3-0.6B", max_lines=1,
            elem_id="own-draft",
        )  # fmt: skip
        with gr.Row():
            parts.other["own-quantize"] = gr.Dropdown(
                [(UNROUNDED, ""), ("8 bits", "8bit"), ("4 bits", "4bit")], value="", label="Weights",
                info="Of the verifier.", filterable=False, elem_id="own-quantize", min_width=120,
            )  # fmt: skip
            parts.other["own-spread"] = gr.Checkbox(
                label="Spread", info="Over GPUs, then memory.", elem_id="own-spread", min_width=120,
            )  # fmt: skip
        parts.other["own-load"] = gr.Button("Load", elem_id="own-load", size="sm")
        parts.other["own-note"] = widget("note", "own-note", note(HINT))


def wire_custom(parts: Parts, session: Runs) -> None:
    """Loading shows its progress beside the button; then the pair is in the list of pairs, and chosen."""
    given = [parts.other[key] for key in ("own-verifier", "own-draft", "own-quantize", "own-spread")]
    shown = [parts.other["own-note"], parts.controls["pair"]]
    gr.on(
        [parts.other["own-load"].click, parts.other["own-verifier"].submit, parts.other["own-draft"].submit],
        CustomHandlers(session).load, given, shown, **LOADING,
    )  # fmt: skip


class CustomHandlers:
    """What the button does."""

    def __init__(self, session: Runs) -> None:
        self.session = session

    def load(self, verifier: str, draft: str, quantize: str, spread: bool) -> Iterator[tuple[str, Any]]:
        """The note beside the button and, at the end, the pair for the list of pairs; or what is wrong."""
        stop = threading.Event()
        try:
            with closing(self._loaded(verifier, draft, quantize, spread, stop)) as steps:
                name = ""
                for step in steps:
                    if isinstance(step, str):
                        name = step
                    else:
                        yield note(step[1], share=step[0], busy=True), gr.skip()
            yield note(f"{name} is loaded, and chosen above."), self.choice(name)
        except Exception as error:
            yield note(in_words(error), bad=True), gr.skip()
        finally:
            stop.set()

    def choice(self, name: str) -> Any:
        """The list of pairs as it is now, with this one chosen."""
        return gr.update(choices=choices(self.session.states()), value=name)

    def _loaded(
        self, verifier: str, draft: str, quantize: str, spread: bool, stop: threading.Event
    ) -> Generator[Told | str]:
        """What is going on, and at last the name of the pair."""
        wanted = given_pair((draft or "").strip() or None, verifier or "", "auto" if spread else None, quantize or None)
        yield None, f"looking at {wanted.label}"
        yield from told(wanted.look, stop)
        spec = ADDED.add(wanted)
        try:
            yield from told(lambda report: self.session.load(spec.name, report), stop)
        except BaseException:
            ADDED.drop(spec.name)
            raise
        yield spec.name
