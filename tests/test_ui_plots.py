"""Rounds → plots: what is appended round by round is what the whole trace shows."""

from __future__ import annotations

import json

import pytest
from ui_fakes import make_trace

from cactus.metrics import series
from cactus.ui import plots
from cactus.ui.view import View


def drawn(text: str) -> dict:
    """A plot as the page has it after reading these lines."""
    figure: dict = {}
    for line in text.splitlines():
        record = json.loads(line)
        figure = record.get("figure", figure)
        for index, added in record.get("extend", {}).items():
            for name, values in added.items():
                figure["data"][int(index)][name] += values
        for index, whole in record.get("replace", {}).items():
            figure["data"][int(index)] |= whole
    return figure


@pytest.mark.parametrize("method", ["cactus", "sps", "ar"])
def test_appended_plots_equal_the_whole(method):
    trace = make_trace(count=15, method=method, drafted=0 if method == "ar" else 4)
    view = View(trace)
    for round_ in trace.rounds:
        view.add(round_)
        view.shown(with_plots=round_.index % 4 == 0)
    whole = [json.loads(figure.to_json()) for figure in plots.figures(trace)]
    assert [drawn(text) for text in view.shown()[2:]] == whole


def test_accepted_length_by_ending():
    trace = make_trace(count=30)
    figure = plots.figures(trace)[0]
    points = series(trace.rounds, None)
    for index, ending in enumerate(("recovered", "bonus")):
        expected = [(point.round_index + 1, point.accepted_length) for point in points if point.ended == ending]
        assert list(zip(figure.data[index].x, figure.data[index].y, strict=True)) == expected
        assert expected
    assert list(figure.data[3].y) == [point.mean_accepted_length for point in points]
    assert figure.data[0].marker.color != figure.data[1].marker.color
    assert figure.data[0].marker.pattern.shape != figure.data[1].marker.pattern.shape


def test_speedup_has_a_measured_an_ideal_and_a_unit_line():
    trace = make_trace()
    figure = plots.figures(trace)[1]
    points = series(trace.rounds, trace.baseline.seconds_per_token)
    assert [line.name for line in figure.data] == ["measured", "ideal", "1× (verifier alone)"]
    assert list(figure.data[0].y) == [point.speedup for point in points]
    assert list(figure.data[1].y) == [point.ideal_speedup for point in points]
    assert set(figure.data[2].y) == {1.0}
    assert list(figure.data[0].x) == [point.generated_tokens for point in points]


def test_speedup_without_a_baseline_says_so():
    figure = plots.figures(make_trace(baseline=None))[1]
    assert figure.layout.annotations[0].text == "the verifier alone was not measured"
    assert set(figure.data[0].y) == {None}


def test_positions_are_those_of_the_metrics():
    trace = make_trace(count=25)
    figure, counts = plots.figures(trace)[2], trace.metrics().positions
    assert list(figure.data[0].y) == [count.acceptance_rate for count in counts]
    assert list(figure.data[1].y) == [count.survival_rate for count in counts]
    assert list(figure.data[0].x) == [1, 2, 3, 4, 5]


def test_divergence_shows_every_judged_token():
    trace = make_trace(count=25)
    figure = plots.figures(trace)[3]
    for index, status in enumerate(("accepted", "rejected")):
        tokens = [t for r in trace.rounds for t in r.tokens if t.status == status]
        assert list(figure.data[index].y) == [t.kl for t in tokens]
        assert list(figure.data[index].x) == [t.position + 1 for t in tokens]
    assert figure.data[3].name == "δ = 1" and set(figure.data[3].y) == {1.0}


def test_the_delta_line_depends_on_the_declared_parameter_alone():
    assert len(plots.figures(make_trace(method="mentored", params={"delta": 0.5}))[3].data) == 4
    assert len(plots.figures(make_trace(method="tas", params={"epsilon": 0.1, "alpha": 0.3}))[3].data) == 3


def test_axes_are_titled():
    for figure in plots.figures(make_trace()):
        assert figure.layout.title.text
        assert figure.layout.xaxis.title.text and figure.layout.yaxis.title.text


def test_verifier_alone_says_why_plots_are_empty():
    accepted, speedup, positions, divergence = plots.figures(make_trace(method="ar", drafted=0))
    for figure in (accepted, positions, divergence):
        assert figure.layout.annotations[0].text == "the verifier alone drafts nothing"
        assert not any(len(trace.x) for trace in figure.data)
    assert len(speedup.data[0].x) == 12
