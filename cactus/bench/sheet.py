"""A small report: one table with what was measured, on what, by which command; as JSON and for reading."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from cactus.bench import machine
from cactus.bench.machine import in_words
from cactus.bench.plan import Plan
from cactus.commands import pairs
from cactus.files import write_whole


@dataclass(frozen=True)
class Sheet:
    """name: of its files; rows: the first are the headings; methods: the same in full, for the JSON file."""

    name: str
    title: str
    notes: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    methods: Sequence[dict[str, Any]]

    def write(self, plan: Plan, device: torch.device, folder: Path, command: str) -> None:
        """Of a pair's benchmark."""
        self.save(f"{plan.pair}; {plan.loaded}", plan.versions, device, folder, command)

    def save(self, pair: str, versions: Mapping[str, str], device: torch.device, folder: Path, command: str) -> None:
        """Both files into the folder, the table onto the terminal."""
        record = {
            "command": command,
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "pair": pair,
            "machine": machine.describe(device),
            "versions": versions,
            "notes": self.notes,
            "methods": self.methods,
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{self.name}.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n")
        write_whole(folder / f"{self.name}.md", self._markdown(record))
        sys.stdout.write(pairs.table(list(self.rows)) + f"\nreport: {folder / f'{self.name}.md'}\n")

    def _markdown(self, record: dict[str, Any]) -> str:
        head, *lines = self.rows
        rows = [head, ["---"] * len(head), *lines]
        facts = [
            f"- pair: {record['pair']}",
            f"- machine: {in_words(record['machine'])}",
            f"- versions: {', '.join(f'{name} {version}' for name, version in record['versions'].items())}",
            f"- date: {record['date']}",
        ]
        parts = [
            f"# {self.title}",
            f"```\n{record['command']}\n```",
            "\n".join(facts),
            "\n".join("| " + " | ".join(row) + " |" for row in rows),
            "\n".join(f"- {note}" for note in self.notes),
        ]
        return "\n\n".join(parts) + "\n"
