"""Sums along a text: each verdict is counted once, at the token that came of it."""

from __future__ import annotations

import pytest
from ui_fakes import make_trace

from cactus.sequence import spending


def test_every_verdict_is_counted_once():
    trace = make_trace(count=30)
    points, metrics = spending(trace), trace.metrics()
    assert [point.position for point in points] == [token.position for token in trace.tokens]
    assert points[-1].aimed == pytest.approx(metrics.total_kl)
    assert points[-1].output == pytest.approx(metrics.mean_output_kl * metrics.judged_tokens)


def test_a_recovered_token_carries_the_rejected_one_and_a_bonus_nothing():
    trace = make_trace(count=30)
    points, before = {point.position: point for point in spending(trace)}, 0.0
    for round_ in trace.rounds:
        rejected = [token.kl for token in round_.tokens if token.status == "rejected"]
        for token in round_.emitted:
            here = {"accepted": token.kl, "recovered": sum(rejected), "bonus": 0.0}[token.status]
            assert points[token.position].aimed == pytest.approx(before + here)
            before = points[token.position].aimed


def test_the_verifier_alone_spends_nothing():
    points = spending(make_trace(method="ar", drafted=0))
    assert len(points) == 12 and {(point.aimed, point.output) for point in points} == {(0.0, 0.0)}
