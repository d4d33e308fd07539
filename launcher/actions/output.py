"""An answer that is to be printed: its JSON document, its text for a terminal, and the exit status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One answer in both forms.

    Attributes:
        document: Of ``--json``.
        text: For a terminal; empty prints nothing.
        exit_status: Of the command.
        said: Messages behind it, on stderr.
    """

    document: dict[str, Any]
    text: str
    exit_status: int = 0
    said: tuple[str, ...] = ()
