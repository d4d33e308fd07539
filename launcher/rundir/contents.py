"""Reads the JSON files of a run directory and checks the types of their values.

A missing file is None. A file that cannot be read, or was not written by this program, raises :class:`BadRecord`.
"""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from launcher.base import files, typed
from launcher.base.errors import ConfigErrors, SubmitError, unreadable
from launcher.base.files import JsonObject
from launcher.base.process import Process
from launcher.job import RUN
from launcher.rundir import state
from launcher.spec import RunSpec
from launcher.spec.parse import parse

SPEC, PLAN, JOB, LOCK = "spec.json", "plan.json", "job.json", "run.lock.yaml"
STATE, MEMORY = "state.json", "memory.json"
SCHEMA = 1  # The schema of files that name one; another is refused, not translated.
_FOLDER = "it is a folder"

type _Object = Mapping[str, Any]
type _Texts = tuple[str, ...]
type _Cluster = Literal["local", "slurm"]

_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    Mapping: "an object {...}",
    Mapping[str, str]: "an object of texts",
    tuple[str, ...]: "a list of texts",
    tuple[_Object, ...]: "a list of objects {...}",
    Process: "a process {...}",
    Literal["local", "slurm"]: "local or slurm",
}
"""Types as messages name them."""

_TYPES: Mapping[str, Mapping[str, Any]] = {
    SPEC: {**dict.fromkeys(("model", "train", "data", "run", "cluster"), _Object), "script": str | None},
    PLAN: {
        "overrides": _Texts,
        "forced": bool,
        "static_bytes": int | None,
        **dict.fromkeys(("peak", "phases", "speed", "gpu"), _Object | None),
    },
    JOB: {
        **dict.fromkeys(("argv", "worker_argv", "pass_environment", "files"), _Texts),
        "environment": Mapping[str, str],
        "nodes": int,
        "gpus_per_node": int,
        "working_directory": str,
    },
    STATE: {
        "state": state.State,
        "reason": str | None,
        "time": float,
        "job_id": str | None,
        "keeper": Process,
        "agent": Process,
    },
    state.SUBMISSION: {"kind": _Cluster, "job_id": str | None, "comment": str, "index": int, "process": Process},
    state.NOT_SUBMITTED: {"reason": str},
    state.SWEEP: {"overrides": _Texts, "forced": bool, "points": tuple[_Object, ...], "measurement": _Object | None},
    "changes.json": {"changes": tuple[_Object, ...]},
    "attempts.json": {
        **dict.fromkeys(("count", "fruitless", "checkpoint"), int),
        "allocation": str,
        "failures": Mapping[str, int],
    },
    "tokens.json": {**dict.fromkeys(("folder", "digest", "attempt", "error"), str), "data": _Object},
    MEMORY: {"ranks": tuple[_Object, ...], "method": str},
    "home.json": {"directory": str, "inode": int},
}
"""Types of the keys that are read, by file; other keys are ignored."""

_REQUIRED = {
    STATE: ("state",),
    state.SUBMISSION: ("kind",),
    state.NOT_SUBMITTED: ("reason",),
    state.SWEEP: ("points",),
    "home.json": ("directory", "inode"),
}


class BadRecord(SubmitError):
    """Raised for a file of a run directory that cannot be read, or does not hold what this program writes."""

    def __init__(self, path: Path, rule: str) -> None:
        """Store the file and the rule that it breaks; the message ends with the way out."""
        self.path, self.rule = path, rule
        super().__init__(f"{path}: {rule}; {_way_out(path)}")

    @property
    def short(self) -> str:
        """The finding as a reason shown next to the run's name: with only the file's name."""
        return f"{self.path.name}: {self.rule}; {_way_out(self.path)}"


def _way_out(path: Path) -> str:
    run, file = shlex.quote(str(path.parent)), shlex.quote(str(path))
    if path.name in (STATE, state.SUBMISSION):
        return f"once no process of the run is left, `rm -r {file}`, and then `launch resume {run}`"
    if path.name in (SPEC, JOB):
        return f"restore it from a copy, or `launch run --from {run} save.load={run}` starts a new run like it"
    if path.name == state.SWEEP:
        point = shlex.quote(f"{path.parent}/000")
        return f"restore it from a copy; its runs can be resumed one by one: `launch resume {point}`"
    return f"restore it from a copy, or `rm -r {file}`"


