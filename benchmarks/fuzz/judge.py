"""Runs a case in its own folder and judges the answer."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shlex
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit  # noqa: F401  # Now, because its import closes log handlers, and absl's then closes a stream not in use.

from benchmarks.fuzz.case import Case
from benchmarks.fuzz.mutation import HOSTILE, MARK
from benchmarks.fuzz.odd import MAKERS
from launcher.cli import main as launch
from tests.support.odd_files import no_longer_than

_STATUSES = {"check": (0, 2, 3), "show": (0, 2, 3), "plan": (0, 2, 3), "import": (0, 2)}
_OTHER_STATUSES = (0, 2, 3, 4, 5)
"""Of docs/contract/commands.md, without 1, a fault of ``launch`` itself."""

_HANGS_S = 300
"""By the clock: what waits for a pipe takes no time of the processor, and never ends."""

_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that act on a terminal, or hide on it what a line says."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault found by a case."""

    case: Case
    what: str

    def __str__(self) -> str:
        files = self.case.files
        other = {
            name: content for name, content in files.items() if files.get(name.replace("fuzzed", "whole")) != content
        }
        shown = "".join(f"--- {name}\n{content[:2000]!r}\n" for name, content in (other or files).items())
        odd = "".join(f"--- {name}\n{what}\n" for name, what in self.case.odd.items())
        return f"launch {shlex.join(self.case.words)}\n{odd}{shown}{self.what}\n"


def fault(case: Case, folder: Path, limit_s: float = math.inf) -> str | None:
    """Run a case in an empty folder, which is emptied again; return what is wrong with the answer, or None.

    Args:
        case: The words and their files.
        folder: Where they lie.
        limit_s: Seconds of processor time that the answer may take.
    """
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    for name, what in case.odd.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        MAKERS[what](folder / name)
    try:
        return _fault(case, folder, limit_s)
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _fault(case: Case, folder: Path, limit_s: float) -> str | None:
    before = _files(folder)
    out, err = io.StringIO(), io.StringIO()
    begin = time.process_time()
    try:
        with (
            no_longer_than(_HANGS_S),
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = launch(case.words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except Exception:
        return traceback.format_exc()
    seconds = time.process_time() - begin
    if status not in _STATUSES.get(case.words[0], _OTHER_STATUSES):
        return f"exit status {status}: {err.getvalue()[-2000:]}"
    if seconds > limit_s:
        return f"it took {seconds:.1f} s"
    if _files(folder) - before:
        return f"files were written: {sorted(_files(folder) - before)}"
    return _wrong(case, status, out.getvalue(), err.getvalue())


def _wrong(case: Case, status: int, out: str, err: str) -> str | None:
    if "Traceback (most recent" in err:
        return f"a traceback: {err[-2000:]}"
    raw = _RAW.search(out) or _RAW.search(err)
    if raw is not None:
        return f"the terminal gets {raw[0]!r}: {raw.string[max(0, raw.start() - 200) : raw.end() + 50]!r}"
    if case.answers is not None and (lines := out.splitlines()) is not None:
        bad = [line for line in lines if not _is_object(line)]
        if len(lines) != case.answers or bad:
            return f"{len(lines)} answers for {case.answers} lines: {out[:500]!r} {err[-500:]!r}"
    if case.words[0] == "import" and "--json" in case.words:
        return not_parted(case, out)
    if case.words[0] == "show" and status in (0, 3) and "--json" not in case.words:
        return unquoted(out)
    return None


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def not_parted(case: Case, out: str) -> str | None:
    """A key of an imported file that is in none or in two of the answer's lists; for JSON all keys are checked."""
    document = json.loads(out)
    found = document["import"]
    if found is None:
        return None if document["errors"] else "nothing is imported, and nothing wrong"
    named = [entry["key"] for name in ("said", "left_out") for entry in found[name]]
    entered = [*named, *found["default"], *found["kept"]]
    if len(entered) != len({*entered}):
        return f"a key is in two lists: {sorted(entered)}"
    words = {word for said in found["said"] for word in said["overrides"]}
    if not words <= {*found["overrides"]}:
        return f"a key is said by what is no override: {sorted(words - {*found['overrides']})}"
    try:
        content = json.loads(next(iter(case.files.values())))
    except ValueError:
        return None  # Other formats, as DeepSpeed's Hjson, have no second reader here.
    if case.words[1] == "megatron" or not isinstance(content, dict):
        return None
    other = {*entered} ^ {*_leaves(content)}
    return f"in no list, or in one and not in the file: {sorted(other)}" if other else None


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def unquoted(text: str) -> str | None:
    """A hostile value that a shell would run: a word with the mark must hold the whole value."""
    job, _, sbatch = text.partition("\n# sbatch\n")
    command = job.partition("\n\n")[0]
    for part in (command, *(line for line in sbatch.splitlines() if not line.startswith("#"))):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            return f"a quote of a value does not end: {part}"
        for word in words:
            if MARK in word and not any(value in word for value in HOSTILE):
                return f"a value acts in the shell: {word!r} of {part}"
    return None
