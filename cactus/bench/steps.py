"""What single steps take: a draft step, verifier passes over 1 to 17 tokens, launched one by one or as graphs.

First it is checked that the device computes what the CPU does, in float32: logits close, greedy texts equal token for
token. Then steps are timed as a run makes them, and each is set against the time that reading the weights takes at
the memory's bandwidth: no pass over few tokens can be faster than that.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from cactus.bench import machine
from cactus.bench.against_cpu import check
from cactus.bench.shapes import Models, models_of
from cactus.bench.step_report import rows, to_markdown, verdicts
from cactus.bench.step_times import TEXT, measured_bandwidth, time_steps
from cactus.commands.pairs import table
from cactus.files import write_whole
from cactus.models import choose_device, choose_dtype
from cactus.models.slots import WIDEST
from cactus.versions import versions


def measure(models: Models, device: torch.device) -> dict[str, Any]:
    """The record of one machine and pair; progress goes to stderr."""
    parts = {"draft": models.draft, "verify": models.verifier}
    checks = []
    for name, model in parts.items():
        _say(f"checking {name} against the CPU")
        checks.append(check(name, model, device))
    _say("timing steps")
    bandwidth = measured_bandwidth(device)
    steps = time_steps("draft", models.draft, [1]) + time_steps("verify", models.verifier, range(1, WIDEST + 1))
    return {
        "pair": models.name,
        "weights": models.weights,
        "dtype": str(models.verifier.dtype).removeprefix("torch."),
        "parameters": {name: model.num_parameters() for name, model in parts.items()},
        "machine": machine.describe(device),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "text_tokens": TEXT,
        "bandwidth": bandwidth,
        "checks": [asdict(item) | {"passed": item.passed} for item in checks],
        "steps": [asdict(step) | {"bandwidth_share": step.share(bandwidth)} for step in steps],
    }


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def run(
    source: str,
    draft: str | None,
    changes: dict[str, int],
    device: str,
    dtype: str,
    out: Path,
    command: str,
) -> int:
    """Check, time, print, and leave steps.json and steps.md in `out`; 1 if device and CPU do not compute the same."""
    where = choose_device(device)
    models = models_of(source, draft, changes, where, choose_dtype(dtype, where))
    record = {"command": command} | measure(models, where)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "steps.json", json.dumps(record, indent=2) + "\n")
    write_whole(out / "steps.md", to_markdown(record))
    sys.stdout.write("\n".join([table(rows(record)), *verdicts(record), f"report: {out / 'steps.md'}"]) + "\n")
    return 0 if all(item["passed"] for item in record["checks"]) else 1
