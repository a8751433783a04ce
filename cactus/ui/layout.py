"""The Playground: where its parts are and which event does what."""

from __future__ import annotations

from typing import Any

import gradio as gr

from cactus.ui import theme
from cactus.ui.api import Endpoints
from cactus.ui.compare import build_compare, wire_compare
from cactus.ui.controls import build_controls
from cactus.ui.custom import build_custom, wire_custom
from cactus.ui.desk import Desk, Loader, Runs
from cactus.ui.events import AS_IT_IS, AT_ONCE, PRIVATE, QUIET, on_models
from cactus.ui.lab import LabHandlers, build_lab
from cactus.ui.learn import build_learn, wire_learn
from cactus.ui.live import LiveHandlers
from cactus.ui.page import RECOMMENDED, PageHandlers, new_seed
from cactus.ui.pair_list import build_pair_list
from cactus.ui.parts import Parts, markup
from cactus.ui.replay import SPEEDS, ReplayHandlers
from cactus.ui.settings import COMPLETION
from cactus.ui.stage import build_stage
from cactus.ui.whatif import build_whatif, wire_whatif

KEEP_UPLOADS_SECONDS = 3600
QUEUE_SECONDS = 0.05
"""Between two looks of Gradio into its queue; by itself it looks a thousand times a second, which slows the models."""
LOOK_SECONDS = 1.5  # between two looks at a pair being loaded; each takes what is said beside a control away


def build(session: Runs, loader: Loader | None = None) -> gr.Blocks:
    """The page. `loader` loads a pair in the background while the page is already up."""
    gr.set_static_paths([theme.PLOTLY_JS])
    loader = loader or Loader(session)
    uploads = (KEEP_UPLOADS_SECONDS, KEEP_UPLOADS_SECONDS)
    with gr.Blocks(title="Cactus", analytics_enabled=False, delete_cache=uploads) as demo:
        parts = Parts()
        gr.HTML(markup("masthead.html"), elem_id="masthead")
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap") as tabs:
            with gr.Tab("Playground", id="playground"):
                with gr.Row(elem_id="playground", equal_height=False):
                    with gr.Column(elem_id="controls", min_width=320, scale=0):
                        build_controls(parts, session, loader)
                        if not session.limits.public:
                            build_custom(parts)
                    with gr.Column(elem_id="stage", min_width=320, scale=1):
                        build_stage(parts)
                build_pair_list(parts, session)
            with gr.Tab("Compare", id="compare"):
                lanes = build_compare()
            with gr.Tab("Theory lab", id="lab"):
                lab = build_lab()
            with gr.Tab("What if", id="whatif") as whatif_tab:
                whatif = build_whatif()
            with gr.Tab("Learn", id="learn") as learn_tab:
                learn = build_learn()
        desk = Desk()
        live = LiveHandlers(session, loader, desk)
        picked = [lab, tabs, parts.other["errand"]]
        wire_compare(lanes, parts, live, desk)
        wire_learn(learn, learn_tab, tabs, parts, lab, lanes, desk)
        wire_whatif(whatif, whatif_tab, live, desk)
        parts.shown[0].pick(LabHandlers(desk).pick, None, picked, **AT_ONCE)
        run = _wire_runs(demo, parts, live, ReplayHandlers(desk))
        _wire_page(demo, parts, PageHandlers(session, loader, desk), run)
        if not session.limits.public:
            wire_custom(parts, session)
        endpoints = Endpoints(session)
        gr.api(endpoints.generate, api_name="generate", **on_models(session.limits))
        gr.api(endpoints.compare, api_name="compare", **on_models(session.limits))
        gr.api(endpoints.pairs, api_name="pairs", concurrency_limit=None)
    demo.queue(max_size=session.limits.max_waiting)
    demo._queue.sleep_when_free = demo._queue.progress_update_sleep_when_free = QUEUE_SECONDS
    return demo


def _wire_runs(demo: gr.Blocks, parts: Parts, live: LiveHandlers, replay: ReplayHandlers) -> Any:
    """Returns the event of the Run button."""
    other, shown = parts.other, parts.shown
    run = other["run"].click(
        live.run, parts.row(), shown, validator=live.check, show_progress="full", show_progress_on=shown[0],
        **AS_IT_IS, **on_models(live.session.limits), **PRIVATE,
    )  # fmt: skip
    reply = other["reply"].click(
        live.reply, parts.row(), [*shown, parts.controls["prompt"], other["errand"]], validator=live.check,
        show_progress="full", show_progress_on=shown[0], **AS_IT_IS, **on_models(live.session.limits), **PRIVATE,
    )  # fmt: skip
    public = live.session.limits.public
    other["open"].visible = not public
    opened = [] if public else [other["open"].upload(replay.open, [other["open"], other["speed"]], shown, **QUIET)]
    again = other["again"].click(replay.again, other["speed"], [*shown, other["errand"]], **QUIET)
    other["step"].click(replay.step, None, [*shown, other["errand"]], **AT_ONCE)
    recorded = other["recorded"].input(replay.recorded, [other["recorded"], other["speed"]], shown, **QUIET)
    going = [run, reply, *opened, again, recorded]
    other["stop"].click(live.stop, None, shown, cancels=going, **AT_ONCE)
    other["clear"].click(live.clear, None, shown, cancels=going, **AT_ONCE)
    demo.unload(live.leave)
    return run


def _wire_page(demo: gr.Blocks, parts: Parts, page: PageHandlers, run: Any) -> None:
    other, controls = parts.other, parts.controls
    looked_at = [other["pair-note"], timer := gr.Timer(LOOK_SECONDS, active=False), controls["pair"]]
    restored = demo.load(page.restore, None, [*parts.row(), other["errand"]], **AT_ONCE)
    # A run that begins before would not have the link's settings.
    restored.then(page.ready, controls["pair"], [other["run"], *looked_at], **AT_ONCE)
    timer.tick(page.watch, controls["pair"], looked_at, **AT_ONCE)
    controls["pair"].change(page.chosen, controls["pair"], [other["pair-note"], other["examples"]], **AT_ONCE)
    recommended, before = [controls[key] for key in RECOMMENDED], gr.State(controls["pair"].value)
    controls["pair"].input(page.recommend, [controls["pair"], before, *recommended], [*recommended, before], **AT_ONCE)
    controls["method"].change(page.choose, controls["method"], [other["method-note"], *parts.groups], **AT_ONCE)
    run.then(page.settle, controls["pair"], [other["pair-note"], controls["pair"]], **AT_ONCE)
    controls["prompt_as"].change(
        lambda kind: gr.update(visible=kind != COMPLETION), controls["prompt_as"], controls["system"], **AT_ONCE
    )
    other["dice"].click(new_seed, None, controls["seed"], **AT_ONCE)
    other["examples"].click(lambda row: row[0], other["examples"], controls["prompt"], **AT_ONCE)
    other["share"].click(page.share, parts.row(), other["errand"], preprocess=False, **AT_ONCE)
    other["trace"].click(page.trace_file, None, other["errand"], **AT_ONCE)
    other["table"].click(page.table_file, None, other["errand"], **AT_ONCE)
    other["speed"].change(
        lambda speed: gr.update(visible=SPEEDS.get(speed) == 0), other["speed"], other["step"], **AT_ONCE
    )
