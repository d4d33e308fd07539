"""How ranks recognise a full disk behind what a writer raises."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from launcher.job import events
from launcher.worker import out_of_memory, saving


def test_a_full_disk_is_recognised_behind_the_writers_own_error(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert out_of_memory.is_full(CheckpointException("save", {0: (full, [])}))  # type: ignore[dict-item]
    assert not out_of_memory.is_full(OSError(errno.EACCES, "Permission denied"))
    assert saving.why(OSError(errno.EDQUOT, "Disk quota exceeded"), tmp_path) == (True, "no space left on the disk")
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert saving.why(refused, tmp_path) == (False, "PermissionError: [Errno 13] Permission denied")


def test_a_save_tells_its_bytes_and_seconds_and_of_a_background_one_those_that_training_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((10.0, 11.5, 14.0, 20.0, 21.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    context: Any = SimpleNamespace(rank=0, world=1, directory=tmp_path)
    found = saving.Saving(context, lambda: None)
    folder = tmp_path / "checkpoints" / "step-00000005"
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "a").write_bytes(bytes(700))
    assert found.together(5, folder, lambda: None, last=False)
    found.released(5)
    found.note(folder, 5)
    assert found.together(6, folder, lambda: None, last=True)
    found.note(folder, 6)
    told = [{key: line.get(key) for key in ("seconds", "blocking_seconds", "bytes")} for line in events.read(tmp_path)]
    assert told == [
        {"seconds": 4.0, "blocking_seconds": 1.5, "bytes": 700},
        {"seconds": 1.0, "blocking_seconds": None, "bytes": 700},
    ]


def test_an_error_without_a_text_is_its_name() -> None:
    assert saving.reason(EOFError()) == "EOFError"
