"""Records → lines for the page, words for verdicts, rows of the table."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from ui_fakes import make_round, make_rounds, make_trace, token

from cactus.trace import Round, Timings, Trace
from cactus.ui import render, tiles
from cactus.ui.view import View, blank

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "${alert(1)}",
    "{{value}}",
    "\u202eabc",
]


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("uniform", "accept_prob", "words"),
    [
        (0.42, 0.71, "u = 0.42 < 0.71"),
        (0.82, 0.71, "u = 0.82 ≥ 0.71"),
        (0.71, 0.71, "u = 0.71 ≥ 0.71"),
        (0.7099, 0.71, "u = 0.7099 < 0.7100"),
        (0.0, 1.0, "u = 0.00 < 1.00"),
        (0.5, math.nextafter(0.5, 1.0), "u = 0.5000000000000000 < 0.5000000000000001"),
    ],
)
def test_comparison_shows_which_is_larger(uniform, accept_prob, words):
    assert render.comparison(uniform, accept_prob) == words


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (0.0, "0"),
        (1.0, "1"),
        (0.5, "0.500"),
        (0.00012, "1.2e-04"),
        (0.99999999, ">0.999999"),
        (0.9996, "0.999600"),
        (math.inf, "∞"),
        (-0.0002, "-2.0e-04"),
        (7.25, "7.250"),
    ],
)
def test_number_is_zero_or_one_only_where_it_is(value, shown):
    assert render.number(value) == shown


@pytest.mark.parametrize(
    ("accepted", "drafted", "index", "words"),
    [
        (2, 4, 2, "u = 0.70 ≥ 0.20: rejected"),
        (2, 4, 3, "drafted behind a rejection, never judged"),
        (2, 4, 4, "drawn from the recovery distribution in place of the rejected token"),
        (3, 3, 3, "all 3 drafted tokens passed: one more from the verifier"),
        (0, 0, 0, "sampled by the verifier, nothing drafted"),
    ],
)
def test_verdict_in_words(accepted, drafted, index, words):
    import random

    round_ = make_round(0, accepted, drafted, 0, random.Random(0))
    assert render.verdict(round_.tokens[index], round_) == words


def test_verdict_of_a_token_behind_the_end():
    round_ = make_rounds(1, 2)[0].model_copy(
        update={"tokens": (token("a", "accepted", 0), token("b", "discarded", 1)), "accepted_length": 1}
    )
    assert render.verdict(round_.tokens[1], round_) == "drafted behind the end of the text"


@pytest.mark.parametrize("text", HOSTILE)
def test_lines_carry_hostile_text_as_data(text):
    line = render.line({"text": text})
    assert "<" not in line
    assert line.count("\n") == 1
    assert json.loads(line) == {"text": text}


def test_a_line_stays_one_line():
    text = "a\nb\u2028c\u2029d"
    assert len(render.line({"text": text}).splitlines()) == 1
    assert json.loads(render.line({"text": text}))["text"] == text


def test_round_line_keeps_every_token_in_order():
    round_ = make_rounds(3, 5)[2]
    record = json.loads(render.round_line(round_, range(6)))
    assert record["round"] == 3
    assert [(entry[0], entry[1]) for entry in record["tokens"]] == [(t.text, t.status) for t in round_.tokens]
    assert len(record["tokens"][0][4]) == len(render.LABELS) == len(render.FIELDS)
    assert [entry[8] for entry in record["tokens"]] == list(range(len(round_.tokens)))


def test_facts_name_settings_machine_and_baseline():
    text = render.facts(make_trace())
    for part in ("smollm2-135m", "cactus delta = 1", "m = 5", "seed 3", "cpu, bfloat16", "45.0 ms/token"):
        assert part in text
    rounded = make_trace(versions={"draft weights": "int8"})
    assert "cpu, bfloat16, drafter int8" in render.facts(rounded)
    graphs = make_trace(versions={"caches": "static caches and CUDA graphs"})
    assert "cpu, bfloat16 · static caches and CUDA graphs" in render.facts(graphs)
    auto = make_trace(num_draft_tokens="auto")
    assert "m = auto" in render.facts(auto) and " of auto" not in render.summary(auto, auto.metrics())


def test_summary_says_slower():
    slow = make_trace(drafted=1, count=4, baseline={"seconds_per_token": 0.01, "steps": 3, "how": "x"})
    assert "slower" in render.summary(slow, slow.metrics())
    fast = make_trace()
    assert "slower" not in render.summary(fast, fast.metrics())


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "  =1+1", "\t=1", "\n=1", "＝1"])
def test_csv_cells_are_no_formulas(text):
    trace = make_trace(count=1, drafted=0)
    round_ = trace.rounds[0].model_copy(update={"tokens": (token(text, "sampled", 0),)})
    table = render.to_csv(trace.model_copy(update={"rounds": (round_,)}))
    row = list(csv.reader(io.StringIO(table)))[1]
    assert row[4] == "'" + text


def test_csv_has_one_row_a_token_and_reads_back():
    trace = make_trace(count=9)
    rows = list(csv.DictReader(io.StringIO(render.to_csv(trace))))
    tokens = [t for r in trace.rounds for t in r.tokens]
    assert [row["status"] for row in rows] == [t.status for t in tokens]
    assert [float(row["verifier_prob"]) for row in rows] == [t.verifier_prob for t in tokens]


def tile_values(trace: Trace) -> dict[str, tiles.Tile]:
    return {tile.label: tile for tile in tiles.tiles(trace.metrics(), trace.num_draft_tokens > 0)}


def test_tiles_show_the_metrics():
    trace = make_trace()
    metrics, shown = trace.metrics(), tile_values(trace)
    assert shown["Speedup"].value == f"{metrics.speedup:.2f}"
    assert shown["Accepted length"].value == f"{metrics.accepted_length:.2f}"
    assert f"{metrics.tokens_per_round:.2f} tokens per round (AL + 1)" in shown["Accepted length"].note
    assert shown["Acceptance rate"].note == f"{metrics.accepted_tokens} of {metrics.drafted_tokens} drafted"
    assert shown["Passes saved"].value == str(metrics.verifier_passes_saved)
    assert f"{metrics.mean_output_kl:.3f}" in shown["Divergence"].note


def test_a_slower_run_is_shown_as_slower():
    trace = make_trace(drafted=1, baseline={"seconds_per_token": 0.01, "steps": 3, "how": "x"})
    tile = tile_values(trace)["Speedup"]
    assert trace.metrics().speedup < 1
    assert tile.tone == "bad" and "slower" in tile.note


def test_the_verifier_alone_is_neither_slower_nor_faster_than_itself():
    trace = make_trace(drafted=1, baseline={"seconds_per_token": 0.01, "steps": 3, "how": "x"})
    tile = {tile.label: tile for tile in tiles.tiles(trace.metrics(), drafts=False)}["Speedup"]
    assert tile.tone == "" and "verifier alone" in tile.note
    assert tile.value == f"{trace.metrics().speedup:.2f}"


def test_tiles_without_a_number_give_a_reason():
    unmeasured = tile_values(make_trace(baseline=None))
    assert (unmeasured["Speedup"].value, unmeasured["Speedup"].note) == ("–", "the verifier alone was not measured")
    alone = tile_values(make_trace(method="ar", drafted=0))
    for label in ("Accepted length", "Acceptance rate", "Divergence"):
        assert (alone[label].value, alone[label].note) == ("–", "nothing is drafted")
    assert alone["Passes saved"].value == "0"


def test_infinite_divergence_is_shown_as_such():
    trace = make_trace(count=1, drafted=1)
    first = trace.rounds[0].tokens[0].model_copy(update={"kl": math.inf})
    round_ = trace.rounds[0].model_copy(update={"tokens": (first, *trace.rounds[0].tokens[1:])})
    trace = trace.model_copy(update={"rounds": (round_,)})
    assert tile_values(trace)["Divergence"].value == "∞"
    view = View(trace)
    view.add(round_)
    assert all(lines(text) for text in view.shown()[2:])  # JSON has no infinity; the plots leave it out


def test_view_only_grows():
    trace = make_trace(count=20)
    view = View(trace)
    before = view.shown()
    for round_ in trace.rounds:
        view.add(round_)
        after = view.shown(with_plots=round_.index % 3 == 0)
        assert all(new.startswith(old) for old, new in zip(before[:1] + before[2:], after[:1] + after[2:], strict=True))
        before = after
    view.finish(trace)
    records = lines(view.shown()[0])
    assert [record["round"] for record in records if "round" in record] == list(range(1, 21))
    assert records[-1]["end"].startswith(f"{len(trace.tokens)} tokens in 20 rounds")


def test_view_sends_in_proportion_to_the_run():
    def size(count: int) -> int:
        view, sent = View(make_trace(count=0)), 0
        for round_ in make_rounds(count, 4):
            before = view.shown()
            view.add(round_)
            sent += sum(len(new) - len(old) for old, new in zip(before[2:], view.shown()[2:], strict=True))
        return sent

    assert size(200) < 2.5 * size(100)


def test_fault_28_what_is_copied_at_every_update_takes_one_byte_a_character():
    """One emoji would make the whole text four times as large in memory, and every update of a long text as slow."""
    round_ = make_trace(count=1).rounds[0]
    strange = round_.tokens[0].model_copy(update={"text": "🌵 < \u2028 針"})
    tokens = (strange, *round_.tokens[1:])
    text = render.round_line(round_.model_copy(update={"tokens": tokens}), [0] * len(tokens))
    assert text.isascii() and "<" not in text and text.count("\n") == 1
    assert json.loads(text)["tokens"][0][0] == strange.text


def test_view_takes_up_rounds_and_a_baseline_that_came_with_the_end():
    trace = make_trace(count=6)
    view = View(trace.model_copy(update={"baseline": None}))
    for round_ in trace.rounds[:4]:
        view.add(round_)
    assert view.metrics.speedup is None
    view.finish(trace)
    assert view.metrics == trace.metrics()
    told = [line["facts"] for line in lines(view.shown()[0]) if "facts" in line]
    assert "45.0 ms/token" not in told[0] and "45.0 ms/token" in told[-1]
    speedup = lines(view.shown()[3])
    assert "figure" in speedup[-2] and len(speedup[-1]["extend"]["0"]["y"]) == 6


def test_a_view_says_what_it_waits_for_before_it_begins():
    view = View()
    assert view.shown() == blank()
    view.wait(0.25, "loading")
    view.wait(None, "reading the prompt")
    view.begin(make_trace(count=0))
    records = lines(view.shown()[0])
    assert list(records[0]) == ["run"]
    assert records[1:3] == [{"wait": "loading", "share": 0.25}, {"wait": "reading the prompt", "share": None}]
    assert "facts" in records[3]


def test_blank_and_failed_start_afresh():
    assert blank()[0] == ""
    assert [tile["value"] for tile in json.loads(blank()[1])] == ["–"] * 6
    one, other = View().failed("no"), View().failed("no")
    assert lines(one[0])[-1] == {"end": "no", "failed": True}
    assert lines(one[0])[0]["run"] != lines(other[0])[0]["run"]


def explained(**fields) -> str:
    drafted = token(" x", fields.pop("status", "accepted"), 0, **fields)
    tail = token(" y", "recovered" if drafted.status == "rejected" else "bonus", 1)
    round_ = Round(
        index=6, num_draft_tokens=1, accepted_length=int(drafted.status == "accepted"), draft_seconds=0.0,
        verify_seconds=0.0, judge_seconds=0.0, tokens=(drafted, tail),
    )  # fmt: skip
    return render.explanation(drafted, round_, 0)


def test_a_verdict_is_spelled_out_with_what_lossless_sampling_had_said():
    judged = {"draft_prob": 0.6, "verifier_prob": 0.2, "boosted_prob": 0.426, "uniform": 0.42}
    assert explained(**judged, accept_prob=0.71) == (
        "Round 7, draft 1 of 1: u = 0.42 < 0.71 = γ*/p = 0.426/0.600: accepted. "
        "Speculative sampling: u = 0.42 ≥ 0.33: rejected."
    )
    # another rule's accept probability is no γ*/p, and is not said to be
    assert explained(**judged, accept_prob=1.0) == (
        "Round 7, draft 1 of 1: u = 0.42 < 1.00: accepted. Speculative sampling: u = 0.42 ≥ 0.33: rejected."
    )


def test_where_lossless_sampling_says_the_same_it_is_not_told():
    judged = {"draft_prob": 0.6, "verifier_prob": 0.3, "boosted_prob": 0.3, "accept_prob": 0.5, "uniform": 0.7}
    told = explained(status="rejected", **judged)
    assert told == "Round 7, draft 1 of 1: u = 0.70 ≥ 0.50 = γ*/p = 0.300/0.600: rejected."


def test_what_was_not_judged_is_explained_too():
    round_ = make_trace(count=1).rounds[0]
    last = round_.tokens[-1]
    assert render.explanation(last, round_, round_.num_draft_tokens) == f"Round 1: {render.verdict(last, round_)}."


def test_the_summary_says_how_long_others_had_the_models():
    trace = make_trace(count=2)
    assert "Waited" not in render.summary(trace, trace.metrics())
    waited = trace.model_copy(update={"timings": Timings(total_seconds=9.0, waiting_seconds=4.25)})
    assert render.summary(waited, waited.metrics()).endswith("Waited 4.2 s for other runs, which counts nowhere.")
    assert waited.metrics() == trace.metrics()
