"""Files of JSON lines, of which the whole objects are read and the rest is passed over."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.base import files


def of_file(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file; none where it is missing or cannot be read."""
    with contextlib.suppress(OSError), io.TextIOWrapper(files.opened(path), errors="replace") as file:
        for line in file:
            content: Any = None
            with contextlib.suppress(ValueError, RecursionError):
                content = json.loads(line)
            if isinstance(content, dict):
                yield content
