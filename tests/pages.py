"""The page over any session, a browser that looks at it, and what the browser tests do with both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
import pytest
from browser import ARGS, WAIT, chromium, free_port

from cactus.ui.layout import build
from cactus.ui.readers import MIDDLEWARE
from cactus.ui.theme import STYLES, head, theme

DONE = "document.documentElement.dataset.cactus === 'done'"
CONTRAST = """(selector) => {
  const paint = (color) => {
    const canvas = document.createElement('canvas'), brush = canvas.getContext('2d');
    canvas.width = canvas.height = 1;
    brush.fillStyle = color;
    brush.fillRect(0, 0, 1, 1);
    return [...brush.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  return [...document.querySelectorAll(selector)].map((node) => {
    let back = node;
    while (back && paint(getComputedStyle(back).backgroundColor)[3] < 255) back = back.parentElement;
    const ground = back ? paint(getComputedStyle(back).backgroundColor) : [255, 255, 255];
    const [a, b] = [paint(getComputedStyle(node).color), ground].map(light);
    return [node.className + ' ' + (node.dataset.status || ''), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  });
}"""


class Site:
    """A page over a session without a model."""

    def __init__(self, session: Any, **options: Any) -> None:
        self.session = session
        self.demo: gr.Blocks = build(session, **options)
        _, self.address, _ = self.demo.launch(
            prevent_thread_lock=True, quiet=True, server_port=free_port(), ssr_mode=False, run_history=False,
            theme=theme(), css_paths=[STYLES], head=head(), app_kwargs={"middleware": MIDDLEWARE},
        )  # fmt: skip


def running_browser() -> Iterator[Any]:
    """Chromium, or a skipped test where there is none."""
    path = chromium()
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=ARGS)
        yield running
        running.close()


def visits(browser: Any, site: Site) -> Iterator[Callable[..., Any]]:
    """A function that opens the page of a site; when all is closed, nothing may have gone wrong in it."""
    contexts, faults = [], []

    def go(query: str = "", width: int = 1280, height: int = 800, tab: str = "", **options: Any) -> Any:
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, permissions=["clipboard-read", "clipboard-write"], **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        watch(page, site.address, faults)
        page.goto(site.address + query)
        page.wait_for_selector("#run")
        page.wait_for_selector("#plot-divergence svg.main-svg")
        if tab:
            open_tab(page, tab)
        return page

    yield go
    for context in contexts:
        context.close()
    assert faults == []


def watch(page: Any, address: str, faults: list[str]) -> None:
    own = (address.rstrip("/"), "data:", "blob:")
    page.on("pageerror", lambda error: faults.append(f"error in the page: {error}"))
    page.on("request", lambda asked: None if asked.url.startswith(own) else faults.append(f"asked {asked.url}"))
    page.on("dialog", lambda dialog: (faults.append("a dialog opened"), dialog.dismiss()))


def open_tab(page: Any, name: str) -> None:
    page.click(f"[role=tab]:has-text('{name}')")


def run(page: Any, prompt: str = "Explain a cactus.") -> None:
    page.fill("#prompt textarea", prompt)
    page.click("#run")
    page.wait_for_selector("#tokens .tok")
    page.wait_for_function(DONE)


def pale(page: Any, selector: str) -> list[Any]:
    """The texts of these elements whose contrast is below 4.5:1."""
    measured = page.evaluate(CONTRAST, selector)
    assert measured, selector
    return [entry for entry in measured if entry[1] < 4.5]
