"""Fixtures of several test files. What they need is imported when one is asked for: other tests do not wait for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before torch is imported, here and in the processes of some tests: in models this small, threads wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def pocket() -> Any:
    """A real pair of models, in float32, where greedy texts are equal token for token."""
    from cactus import load_pair

    return load_pair("pocket", dtype="float32")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny verifier and a draft model for it, each with the tokenizer in its folder."""
    import tiny

    place = tmp_path_factory.mktemp("models")
    for name, made in (("verifier", tiny.model()), ("draft", tiny.near())):
        made.save_pretrained(place / name)
        tiny.tokenizer().save_pretrained(place / name)
    return place


@pytest.fixture
def none_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pair of somebody's own is known yet in this process."""
    from cactus.pairs.added import ADDED

    monkeypatch.setattr(ADDED, "_specs", {})


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from pages import running_browser

    yield from running_browser()


@pytest.fixture(scope="module")
def site() -> Iterator[Any]:
    """The page over a session without a model."""
    from browser import chromium
    from pages import Site
    from ui_fakes import FakeSession

    chromium()
    opened = Site(FakeSession(pause=0.01))
    yield opened
    opened.demo.close()


@pytest.fixture
def visit(browser: Any, site: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page; in the end nothing may have failed in it and nothing may have been asked of another host."""
    from pages import visits

    site.session.__init__(pause=0.01)
    yield from visits(browser, site)