def read(run: Path, name: str) -> JsonObject | None:
    """The content of a file of a run directory; None if there is no file. Raises :class:`BadRecord` if it is bad."""
    path = run / name
    content = _json(path)
    if content is _NOTHING:
        return None
    if not isinstance(content, dict):
        raise BadRecord(path, f"it holds {_shown(content)} and must hold an object {{...}}")
    if (schema := content.get("schema", SCHEMA)) != SCHEMA:
        raise BadRecord(path, f"it has schema {_shown(schema)}, and this version reads schema {SCHEMA}")
    for key, kind in _TYPES.get(name, {}).items():
        if key in content and not typed.reader(kind)(content[key])[0]:
            raise BadRecord(path, f"{key}={_shown(content[key])} must be {typed.describe(kind, _WORDS)}")
    for key in _REQUIRED.get(name, ()):
        if key not in content:
            raise BadRecord(path, f"it lacks {key}")
    return content


def known(run: Path, name: str) -> JsonObject:
    """Like :func:`read`, but empty if the file is missing or bad: for values that the caller can do without."""
    try:
        return read(run, name) or {}
    except BadRecord:
        return {}


def exists(run: Path, name: str) -> bool:
    """True if anything has this name, readable or not."""
    return os.path.lexists(run / name)


def require_no_links(run: Path) -> None:
    """Raise SubmitError if a file of a run is a symbolic link; folders may be, such as checkpoints on another disk."""
    links = [path for path in (*run.glob("*"), *run.glob("logs/*")) if path.is_symlink() and not path.is_dir()]
    for path in links:
        rule = "a run's files are written in its own folder"
        raise SubmitError(f"{path} leads to {path.readlink()} by a link, and {rule}: `rm {shlex.quote(str(path))}`")


def check_kind(run: Path, name: str) -> None:
    """Raise :class:`BadRecord` if a growing file exists as a folder, a pipe, a socket or a device."""
    try:
        files.check_kind(run / name)
    except IsADirectoryError:
        raise BadRecord(run / name, _FOLDER) from None
    except files.Refused as error:
        raise BadRecord(run / name, unreadable(error)) from None
    except OSError:  # It does not exist yet, or cannot be accessed, which its reader reports.
        return


def spec_of(run: Path) -> RunSpec:
    """The specification of a run. Raises :class:`BadRecord` if there is none, or if it cannot be read."""
    content = read(run, SPEC)
    if content is None:
        raise BadRecord(run / SPEC, "there is no such file")
    try:
        return parse(content)
    except ConfigErrors as error:
        first = error.errors[0]
        raise BadRecord(run / SPEC, f"{first.where}: {first.rule}") from None


def known_spec(run: Path) -> RunSpec | None:
    """Like :func:`spec_of`, but None if there is none, or if this version cannot read it."""
    try:
        return spec_of(run)
    except BadRecord:
        return None


def job_of(run: Path) -> JsonObject:
    """The job of a run with its directory for ``{run}``. Raises :class:`BadRecord` if it cannot be started."""
    content = read(run, JOB)
    if content is None:
        raise BadRecord(run / JOB, "there is no such file")
    for key in ("argv", "environment", "working_directory"):
        if not content.get(key) and content.get(key) != {}:
            raise BadRecord(run / JOB, f"it lacks {key}")
    filled: JsonObject = _put(content, RUN, str(run))
    return filled


def _put(content: Any, mark: str, text: str) -> Any:
    if isinstance(content, str):
        return content.replace(mark, text)
    if isinstance(content, list):
        return [_put(each, mark, text) for each in content]
    if isinstance(content, dict):
        return {key: _put(each, mark, text) for key, each in content.items()}
    return content


_NOTHING = object()


def _json(path: Path) -> object:
    try:
        text = files.read_text(path, files.MOST_OF_A_LOG)
        return json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return _NOTHING
    except IsADirectoryError:
        raise BadRecord(path, _FOLDER) from None
    except files.Refused as error:
        raise BadRecord(path, unreadable(error)) from None
    except OSError as error:
        raise BadRecord(path, f"it cannot be read: {unreadable(error)}") from None
    except UnicodeDecodeError:
        raise BadRecord(path, "it is not UTF-8 text") from None
    except ValueError as error:
        raise BadRecord(path, f"it is not JSON: {error}" if text.strip() else "it is empty") from None
    except RecursionError:
        raise BadRecord(path, "it is nested too deeply") from None


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
