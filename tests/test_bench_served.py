"""The benchmark of a server, on recorded answers: what is counted, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served import RECORDED, Played, as_lines, events, playing

from cactus.bench.served import NOT_MEASURED, Load, parse_concurrent, table, verdicts
from cactus.cli import main
from cactus.errors import CactusError

CACTUS = "Cactus, delta = 1"


def load(concurrent: int, method: str, seconds: float, accepted_length: float | None = None) -> Load:
    return Load(concurrent, method, 100, seconds, (1.0, 2.0, 3.0), (0.1, 0.2, 0.3), accepted_length)


def alone() -> Played:
    """Answers of a server without speculation and without the plugin: a token at a time, no counts."""
    played = Played()
    played.plugin = played.counts = False
    every = events(RECORDED["chat"])
    for event in every[1:-1]:
        event["choices"][0]["token_ids"] = event["choices"][0]["token_ids"][:1]
    played.answer = as_lines([*every[:-1], every[-1] | {"metrics": None}])
    return played


def bench(out: Path, url: str, *args: str) -> int:
    few = ["--limit", "2", "--repeat", "2", "--max-new-tokens", "24", "--concurrent", "1,3"]
    return main(["bench", "--engine", "vllm", "--url", url, "--out", str(out), *few, *args])


def test_every_method_answers_every_prompt_under_every_load(tmp_path: Path) -> None:
    with playing() as server, playing(alone()) as other:
        assert bench(tmp_path, server.url, "--baseline-url", other.url) == 0
    loads = json.loads((tmp_path / "served.json").read_text())["methods"]
    methods = ["Verifier only", "Speculative sampling", "Cactus, delta = 0.1", CACTUS]
    assert [(one["concurrent"], one["method"]) for one in loads] == [(n, m) for n in (1, 3) for m in methods]
    for one in loads:
        count = 2 * max(2, one["concurrent"])
        assert len(one["latencies"]) == len(one["first_tokens"]) == count
        assert one["tokens"] == count * (8 if one["method"] == "Verifier only" else 24)
        assert (one["accepted_length"] is None) == (one["method"] == "Verifier only")
    counted = events(RECORDED["chat"])[-1]["metrics"]["speculative_decoding"]["per_step_accepted"]
    assert loads[-1]["accepted_length"] == pytest.approx(sum(counted) / len(counted))
    assert {body["vllm_xargs"]["cactus_method"] for body in server.asked if body.get("stream")} == {"sps", "cactus"}


def test_without_the_verifier_alone_nothing_is_said_to_pay(tmp_path: Path, capsys: Any) -> None:
    with playing() as server:
        bench(tmp_path, server.url)
    assert NOT_MEASURED in capsys.readouterr().out


def test_where_speculation_stops_paying_is_said() -> None:
    loads = [
        load(1, "Verifier only", 10.0), load(1, CACTUS, 5.0, 3.0), load(16, "Verifier only", 2.0),
        load(16, CACTUS, 2.5, 3.0),
    ]  # fmt: skip
    assert verdicts(loads) == [f"{CACTUS} does not pay at 16 (0.80×) concurrent requests."]
    assert verdicts(loads[:2]) == [f"{CACTUS} pays at every load measured."]
    assert table(loads)[2][:5] == ("1", CACTUS, "20.0", "2.00", "2.00")


@pytest.mark.parametrize("text", ["0", "1,x", "", "300"])
def test_loads_are_whole_numbers(text: str) -> None:
    with pytest.raises(CactusError, match="concurrent is"):
        parse_concurrent(text)


def test_a_server_needs_its_address(tmp_path: Path, capsys: Any) -> None:
    assert main(["bench", "--engine", "vllm", "--out", str(tmp_path)]) != 0
    assert "give both or neither" in capsys.readouterr().err
