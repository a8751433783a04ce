"""The page's tools for language models, used through the official client of the Model Context Protocol."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import jsonschema
import pytest
from crowd import Server, server
from gradio_client import Client
from test_sharing import numbers

from cactus.trace import Trace
from cactus.ui.api import Endpoints

pytest.importorskip("mcp", reason="the mcp package is not installed (pip install -r requirements-dev.txt)")

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

TOOLS = ("generate", "compare", "pairs")
FROG = {"prompt": "a frog", "pair": "pocket", "seed": 3, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def place() -> Iterator[Server]:
    with server(4, "--mcp") as running:
        yield running


@asynccontextmanager
async def connected(place: Server) -> AsyncIterator[ClientSession]:
    address = place.address + "/gradio_api/mcp/"
    async with streamable_http_client(address) as (reads, writes, _), ClientSession(reads, writes) as session:
        await session.initialize()
        yield session


def talk(place: Server, conversation: Callable[[ClientSession], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        async with connected(place) as session:
            return await conversation(session)

    return anyio.run(whole)


def call(place: Server, tool: str, **arguments: Any) -> CallToolResult:
    return talk(place, lambda session: session.call_tool(tool, arguments))


def texts(answer: CallToolResult) -> list[str]:
    """One for each value that a tool gave."""
    assert not answer.isError, answer.content
    return [content.text for content in answer.content]


def test_the_public_endpoints_are_its_tools_and_nothing_else_is(place):
    async def listed(session: ClientSession) -> tuple[Any, ...]:
        return await session.list_tools(), await session.list_prompts(), await session.list_resources()

    tools, prompts, resources = talk(place, listed)
    assert tuple(tool.name for tool in tools.tools) == TOOLS and prompts.prompts == resources.resources == []
    for tool in tools.tools:
        wanted = list(inspect.signature(getattr(Endpoints, tool.name)).parameters.values())[1:]
        schema = tool.inputSchema
        jsonschema.Draft202012Validator.check_schema(schema)
        assert list(schema["properties"]) == [parameter.name for parameter in wanted]
        assert schema.get("required", []) == [each.name for each in wanted if each.default is each.empty]
        assert len(tool.description) > 60
        for each in wanted:
            said = schema["properties"][each.name]
            assert len(said["description"]) > 5
            assert said.get("default") == (each.default if each.default not in (each.empty, None, 0, "") else None)


@pytest.mark.parametrize("event", ["run", "stop", "reply", "restore", "lambda", "_generated"])
def test_what_the_page_does_by_itself_cannot_be_called(place, event):
    answer = call(place, event)
    assert answer.isError and f"Unknown tool for this Gradio app: {event}" in answer.content[0].text


def test_generate_gives_the_text_and_the_trace_that_http_gives(place):
    text, trace = texts(call(place, "generate", **FROG, method="sps"))
    other, by_http = Client(place.address, verbose=False).predict(**FROG, method="sps", api_name="/generate")
    assert text == other == Trace.from_json(trace).text and Trace.from_json(trace).check() == []
    assert numbers(Trace.from_json(trace)) == numbers(Trace.from_json(json.dumps(by_http)))


def test_who_wants_to_hear_how_far_it_is_gets_the_same(place):
    heard = []

    async def asked(session: ClientSession) -> CallToolResult:
        async def hear(share: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        return await session.call_tool("generate", FROG, progress_callback=hear)

    text, trace = texts(talk(place, asked))
    same_text, same_trace = texts(call(place, "generate", **FROG))
    assert text == same_text and numbers(Trace.from_json(trace)) == numbers(Trace.from_json(same_trace))
    assert "Processing" in heard


def test_compare_gives_the_lanes_that_http_gives(place):
    asked = FROG | {"lanes": ["sps:m=3", "cactus:delta=1"], "max_new_tokens": 6}
    table, traces = map(json.loads, texts(call(place, "compare", **asked)))
    _, by_http = Client(place.address, verbose=False).predict(**asked, api_name="/compare")
    assert len(table) == len(traces["lanes"]) == 3 and table[0]["lane"] == "Verifier only"
    for lane, other in zip(traces["lanes"], by_http["lanes"], strict=True):
        assert numbers(Trace.from_json(json.dumps(lane))) == numbers(Trace.from_json(json.dumps(other)))


def test_pairs_gives_what_http_gives(place):
    by_http = Client(place.address, verbose=False).predict(api_name="/pairs")
    (listed,) = texts(call(place, "pairs"))
    assert json.loads(listed) == by_http and len(by_http) > 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"method": "nope"}, "method is 'nope'; ar, sps, cactus"),
        ({"pair": "nope"}, "nope"),
        ({"params": {"delta": -1}}, "delta must be"),
        ({"params": {"bogus": 1}}, "bogus"),
        ({"temperature": 1000}, "temperature must be a number between 0 and 100, got 1000"),
        ({"top_p": 0}, "top_p must be a number above 0 and at most 1, got 0"),
        ({"draft_length": 99}, "99"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": "x" * 100_001}, "100,001 characters"),
        ({"prompt": 5}, "5 is not of type 'string'"),
        ({"seed": "x"}, "'x' is not valid"),
        ({"colour": "red"}, "colour"),
    ],
)  # fmt: skip
def test_bad_input_is_named(place, wrong, words):
    answer = call(place, "generate", **FROG | wrong)
    assert answer.isError and words in answer.content[0].text and "Traceback" not in answer.content[0].text
    assert place.seconds_until_free() < 5


def test_nothing_of_several_callers_is_mixed(place):
    """Each its own prompt and seed; the texts are those of each alone."""
    asked = [
        FROG | {"prompt": f"a {animal}", "seed": seed} for seed, animal in enumerate(("frog", "owl", "bee", "hen"))
    ]
    answers: dict[int, CallToolResult] = {}

    async def ask(number: int) -> None:
        async with connected(place) as session:
            answers[number] = await session.call_tool("generate", asked[number])

    async def together() -> None:
        async with anyio.create_task_group() as group:
            for number in range(len(asked)):
                group.start_soon(ask, number)

    anyio.run(together)
    for number, wanted in enumerate(asked):
        trace = Trace.from_json(texts(answers[number])[1])
        assert (trace.prompt, trace.seed) == (wanted["prompt"], wanted["seed"])
        assert numbers(trace) == numbers(Trace.from_json(texts(call(place, "generate", **wanted))[1]))


@pytest.mark.parametrize("hears", [False, True])
def test_fault_23_a_caller_who_goes_away_frees_the_model(place, hears):
    """The text would go on for seconds: it is the verifier's alone, and hot, so that it finds no end."""
    endless = FROG | {"method": "ar", "temperature": 1.5, "max_new_tokens": 2000}

    async def hear(*news: object) -> None:
        pass

    async def begun_and_left() -> None:
        async with connected(place) as session, anyio.create_task_group() as group:
            group.start_soon(session.call_tool, "generate", endless, None, hear if hears else None)
            while place.state()["places"] == 0:
                await anyio.sleep(0.02)
            group.cancel_scope.cancel()

    anyio.run(begun_and_left)
    assert place.seconds_until_free() < 1
