"""The package itself: its version, where it lies, and how an extra of it is installed.

``FOLDER`` is ``launcher/``; ``IMPORT_FOLDER`` is the folder that holds it, which goes on the ``PYTHONPATH`` of a Python
that is to import the same ``launcher`` as this one.
"""

import os
import shlex
import sys
from pathlib import Path

NAME = "llm-launch"  # The distribution's name.
__version__ = "0.1.0"
FOLDER = Path(__file__).parent.parent
IMPORT_FOLDER = FOLDER.parent
TRAINING = "fsdp"  # The extra with torch, ``transformers`` and ``datasets``, which those of the other engines include.


def install(extra: str) -> str:
    """The command of pip for this Python, which need not be the one of the shell; the launcher that is there stays."""
    return shlex.join([sys.executable, "-m", "pip", "install", f"llm-launch[{extra}]"])


def python_path() -> str:
    """``PYTHONPATH`` of a process that is to import this launcher, with the paths that are set already behind."""
    return os.pathsep.join(filter(None, (str(IMPORT_FOLDER), os.environ.get("PYTHONPATH"))))


def shipped(kind: str) -> Path:
    """The shipped ``conf`` or ``recipes`` folder: inside the installed package, or beside it in a checkout."""
    inside = FOLDER / "_shipped" / kind
    return inside if inside.is_dir() else IMPORT_FOLDER / kind
