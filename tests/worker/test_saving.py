"""How ranks recognise a full disk behind what a writer raises."""

from __future__ import annotations

import errno
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException

from launcher.worker import saving, shortage


def test_a_full_disk_is_recognised_behind_the_writers_own_error(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert shortage.is_full(CheckpointException("save", {0: (full, [])}))  # type: ignore[dict-item]
    assert not shortage.is_full(OSError(errno.EACCES, "Permission denied"))
    assert saving.why(OSError(errno.EDQUOT, "Disk quota exceeded"), tmp_path) == (True, "no space left on the disk")
    refused = PermissionError(errno.EACCES, "Permission denied")
    assert saving.why(refused, tmp_path) == (False, "PermissionError: [Errno 13] Permission denied")
