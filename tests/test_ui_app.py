"""Starting the page: light to import, and open to this machine alone unless told otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_nothing_heavy_is_imported_before_main():
    heavy = python("import app, sys; print(sorted({'torch', 'gradio', 'transformers', 'plotly'} & set(sys.modules)))")
    assert heavy.strip() == "[]"


@pytest.mark.parametrize(
    ("args", "env", "host"),
    [
        ([], {}, "127.0.0.1"),
        (["--host", "0.0.0.0"], {}, "0.0.0.0"),
        ([], {"GRADIO_SERVER_NAME": "0.0.0.0"}, "0.0.0.0"),
        ([], {"SPACE_ID": "someone/cactus"}, "0.0.0.0"),
    ],
)
def test_where_it_listens(args, env, host):
    code = f"""
import os
for name in ("GRADIO_SERVER_NAME", "SPACE_ID"): os.environ.pop(name, None)
os.environ.update({env!r})
import app
print(app.address(app.parse_args({args!r})))
"""
    assert python(code).strip() == host
