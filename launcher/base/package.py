"""The package itself: its version, its folder, and the command that installs an extra.

``FOLDER`` is ``launcher/``; ``IMPORT_FOLDER`` is its parent, which goes on the ``PYTHONPATH`` of a Python that must
import the same ``launcher``.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

NAME = "llm-launch"  # The distribution's name.
__version__ = "0.1.0"
FOLDER = Path(__file__).parent.parent
IMPORT_FOLDER = FOLDER.parent
TRAINING = "fsdp"  # The extra with torch, ``transformers`` and ``datasets``; the other engines' extras include it.


def install(extra: str) -> str:
    """Return the pip command that installs an extra for this Python, which may differ from the shell's."""
    return shlex.join([sys.executable, "-m", "pip", "install", f"llm-launch[{extra}]"])


def python_path() -> str:
    """Return the ``PYTHONPATH`` for a process that must import this launcher, followed by the paths already set."""
    return os.pathsep.join(filter(None, (str(IMPORT_FOLDER), os.environ.get("PYTHONPATH"))))


def run_module(
    module: str, *words: str, timeout_s: float, python: str = sys.executable, text: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a module of this package in another Python, with one thread, and return its status and what it printed.

    ``text`` is its standard input. Raises ``subprocess.TimeoutExpired`` after ``timeout_s`` seconds.
    """
    import subprocess  # Late, because few commands start another Python.

    return subprocess.run(
        [python, "-P", "-W", "ignore", "-m", module, *words],
        input=text,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def shipped(kind: str) -> Path:
    """Return the shipped ``conf`` or ``recipes`` folder: inside the installed package, or next to it in a checkout."""
    inside = FOLDER / "_shipped" / kind
    return inside if inside.is_dir() else IMPORT_FOLDER / kind
