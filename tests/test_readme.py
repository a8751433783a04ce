"""What the README shows works: its Python runs, its commands parse, its calls over the network are answered."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cactus import cli
from cactus.documents import read_document
from cactus.trace import Trace

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PYTHON = [code for kind, code in BLOCKS if kind == "python"]
SHELL = [line for kind, code in BLOCKS if kind in ("", "bash", "sh") for line in code.replace("\\\n", " ").splitlines()]
COMMANDS = [line for line in SHELL if line.startswith("python -m cactus ")]
CURL = [line for line in SHELL if line.startswith("curl ")]
LOCAL = "http://127.0.0.1:7860"
OVER_THE_NETWORK = [code for code in PYTHON if "gradio_client" in code]


@pytest.fixture(scope="module")
def address(pocket: Any) -> Any:
    """The page, with the pair that needs no download for every other."""
    from pages import Site

    from cactus.session import Session

    site = Site(Session(load_pair=lambda spec, progress: pocket))
    yield site.address.rstrip("/")
    site.demo.close()


def run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("number", range(len(PYTHON) - len(OVER_THE_NETWORK)))
def test_its_python_runs(number, tmp_path, monkeypatch, capsys):
    """With the pair that needs no download; what needs other models or libraries imports what there is."""
    code = [code for code in PYTHON if code not in OVER_THE_NETWORK][number]
    if not re.search(r'load_pair\("(smollm2-135m|pocket)"\)', code):
        code = "\n".join(re.findall(r"^(?:from|import) cactus.*$", code, re.MULTILINE))
    names = run(code.replace('"smollm2-135m"', '"pocket"'), tmp_path, monkeypatch)
    for saved in tmp_path.glob("*.json"):
        assert Trace.from_json(saved.read_bytes()).check() == []
    if "metrics" in names:
        assert f"{names['metrics'].accepted_length} {names['metrics'].speedup}" in capsys.readouterr().out


def test_its_python_client_runs(address, tmp_path, monkeypatch, capsys):
    assert OVER_THE_NETWORK
    for code in OVER_THE_NETWORK:
        names = run(code.replace(LOCAL, address), tmp_path, monkeypatch)
        assert read_document(json.dumps(names["trace"]), "trace", Trace).checked().text == names["text"]
        assert names["table"][0]["lane"] == "Verifier only"


def test_its_curl_calls_are_answered(address):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    event = ""
    assert CURL
    for line in CURL:
        words = shlex.split(line.replace(LOCAL, address).replace("EVENT_ID", event), comments=True)
        answer = subprocess.run([*words, "--max-time", "60"], capture_output=True, text=True, check=True).stdout
        if answer.startswith("{"):
            event = json.loads(answer)["event_id"]
        else:
            assert "event: complete" in answer and "smollm2-135m" in answer


@pytest.mark.parametrize("line", COMMANDS)
def test_its_commands_parse(line):
    name, *rest = shlex.split(line.split(" && ")[0], comments=True)[3:]
    parser = cli.Parser(prog=name)
    import_module(cli.COMMANDS[name].module).add_arguments(parser)
    parser.parse_args(rest)


def test_its_address_of_the_schema_is_there():
    """Every path in backquotes or behind a link of this repository exists."""
    root = Path(__file__).resolve().parents[1]
    paths = re.findall(r"\]\((assets/[^)#]+)\)", README)
    assert paths and [path for path in paths if not (root / path).exists()] == []


@pytest.mark.parametrize("name", ["generate", "compare"])
def test_every_parameter_of_the_api_is_described(name):
    """On the API's own page and to MCP clients, which read the docstrings."""
    import inspect

    from gradio.utils import get_function_description

    from cactus.ui.api import Endpoints

    endpoint = getattr(Endpoints, name)
    described = get_function_description(endpoint)[1]
    assert [parameter for parameter in inspect.signature(endpoint).parameters if not described.get(parameter)] == [
        "self"
    ]
