"""Script: runs a command until it ends, or until its own input does: when who started it is gone, killed or not.

Imports nothing of this package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main(command: list[str]) -> int:
    """The command's exit code."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def watch() -> None:
        while os.read(0, 1):
            pass
        process.kill()

    threading.Thread(target=watch, daemon=True).start()
    return process.wait()


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]) % 256)  # at once: the other thread waits in the system
