"""A row's own process: it imports while the previous row is measured, and uses the GPU only when told to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from launcher.base.package import IMPORT_FOLDER
from launcher.preflight.plan import translate
from launcher.spec import RunSpec
from launcher.spec.parse import to_dict

_LAST_WORDS = 15
"""Lines of a crashed process that are kept."""

_OUT_OF_MEMORY = ("OutOfMemoryError", "CUDA out of memory", "CUDA error: out of memory")


class RankProcess:
    """``benchmarks.gpu.rank`` on a run's directory."""

    def __init__(self, spec: RunSpec, directory: Path) -> None:
        """Start it; it waits once it has imported what it needs."""
        self._directory, self._log = directory, directory / "log"
        environment = prepared(spec, directory)
        command = [sys.executable, "-m", "benchmarks.gpu.rank", str(directory), "--wait"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
                cwd=IMPORT_FOLDER, start_new_session=True,
            )  # fmt: skip

    def measured(self, timeout: float) -> dict[str, Any]:
        """Let it measure.

        Args:
            timeout: Seconds; a process that takes longer is ended.

        Returns:
            What it measured, or ``error`` and its ``last_words``.
        """
        with contextlib.suppress(OSError):  # It may have failed while it imported.
            if self._process.stdin is not None:
                self._process.stdin.write("go\n")
                self._process.stdin.flush()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            return {"error": f"not done after {timeout:.0f} s", "last_words": self._last_words()}
        finally:
            self.end()
        answer = self._directory / "measured.json"
        if answer.exists():
            content: dict[str, Any] = json.loads(answer.read_text())
            return {"error": "out of memory"} if content.get("out_of_memory") else content
        return self._failure()

    def end(self) -> None:
        """End it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _failure(self) -> dict[str, Any]:
        words, code = self._last_words(), self._process.returncode
        if any(mark in line for mark in _OUT_OF_MEMORY for line in words):
            return {"error": "out of memory", "last_words": words}
        ending = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return {"error": words[-1] if words and code > 0 else ending, "last_words": words}

    def _last_words(self) -> list[str]:
        lines = self._log.read_text(errors="replace").splitlines()
        return [line.rstrip()[:1000] for line in lines if line.strip()][-_LAST_WORDS:]


def prepared(spec: RunSpec, directory: Path) -> dict[str, str]:
    """Write the process's input; return its environment, with this checkout and the unpacked packages on its path."""
    job = translate(spec, python=sys.executable).at(str(directory))
    (directory / "spec.json").write_text(json.dumps(to_dict(spec)))
    (directory / "arguments.json").write_text(json.dumps(job.worker_argv))
    for name, text in job.files.items():
        (directory / name).write_text(text)
    return {**os.environ, **job.environment, "PYTHONPATH": import_path()}


def import_path() -> str:
    """``PYTHONPATH`` of every process: the checkout first, since ``PYTHONSAFEPATH`` may leave it out."""
    rest = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return os.pathsep.join(dict.fromkeys([str(IMPORT_FOLDER), *rest]))
