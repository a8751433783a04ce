"""Any bytes as a trace: a named refusal, or a trace that can be shown everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ui_fakes import make_trace

from cactus import compare, make_rule, notable, sequence, theory, whatif
from cactus.commands.generate import summary
from cactus.compare import Comparison
from cactus.errors import CactusError
from cactus.recorded import compact
from cactus.trace import Trace, TraceError
from cactus.ui import plots, render
from cactus.ui.compare import outcome
from cactus.ui.lanes import LaneView
from cactus.ui.view import View

TEXT = make_trace(2).to_json()
QUICK = settings(max_examples=25, deadline=None, derandomize=True)
HOSTILE = [
    None, True, -1, 0, 1, 2**31, 2**53 - 1, 2**53, 10**400, -0.0, 0.5, 1.0, 1.4, 5e-324, 1e-320, 1e308, 1e9, "", "0",
    "x", "auto", "NaN", "Infinity", "-Infinity", "bonus",
    "<img src=x onerror=alert(1)>", "${alert(1)}", "{{ 7*7 }}", "\0", "\u202e",
    "\ud83c\udf35", "=1+1", "a" * 10_000, [], {}, [[]], [None], {"a": {}}, [1, "x"], [{"role": "user"}],
]  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document."""
    yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


PLACES = list(places(json.loads(TEXT)))
ROUGH = sorted({tuple(part for part in place if isinstance(part, str)) for place in PLACES})


def put(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    node = document
    for part in place[:-1]:
        node = node[part]
    node[place[-1]] = value
    return document


def pulled(document: Any, place: tuple[Any, ...]) -> Any:
    node = document
    for part in place[:-1]:
        node = node[part]
    if place:
        del node[place[-1]]
    return document


@st.composite
def mutated(draw: Any) -> str:
    """A valid trace with up to three places changed, doubled or gone; each kind of place is as likely as any other."""
    document = json.loads(TEXT)
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(ROUGH))
        alike = [p for p in places(document) if tuple(part for part in p if isinstance(part, str)) == kind]
        if not alike:
            continue
        place = draw(st.sampled_from(alike))
        if draw(st.integers(0, 5)):
            document = put(document, place, draw(st.sampled_from(HOSTILE)))
        else:
            document = pulled(document, place)
        if not isinstance(document, dict):
            break
    return json.dumps(document)


def read(text: str | bytes) -> Trace | None:
    """The trace, or None after a refusal in one short line."""
    try:
        return Trace.from_json(text)
    except TraceError as error:
        assert len(str(error)) < 400 and "\n" not in str(error)
        return None


def strict(text: str) -> Any:
    """JSON as a browser reads it."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def show_everywhere(trace: Trace) -> None:
    """All that the page, the command line and the library make of a trace."""
    assert trace.check() == [] and Trace.from_json(trace.to_json()) == trace
    strict(trace.to_json())
    view, lane = View(trace), LaneView()
    lane.begin(trace)
    for round_ in trace.rounds:
        view.add(round_)
        lane.add(round_)
    view.finish(trace)
    for text in (*view.shown(), lane.text, lane.figures):
        for line in text.splitlines():
            strict(line)
    for figure in plots.figures(trace):
        strict(figure.to_json())
    lanes = [trace, trace]
    views = [LaneView(), LaneView()]
    for each in views:
        each.begin(trace)
    outcome(lanes, views)
    render.to_csv(trace), summary(trace), sequence.spending(trace), compact(trace).check()
    for find in (notable.likeliest_rejected, notable.only_boosted, notable.unlikeliest_accepted):
        find(trace)
    compare.results(lanes), compare.partings(lanes), compare.timeline(lanes)
    _or_refuse(lambda: whatif.outlook(trace, make_rule("cactus")))
    for token in (token for round_ in trace.rounds for token in round_.tokens):
        _or_refuse(lambda token=token: theory.position(token))


def _or_refuse(action: Any) -> None:
    try:
        action()
    except CactusError as error:
        assert str(error)


@QUICK
@given(mutated())
def test_fault_29_a_changed_trace_is_refused_or_can_be_shown(text):
    trace = read(text)
    if trace is not None:
        show_everywhere(trace)


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:20])
def test_fault_29_a_value_wherever_it_is_let_in(value):
    """Each place refuses it by name or takes it; what takes it at every such place at once can be shown."""
    document, taken = json.loads(TEXT), 0
    for kind in ROUGH:
        place = next(place for place in PLACES if tuple(part for part in place if isinstance(part, str)) == kind)
        if not kind or kind[-1] == "status" or not _stands(document, place):
            continue
        changed = json.dumps(put(json.loads(json.dumps(document)), place, value))
        if read(changed) is not None:
            document, taken = json.loads(changed), taken + 1
    if taken:
        show_everywhere(read(json.dumps(document)))


def _stands(document: Any, place: tuple[Any, ...]) -> bool:
    return any(place == other for other in places(document))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, len(TEXT.encode()) - 1))
def test_fault_29_a_trace_cut_anywhere_is_refused(end):
    assert read(TEXT.encode()[:end]) is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, len(TEXT)), st.integers(0, 12), st.binary(max_size=12))
def test_fault_29_bytes_changed_anywhere(start, gone, new):
    raw = TEXT.encode()
    trace = read(raw[:start] + new + raw[start + gone :])
    assert trace is None or Trace.from_json(trace.to_json()) == trace


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.one_of(st.binary(max_size=64), st.text(st.characters(), max_size=64), st.text('[]{}",:0eE+-. nulltruefalse')))
@example("\ud800")
@example('{"schema": "\ud800"}')
@example("[" * 100_000)
@example('{"schema":"cactus-trace/1","a":' * 150)
@example("-")
@example('"')
@example("\0")
def test_fault_29_anything_else_is_refused(text):
    assert read(text) is None


@QUICK
@given(mutated())
def test_fault_29_a_comparison_with_a_changed_lane_is_refused_or_read(text):
    whole = json.dumps({"schema": "cactus-comparison/1", "lanes": [json.loads(TEXT), json.loads(text)]})
    try:
        read_back = Comparison.from_json(whole)
    except TraceError as error:
        assert "\n" not in str(error)
    else:
        assert Comparison.from_json(read_back.to_json()) == read_back
