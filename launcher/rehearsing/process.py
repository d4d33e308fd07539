"""Runs the worker alone as one rank of a run: a process in a folder like a run directory, which holds its log."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL

from launcher.base import files, package, typed
from launcher.base.errors import ConfigError, ConfigErrors, JobFailed, SubmitError, unreadable
from launcher.job.memory import Rehearsed
from launcher.preflight.plan import translate
from launcher.spec import RunSpec
from launcher.spec.parse import to_dict

LOG, RESULT = "rehearse.log", "rehearsed.json"
_LAST_LINES = 12
_OF_THE_RUN = "LAUNCH_RUN"


def rehearse(
    spec: RunSpec, rank: int, *, steps: int, folder: Path, seconds: float, environment: Mapping[str, str]
) -> Rehearsed:
    """Run the worker as one rank, for some steps and at most so many seconds, and return its measurements.

    ``folder`` must not exist; ``environment`` is added to the job's. Raises ConfigErrors if the worker refuses the run,
    and JobFailed if it failed or took too long.
    """
    job = translate(spec, python=sys.executable).at(str(folder))
    try:
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps(to_dict(spec)))
        for name, text in job.files.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise SubmitError(f"the folder {folder} cannot be written: {unreadable(error)}") from None
    command = [sys.executable, "-P", "-m", "launcher.worker.rehearse", f"--run={folder}", f"--rank={rank}"]
    command += [f"--steps={steps}", f"--out={folder / RESULT}", "--", *job.worker_argv]
    return _answer(folder, _run(command, {**job.environment, **environment}, folder, seconds))


def _run(command: list[str], environment: Mapping[str, str], folder: Path, seconds: float) -> int:
    own = {"PYTHONPATH": package.python_path()}
    if _OF_THE_RUN in os.environ:  # Set in a Slurm job, whose node identifies leftover processes by it.
        own[_OF_THE_RUN] = os.environ[_OF_THE_RUN]
    with (folder / LOG).open("ab") as log:
        try:
            return subprocess.run(
                command,
                env={**os.environ, **environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=max(1.0, seconds),
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            rule = f"the rehearsal was ended after {seconds / 60:.1f} minutes, its limit; its log: {folder / LOG}"
            ways = "--minutes 60 gives it more time; --layers 1,2, train.sequence_length=... make it shorter"
            raise JobFailed(f"{rule}; {ways}") from None


def _answer(folder: Path, returncode: int) -> Rehearsed:
    content = files.read_json(folder / RESULT)
    if content is not None and "error" in content:
        raise ConfigErrors([ConfigError("rehearse", None, str(content["error"]))])
    try:
        if returncode == 0 and content is not None:
            return typed.read(Rehearsed, content)
    except typed.Unfit:
        raise JobFailed(f"{folder / RESULT} is from another version of the worker") from None
    killed = ": the kernel may have been out of memory, and --layers 1,2 builds less" if returncode == -SIGKILL else ""
    how = f"ended by signal {-returncode}{killed}" if returncode < 0 else f"exit status {returncode}"
    raise JobFailed(f"the rehearsed rank failed ({how}); its log, {folder / LOG}, ends:\n{_last_words(folder / LOG)}")


def _last_words(log: Path) -> str:
    lines = files.last_lines(log)
    errors = [number for number, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)]
    end = errors[-1] + 1 if errors else len(lines)
    return "\n".join(f"  {line}" for line in lines[max(0, end - _LAST_LINES) : end])


def gflops(dtype: str, environment: Mapping[str, str]) -> float | None:
    """Matrix product speed of this processor in GFLOP/s, measured for half a second; None if it cannot be measured."""
    name = {"bf16": "bfloat16", "fp16": "float16"}.get(dtype, "float32")
    program = (
        "import time, torch\n"
        f"a = torch.ones(1024, 1024, dtype=torch.{name})\n"
        "a @ a\n"
        "began, count = time.perf_counter(), 0\n"
        "while time.perf_counter() - began < 0.5:\n"
        "    a @ a; count += 1\n"
        "print(2 * 1024**3 * count / (time.perf_counter() - began) / 1e9)\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return float(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError):
        return None
