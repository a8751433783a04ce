"""Checksums of a folder of weights, in the form that `sha256sum --check` reads. Knows nothing of what the files are."""

from __future__ import annotations

import hashlib
from pathlib import Path

SUMS = "SHA256SUMS"
CONFIG, WEIGHTS = "config.json", "model*.safetensors*"  # what `files.filling` has to know of such a folder
SUMMED = ("*.safetensors", "*.json", "*.jinja")


def write_sums(folder: Path) -> None:
    """Of the weights, configuration and tokenizer that are there."""
    lines = [f"{_digest(path)}  {path.name}\n" for path in _files(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8", newline="\n")


def damaged(folder: Path) -> str:
    """The first file that is missing or altered, in words; empty where all are whole or no sums were ever written.

    `OSError` where a file cannot be read.
    """
    if not (folder / SUMS).exists():
        return ""
    for number, line in enumerate((folder / SUMS).read_bytes().splitlines(), 1):
        digest, _, name = line.decode("utf-8", "replace").partition("  ")
        if len(digest) != 64 or not name:
            return f"line {number} of {SUMS} is no checksum"
        if not (folder / name).exists():
            return f"{name} is missing"
        if _digest(folder / name) != digest:
            return f"{name} is damaged: its checksum differs"
    return ""


def _files(folder: Path) -> list[Path]:
    return sorted(path for pattern in SUMMED for path in folder.glob(pattern))


def _digest(path: Path) -> str:
    """Of text with the line breaks it was made with: a checkout may have turned them."""
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            return hashlib.file_digest(file, "sha256").hexdigest()
        return hashlib.sha256(file.read().replace(b"\r\n", b"\n")).hexdigest()
