"""Who reads a run: it begins with its reader, ends soon after it, and waits for nobody else's."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from gradio.context import LocalContext

from cactus.errors import CactusError
from cactus.ui import readers
from cactus.ui.readers import Readers, read


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """A connection that breaks when its `gone` is set."""
    await scope["gone"].wait()
    raise asyncio.CancelledError


def connection(path: str, query: str = "") -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "gone": asyncio.Event()}


async def ended(watched: Readers, names: set[str], scope: dict[str, Any]) -> bool:
    """Whether a run whose reader goes by these names ends when this connection breaks; it must not end before."""
    stop = threading.Event()
    opened = asyncio.create_task(watched(scope, None, None))
    await asyncio.sleep(0)
    with watched.watching(frozenset(names), stop) as reader:
        await asyncio.to_thread(reader)
        await asyncio.sleep(2 * readers.AWAY_SECONDS)
        assert not stop.is_set()
        scope["gone"].set()
        with suppress(asyncio.CancelledError):
            await opened
        await asyncio.sleep(2 * readers.AWAY_SECONDS)
    return stop.is_set()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "AWAY_SECONDS", 0.05)
    monkeypatch.setattr(readers, "COMES_SECONDS", 0.2)


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/gradio_api/queue/data", "session_hash=one"),
        ("/gradio_api/call/generate/one", ""),
        ("/call/v2/compare/one", ""),
    ],
)
def test_fault_23_a_run_ends_when_its_connection_breaks_however_it_breaks(soon, path, query):
    async def check() -> bool:
        return await ended(Readers(nothing), {"one", "event"}, connection(path, query))

    assert asyncio.run(check())


def test_fault_23_a_run_whose_reader_never_comes_takes_nothing_and_ends(soon):
    async def check() -> None:
        watched, stop = Readers(nothing), threading.Event()
        other = asyncio.create_task(watched(connection("/queue/data", "session_hash=other"), None, None))
        await asyncio.sleep(0)
        with watched.watching(frozenset({"one"}), stop) as reader, pytest.raises(CactusError, match="nobody came"):
            await asyncio.to_thread(reader)
        assert stop.is_set()
        other.cancel()

    asyncio.run(check())


def test_another_visitor_who_goes_ends_nothing(soon):
    async def check() -> bool:
        watched, stop = Readers(nothing), threading.Event()
        mine = asyncio.create_task(watched(connection("/queue/data", "session_hash=one"), None, None))
        await asyncio.sleep(0)
        with watched.watching(frozenset({"one"}), stop) as reader:
            await asyncio.to_thread(reader)
            other = connection("/queue/data", "session_hash=other")
            other["gone"].set()
            with suppress(asyncio.CancelledError):
                await watched(other, None, None)
            await asyncio.sleep(0.15)
        mine.cancel()
        return stop.is_set()

    assert not asyncio.run(check())


def test_a_reader_who_is_back_at_once_keeps_its_run(soon):
    async def check() -> bool:
        watched, stop = Readers(nothing), threading.Event()
        first, second = (connection("/queue/data", "session_hash=one") for _ in range(2))
        opened = asyncio.create_task(watched(first, None, None))
        await asyncio.sleep(0)
        with watched.watching(frozenset({"one"}), stop) as reader:
            await asyncio.to_thread(reader)
            first["gone"].set()
            with suppress(asyncio.CancelledError):
                await opened
            again = asyncio.create_task(watched(second, None, None))
            await asyncio.sleep(0.15)
        again.cancel()
        return stop.is_set()

    assert not asyncio.run(check())


def test_stop_ends_the_wait_for_a_reader():
    stop = threading.Event()
    with Readers(nothing).watching(frozenset({"one"}), stop) as reader:
        stop.set()
        reader()


def test_an_event_that_nobody_watches_runs_as_it_is():
    stop = threading.Event()
    token = LocalContext.request.set(SimpleNamespace(session_hash="one", request=SimpleNamespace(scope={})))  # type: ignore[arg-type]
    try:
        with read(stop) as reader:
            reader()
    finally:
        LocalContext.request.reset(token)
    assert not stop.is_set()
