"""What a run's processes printed: the last lines of every rank's stdout and stderr, and of the node's."""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path

from launcher.commands.status import find


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="a run's name or directory; the newest if none")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="last lines of each file (default 20)")


def run(options: argparse.Namespace) -> int:
    """Print the files, newest attempt last."""
    for directory in find(options.runs)[-len(options.runs) or -1 :]:
        for path in sorted((directory / "logs").glob("**/*"), key=lambda path: path.as_posix()):
            if path.suffix in (".log", ".out", ".err") and path.stat().st_size:
                print(f"==> {path} <==")
                print("".join(_tail(path, options.lines)).rstrip("\n"))
    return 0


def _tail(path: Path, lines: int) -> deque[str]:
    with path.open(errors="replace") as file:
        return deque(file, maxlen=max(1, lines))
