"""What befalls a run while it is followed, said once each: hangs, slow ranks, jumps of the loss."""

from __future__ import annotations

from pathlib import Path

from launcher.base.saying import say
from launcher.job import events


class Events:
    """The lines of ``events.jsonl`` that come from now on."""

    def __init__(self, directory: Path) -> None:
        """Count those that are there."""
        self._directory = directory
        self._seen = len(events.news(directory))

    def say(self) -> None:
        """Say what is new."""
        found = events.news(self._directory)
        for line in found[self._seen :]:
            say(f"launch: {line['text']}")
        self._seen = len(found)
