"""How an extra of this distribution is installed, as a line to paste."""

from __future__ import annotations

import shlex
import sys

TRAINING = "fsdp"
"""The extra with torch, ``transformers`` and ``datasets``, which those of the other engines include."""


def install(extra: str) -> str:
    """The command of pip for this Python, which need not be the one of the shell; the launcher that is there stays."""
    return shlex.join([sys.executable, "-m", "pip", "install", f"llm-launch[{extra}]"])
