"""Saved traces and comparisons: the published schema, what is refused and in which words, and how much is read."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from ui_fakes import make_trace

from cactus import cli, recorded
from cactus.compare import Comparison
from cactus.documents import BOM, MAX_PIECES, TraceError
from cactus.paths import ASSETS
from cactus.trace import Trace, trace_schema

SCHEMA_FILE = ASSETS / "trace.schema.json"


def document(**changes: Any) -> dict[str, Any]:
    return json.loads(make_trace(3).to_json()) | changes


def refusal(value: Any, model: Any = Trace) -> str:
    text = value if isinstance(value, str | bytes) else json.dumps(value)
    with pytest.raises(TraceError) as error:
        model.from_json(text)
    return str(error.value)


def test_the_published_schema_is_the_records_own():
    """Made anew by `python -m cactus schema > assets/trace.schema.json`."""
    assert json.loads(SCHEMA_FILE.read_text(encoding="utf-8")) == trace_schema()


def test_the_command_prints_the_published_schema(capsys):
    assert cli.main(["schema"]) == 0
    assert capsys.readouterr().out == SCHEMA_FILE.read_text(encoding="utf-8")


def test_what_is_saved_follows_the_published_schema():
    validator = pytest.importorskip("jsonschema").Draft202012Validator(trace_schema())
    infinite = document()
    infinite["rounds"][0]["tokens"][0]["kl"] = "Infinity"
    for saved in (document(), infinite, document(num_draft_tokens="auto"), document(prompt=[1, 2])):
        validator.validate(saved)
        Trace.from_json(json.dumps(saved))
    for bad in (document(seed=-1), document(schema="cactus-trace/2"), document(rounds=[{}]), document(prompt=1)):
        assert not validator.is_valid(bad)


@pytest.mark.parametrize("run", recorded.index(), ids=lambda run: run.file)
def test_every_recorded_run_loads(run):
    assert recorded.read(run.file).check() == []


def token(**changes: Any) -> dict[str, Any]:
    whole = document()
    whole["rounds"][0]["tokens"][0] |= changes
    return whole


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (token(accept_prob=1.4), "rounds[0].tokens[0].accept_prob is 1.4; a number from 0 to 1 or null is allowed"),
        (token(id=2**60), f"rounds[0].tokens[0].id is {2**60}; a whole number from 0 to {2**53 - 1} is allowed"),
        (token(kl="∞"), "rounds[0].tokens[0].kl is '∞'; a number of at least -0.001 or 'Infinity' or null is allowed"),
        (token(kl="NaN"), "rounds[0].tokens[0].kl is 'NaN'"),
        (
            token(status="kept"),
            "status is 'kept'; 'accepted', 'rejected', 'recovered', 'bonus', 'discarded', 'sampled'",
        ),
        (token(text=None), "rounds[0].tokens[0].text is null; text is allowed"),
        (token(uniform=True), "rounds[0].tokens[0].uniform is true"),
        (token(uniform=None), "rounds[0]: tokens[0] with status 'rejected' needs accept_prob and uniform"),
        (token(top_draft=[{"id": 1, "text": "x"}]), "rounds[0].tokens[0].top_draft[0].prob is missing"),
        (document(rounds=7), "rounds is 7; a list is allowed"),
        (document(rounds=[7]), "rounds[0] is 7; an object is allowed"),
        (document(seed=-1), "seed is -1; a whole number from 0 to 4294967295 is allowed"),
        (document(seed="x" * 99), f"seed is 'x{'x' * 37}…; a whole number"),
        (document(params={"delta": []}), "params.delta is a list; a number or text is allowed"),
        (document(params={"<b>": {}}), "params['<b>'] is an object"),
        (document(params={"y" * 99: {}}), f"params['{'y' * 39}] is an object"),
        (document(params=dict.fromkeys(map(str, range(65)), 1)), "params: it has 65 entries; at most 64 are allowed"),
        (document(prompt=[{"role": "user", "content": 5}]), "prompt[0].content is 5; text is allowed"),
        (document(prompt=5), "prompt is 5; text or a list is allowed"),
        (document(num_draft_tokens="many"), "num_draft_tokens is 'many'; a whole number from 0"),
        (document(baseline={"seconds_per_token": 0, "steps": 1, "how": ""}), "baseline.seconds_per_token is 0;"),
        (document(schema="cactus-trace/2"), "schema is 'cactus-trace/2'; 'cactus-trace/1' is allowed: another version"),
        (document(schema=["cactus-trace/1"]), "schema is a list; 'cactus-trace/1' is allowed"),
        ({"rounds": []}, "schema is missing; 'cactus-trace/1' is allowed"),
        ([], "the document is a list; an object is allowed"),
        ("{} {}", "not JSON: trailing characters"),
        ('{"schema": NaN}', "not JSON"),
        ('{"schema": ' + "9" * 5000 + "}", "not JSON: number out of range"),
        ('{"schema": "\\ud800"}', "not JSON"),
        ('{"schema": "\ud800"}', "character 12 is half a character (U+D800)"),
        (b"\xff\xfe{\0}\0", "not JSON"),
    ],
)
def test_a_fault_is_named_with_its_place_and_what_is_allowed(value, words):
    assert words in refusal(value)


def test_what_is_neither_text_nor_bytes_is_named():
    with pytest.raises(TraceError, match="from text or bytes, got dict"):
        Trace.from_json(document())  # type: ignore[arg-type]


def test_unknown_keys_are_ignored_so_that_a_version_may_gain_some():
    whole = document(later={"a": [1]})
    whole["rounds"][0]["tokens"][0]["later"] = 1
    assert Trace.from_json(json.dumps(whole)) == make_trace(3)


def test_of_equal_keys_the_last_counts_and_a_byte_order_mark_is_skipped():
    text = make_trace(3).to_json()
    assert Trace.from_json(BOM + text.encode()) == Trace.from_json("\ufeff" + text) == make_trace(3)
    assert Trace.from_json(text[:-1] + ', "pair": "other"}').pair == "other"


HUGE = {
    "many bad rounds": make_trace(3).to_json().replace('"rounds":[', '"rounds":[' + "1," * 1_500_000),
    "many bad ids": json.dumps(document(prompt=["x"] * 1_000_000)),
    "many unknown keys": json.dumps(document() | {f"k{i}": i for i in range(200_000)}),
    "many bad parameters": json.dumps(document(params={f"k{i}": None for i in range(200_000)})),
    "one round of very many tokens": json.dumps(
        document(rounds=[document()["rounds"][0] | {"tokens": [document()["rounds"][0]["tokens"][0]] * 10_000}])
    ),
    "a long text": json.dumps(document(pair="x" * 8_000_000, seed=None)),
    "many things and nothing needed": '{"schema": "cactus-trace/1", "a": [' + "[]," * 1_000_000 + "1]}",
    "deep": '{"a":' * 100_000,
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_document_is_answered_soon(name):
    """Each of them took minutes or gigabytes before reading was bounded, or could have."""
    started = time.process_time()
    try:
        Trace.from_json(HUGE[name])
    except TraceError as error:
        assert len(str(error)) < 300
    else:
        assert name == "many unknown keys"
    assert time.process_time() - started < 5


def test_what_would_fill_the_memory_is_refused_unread(monkeypatch):
    assert f"at most {MAX_PIECES:,}" in refusal(b"[" * (MAX_PIECES + 1))
    monkeypatch.setattr("cactus.documents.MAX_BYTES", 1000)
    assert "bytes; at most 1,000 are read" in refusal(make_trace(3).to_json())


def test_a_comparison_reads_back_and_names_its_faults():
    whole = Comparison(lanes=(make_trace(3), make_trace(2)))
    assert Comparison.from_json(whole.to_json()) == whole
    parts = json.loads(whole.to_json())
    parts["lanes"][1]["rounds"].reverse()
    assert "lanes[1]: round 0: index is 1" in refusal(parts, Comparison)
    parts["lanes"][1]["rounds"] = 1
    assert "lanes[1].rounds is 1; a list is allowed" in refusal(parts, Comparison)
    assert "schema is 'cactus-comparison/1'; 'cactus-trace/1' is allowed" in refusal(whole.to_json())


def test_the_command_checks_files_again(tmp_path: Path, capsys):
    (tmp_path / "a.json").write_text(make_trace(3).to_json(), encoding="utf-8")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(Comparison(lanes=(make_trace(2),) * 2).to_json().encode()))
    assert cli.main(["check", str(tmp_path / "a.json"), str(tmp_path / "b.json.gz")]) == 0
    one, two = capsys.readouterr().out.splitlines()
    assert "a.json: 3 rounds" in one and "b.json.gz: 2 lanes, 4 rounds" in two


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("no.json", None, "No such file"),
        ("bad.json", b"{", "bad.json: not a usable trace or comparison: not JSON"),
        ("bad.json.gz", b"{", "Not a gzipped file"),
        ("cut.json.gz", gzip.compress(bytes(9999), mtime=0)[:30], "cut.json.gz: "),
        ("torn.json.gz", gzip.compress(bytes(9999), mtime=0)[:12] + b"\xff" * 30, "torn.json.gz: "),
    ],
)
def test_the_command_names_a_bad_file_in_one_line(name, content, words, tmp_path: Path, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert cli.main(["check", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
