"""The left side: what can be set. Built from the declarations in `settings`."""

from __future__ import annotations

from typing import Any

import gradio as gr

from cactus.acceptance import Parameter
from cactus.ui import examples, notes, pair_list, settings
from cactus.ui.desk import Loader, Runs
from cactus.ui.parts import Parts, widget


def build_controls(parts: Parts, session: Runs, loader: Loader) -> None:
    """Prompt, buttons, pair and method, then the settings of a run."""
    with gr.Group(elem_classes="card"):
        _prompt(parts, session)
    with gr.Row(elem_id="actions"):
        parts.other["run"] = gr.Button(
            "Run", variant="primary", interactive=False, elem_id="run", scale=3, min_width=80
        )
        parts.other["reply"] = gr.Button("Reply", elem_id="reply", scale=2, min_width=60)
        parts.other["stop"] = gr.Button("Stop", elem_id="stop", scale=2, min_width=60)
        parts.other["clear"] = gr.Button("Clear", elem_id="clear", scale=2, min_width=60)
    with gr.Group(elem_classes="card"):
        _pair_and_method(parts, session, loader)
    with gr.Group(elem_classes="card"):
        _sampling(parts)


def _prompt(parts: Parts, session: Runs) -> None:
    prompt = parts.controls["prompt"] = gr.Textbox(
        label="Prompt", lines=3, max_lines=5, elem_id="prompt", placeholder="Ask something, or pick an example",
        info="Ctrl or ⌘ + Enter runs.",
    )  # fmt: skip
    parts.controls["prompt_as"] = gr.Radio(
        [(name.capitalize(), name) for name in settings.PROMPT_AS.choices or ()], value=settings.PROMPT_AS.default,
        label=settings.PROMPT_AS.label, show_label=False, container=False, elem_id="prompt-as",
    )  # fmt: skip
    parts.other["examples"] = gr.Dataset(
        components=[prompt], elem_id="examples", show_label=False, samples_per_page=20,
        **examples.choice(pair_list.first(session.states()), session.states()),
    )  # fmt: skip


def _pair_and_method(parts: Parts, session: Runs, loader: Loader) -> None:
    start, states = settings.defaults(), session.states()
    with gr.Row():
        parts.controls["pair"] = gr.Dropdown(
            pair_list.choices(states), value=pair_list.first(states), label="Model pair",
            info="Draft model and verifier.", elem_id="pair", filterable=False, min_width=140,
        )  # fmt: skip
        parts.controls["method"] = gr.Dropdown(
            [(method.label, method.name) for method in settings.methods().values()], value=start["method"],
            label="Method", info="What judges the drafts.", elem_id="method", filterable=False, min_width=140,
        )  # fmt: skip
    parts.other["pair-note"] = widget("note", "pair-note", notes.pair_note(pair_list.first(states), states, loader))
    parts.other["method-note"] = widget("note", "method-note", notes.method_note(start["method"]))
    for method in settings.methods().values():
        if method.parameters:
            with gr.Row(visible=method.name == start["method"]) as group:
                for parameter in method.parameters:
                    parts.controls[method.key(parameter)] = control(parameter, method.elem_id(parameter))
            parts.groups.append(group)


def _sampling(parts: Parts) -> None:
    for left, right in zip(settings.SHARED[::2], settings.SHARED[1::2], strict=False):
        with gr.Row():
            for parameter in (left, right):
                parts.controls[parameter.name] = control(parameter, parameter.name.replace("_", "-"))
    last = settings.SHARED[-1]
    with gr.Row():
        parts.controls[last.name] = control(last, last.name.replace("_", "-"))
        with gr.Row(elem_id="seed-row"):
            parts.controls["seed"] = gr.Number(
                0, label=settings.SEED.label, info=settings.SEED.help, elem_id="seed",
                precision=0, min_width=90, scale=4,
            )  # fmt: skip
            parts.other["dice"] = gr.Button("New seed", elem_id="dice", min_width=24, scale=0)
    parts.controls["system"] = gr.Textbox(
        label="System prompt", info="Empty: the model's own.", lines=1, max_lines=3,
        elem_id="system",
    )  # fmt: skip


def control(parameter: Parameter, elem_id: str) -> Any:
    """A control for a declared parameter: a list, a slider, or a number where the range is open."""
    common: dict[str, Any] = {
        "value": parameter.default, "label": parameter.label, "info": parameter.help, "elem_id": elem_id,
        "min_width": 120, "interactive": True,
    }  # fmt: skip
    if parameter.choices is not None:
        return gr.Dropdown(list(parameter.choices), filterable=False, **common)
    if parameter.minimum is None or parameter.maximum is None:
        return gr.Number(step=parameter.step or 1.0, **common)
    return gr.Slider(parameter.minimum, parameter.maximum, step=parameter.step, buttons=[], **common)
