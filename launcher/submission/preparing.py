"""The step before a job's ranks: its texts as token ids, made on the first node while the others wait."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from launcher.base import files
from launcher.base.errors import JobFailed
from launcher.base.files import JsonObject
from launcher.data import epoch, token_folder
from launcher.spec import RunSpec
from launcher.spec.parse import parse

_POLL_S = 0.1
_LOOK_S = 1.0  # Seconds between two looks at a file system that nodes share.

_UNSEEN_S = 60.0
"""Seconds after which a folder that another node has written is seen on any file system that nodes share."""


def preparing_job(directory: Path, ranks: JsonObject, attempt: str) -> JsonObject | None:
    """The job that makes the token ids, in the ranks' own Python and on all cores; None where the run needs none."""
    spec = _spec(directory)
    if spec is None or not token_folder.is_tokenised(spec):
        return None
    if (found := token_folder.pointed(directory, spec.data)) is not None:
        token_folder.point(directory, spec.data, found, attempt, epoch.steps_of(spec, found))
        return None
    argv = [ranks["argv"][0], "-P", "-m", "launcher.worker.prepare", f"--run={directory}", f"--attempt={attempt}"]
    return {**ranks, "argv": argv, "environment": {**ranks["environment"], "TOKENIZERS_PARALLELISM": "true"}}


def wait(process: subprocess.Popen[bytes], stopped: Callable[[], bool]) -> None:
    """Wait for the step; end it when the job is told to stop."""
    while process.poll() is None:
        time.sleep(_POLL_S)
        if stopped():
            process.terminate()
            process.wait()


def failure(directory: Path, attempt: str, returncode: int) -> str | None:
    """Why the step has failed, as it noted itself or as its end shows; None where it was told to stop."""
    content = files.read_json(directory / token_folder.POINTER) or {}
    if content.get("attempt") == attempt and "error" in content:
        return str(content["error"])
    if returncode == -signal.SIGKILL:
        return "making token ids was ended by SIGKILL: the kernel may have been out of memory"
    return None


def wait_for_tokens(directory: Path, attempt: str, node: int, stopped: Callable[[], bool]) -> bool:
    """On another node: wait for what the first one makes, or for its error (JobFailed); False where told to stop."""
    spec = _spec(directory)
    if spec is None or not token_folder.is_tokenised(spec):
        return True
    while not stopped():
        content = files.read_json(directory / token_folder.POINTER) or {}
        if content.get("attempt") == attempt:
            if "error" in content:
                raise JobFailed(content["error"])
            folder, rank = token_folder.folder_of(content, directory), node * spec.cluster.gpus_per_node
            return _wait_until_seen(folder, directory, rank, stopped)
        time.sleep(_LOOK_S)
    return False


def _wait_until_seen(folder: Path, directory: Path, rank: int, stopped: Callable[[], bool]) -> bool:
    """Wait until the folder is there; where it never is, leave an error as a rank does, which the first node reads."""
    until = time.monotonic() + _UNSEEN_S
    while token_folder.read(folder) is None:
        if stopped():
            return False
        if time.monotonic() > until:
            message = (
                f"node {os.uname().nodename} does not see the token ids in {folder}: name a folder that all nodes share"
                f" by cluster.shared_folder or {token_folder.CACHE}"
            )
            content = {"type": "DataError", "message": message, "traceback": ""}
            files.write_atomically(directory / "logs" / f"error.rank{rank}.json", content)
            return False
        time.sleep(_LOOK_S)
    return True


def _spec(directory: Path) -> RunSpec | None:
    content = files.load_json(directory / "spec.json")
    return parse(content) if "data" in content else None
