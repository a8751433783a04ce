"""What people are told of files and folders: names, not where on this machine they lie. Pages are read by strangers."""

from __future__ import annotations

import re
from pathlib import Path

# An absolute path of two parts or more, not the end of an address, of a relative path or of a repository's id.
_PATH = re.compile(r"(?<![\w./\\:~-])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\"`<>|:;,()]+[/\\])+([^\s/\\'\"`<>|:;,()]*)")


def place_name(source: str | Path) -> str:
    """The last part of a path, absolute or not, that is there or is spelt like one; a hub id as it is."""
    path = Path(source).expanduser()
    if isinstance(source, Path) or path.is_absolute() or path.exists():
        return path.resolve().name or str(path)
    return str(source)


def without_folders(text: str) -> str:
    """Absolute paths in a message cut down to their last part."""
    return _PATH.sub(lambda found: found[1] or found[0].rstrip("/\\").replace("\\", "/").rpartition("/")[2], text)
