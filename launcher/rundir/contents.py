"""The JSON files of a run directory, read with the types of their values checked.

A file that is not there is None: no run has all of them. One that cannot be read, is cut off, or holds values of other
types than this program writes raises :class:`BadRecord`, which says the file, what was found, the rule and the way out.
Keys that are not listed here are left alone, so that files of other versions are read, too.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, get_args

from launcher.base import files
from launcher.base.errors import ConfigErrors, SubmitError, unreadable
from launcher.job.job import RUN
from launcher.rundir import state
from launcher.spec import RunSpec
from launcher.spec.parse import parse

SPEC, PLAN, JOB, LOCK = "spec.json", "plan.json", "job.json", "run.lock.yaml"
STATE, MEMORY = "state.json", "memory.json"

_MOST = 1 << 63
"""Whole numbers beyond are no count, size, process id or step."""

_FOLDER = "it is a folder"

STATES: tuple[state.State, ...] = get_args(state.State.__value__)

type _Kind = tuple[str, Callable[[Any], bool]]
"""What a value must be, in words, and the test for it."""


def is_whole(value: object) -> TypeGuard[int]:
    """True for a whole number of a size that counts, ids and bytes have."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite number."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _optional(kind: _Kind) -> _Kind:
    return f"{kind[0]} or null", lambda value: value is None or kind[1](value)


def _list_of(kind: _Kind, words: str) -> _Kind:
    return words, lambda value: isinstance(value, list) and all(map(kind[1], value))


_TEXT: _Kind = ("a text", lambda value: isinstance(value, str))
_WHOLE: _Kind = ("a whole number", is_whole)
_NUMBER: _Kind = ("a number", is_number)
_FLAG: _Kind = ("true or false", lambda value: isinstance(value, bool))
_MAPPING: _Kind = ("an object {...}", lambda value: isinstance(value, dict))
_TEXTS = _list_of(_TEXT, "a list of texts")
_MAPPINGS = _list_of(_MAPPING, "a list of objects {...}")
_VARIABLES: _Kind = ("an object of texts", lambda value: isinstance(value, dict) and all(map(_TEXT[1], value.values())))
_STATE: _Kind = (f"one of {', '.join(STATES)}", lambda value: value in STATES)
_PROCESS: _Kind = (
    "a process {...} or its number",
    lambda value: is_whole(value) or isinstance(value, dict),
)  # A bare pid in older records.
_CLUSTER: _Kind = ("local or slurm", lambda value: value in ("local", "slurm"))

_FIELDS: Mapping[str, Mapping[str, _Kind]] = {
    SPEC: {**dict.fromkeys(("model", "train", "data", "run", "cluster"), _MAPPING), "script": _optional(_TEXT)},
    PLAN: {
        "overrides": _TEXTS,
        "forced": _FLAG,
        "peak": _optional(_MAPPING),
        "phases": _optional(_MAPPING),
        "static_bytes": _optional(_WHOLE),
        "speed": _optional(_MAPPING),
        "gpu": _optional(_MAPPING),
    },
    JOB: {
        "argv": _TEXTS,
        "worker_argv": _TEXTS,
        "environment": _VARIABLES,
        "pass_environment": _TEXTS,
        "nodes": _WHOLE,
        "gpus_per_node": _WHOLE,
        "files": _TEXTS,
        "working_directory": _TEXT,
    },
    STATE: {
        "state": _STATE,
        "reason": _optional(_TEXT),
        "time": _NUMBER,
        "job_id": _optional(_TEXT),
        "keeper": _PROCESS,
        "agent": _PROCESS,
        "process_group": _PROCESS,
    },
    state.SUBMISSION: {
        "kind": _CLUSTER,
        "job_id": _optional(_TEXT),
        "comment": _TEXT,
        "index": _WHOLE,
        "process": _PROCESS,
    },
    state.NOT_SUBMITTED: {"reason": _TEXT},
    state.SWEEP: {"overrides": _TEXTS, "forced": _FLAG, "points": _MAPPINGS, "measurement": _optional(_MAPPING)},
    "changes.json": {"changes": _MAPPINGS},
    "attempts.json": {
        "count": _WHOLE,
        "fruitless": _WHOLE,
        "checkpoint": _WHOLE,
        "allocation": _TEXT,
        "failures": _MAPPING,
    },
    "tokens.json": {"folder": _TEXT, "digest": _TEXT, "data": _MAPPING, "attempt": _TEXT, "error": _TEXT},
    MEMORY: {"ranks": _MAPPINGS, "method": _TEXT},
    "home.json": {"directory": _TEXT, "inode": _WHOLE},
}
_REQUIRED = {
    STATE: ("state",),
    state.SUBMISSION: ("kind",),
    state.NOT_SUBMITTED: ("reason",),
    state.SWEEP: ("points",),
    "home.json": ("directory", "inode"),
}


class BadRecord(SubmitError):
    """A file of a run directory that cannot be read, or does not hold what this program writes."""

    def __init__(self, path: Path, rule: str) -> None:
        """Keep the file and what is wrong with it; the message ends with the way out."""
        self.path, self.rule = path, rule
        super().__init__(f"{path}: {rule}; {_way_out(path)}")

    @property
    def short(self) -> str:
        """The finding as a reason beside the run's name: the file's name alone."""
        return f"{self.path.name}: {self.rule}; {_way_out(self.path)}"


def _way_out(path: Path) -> str:
    run, file = shlex.quote(str(path.parent)), shlex.quote(str(path))
    if path.name in (STATE, state.SUBMISSION):
        return f"once nothing of the run lives any more, `rm -r {file}`, and then `launch resume {run}`"
    if path.name in (SPEC, JOB):
        return f"put it back from a copy, or `launch run --from {run} save.load={run}` starts another run of it"
    if path.name == state.SWEEP:
        return (
            f"put it back from a copy; its runs go on one by one: `launch resume {shlex.quote(f'{path.parent}/000')}`"
        )
    return f"put it back from a copy, or `rm -r {file}`"


def read(run: Path, name: str) -> dict[str, Any] | None:
    """The content of a file of a run directory; None where there is no such file.

    Raises:
        BadRecord: It cannot be read, or does not hold what it should.
    """
    path = run / name
    content = _json(path)
    if content is _NOTHING:
        return None
    if not isinstance(content, dict):
        raise BadRecord(path, f"it holds {_shown(content)} and must hold an object {{...}}")
    for key, (words, fits) in _FIELDS.get(name, {}).items():
        if key in content and not fits(content[key]):
            raise BadRecord(path, f"{key}={_shown(content[key])} must be {words}")
    for key in _REQUIRED.get(name, ()):
        if key not in content:
            raise BadRecord(path, f"it lacks {key}")
    return content


def known(run: Path, name: str) -> dict[str, Any]:
    """As :func:`read`, and nothing where the file is missing or bad: for figures that a reader can do without."""
    try:
        return read(run, name) or {}
    except BadRecord:
        return {}


def exists(run: Path, name: str) -> bool:
    """True if there is anything of this name, also what cannot be read."""
    try:
        (run / name).lstat()
    except (OSError, ValueError):  # A name with a null byte.
        return False
    return True


def require_no_links(run: Path) -> None:
    """Refuse a run or sweep before anything of it is written, where a file would be written elsewhere through a link.

    Folders may be links: checkpoints on another disk are a use of them.

    Raises:
        SubmitError: One of its files, or of its logs, is a link.
    """
    links = [path for path in (*run.glob("*"), *run.glob("logs/*")) if path.is_symlink() and not path.is_dir()]
    for path in links:
        rule = "a run's files are written in its own folder"
        raise SubmitError(f"{path} leads to {path.readlink()} by a link, and {rule}: `rm {shlex.quote(str(path))}`")


def check_kind(run: Path, name: str) -> None:
    """See whether a file that grows is one, where it is there.

    Raises:
        BadRecord: It is a folder, a pipe, a socket or a device.
    """
    try:
        files.check_kind(run / name)
    except IsADirectoryError:
        raise BadRecord(run / name, _FOLDER) from None
    except files.Refused as error:
        raise BadRecord(run / name, unreadable(error)) from None
    except OSError:  # It is not there yet, or not to be looked at, which its reader says.
        return


def spec_of(run: Path) -> RunSpec:
    """The specification of a run.

    Raises:
        BadRecord: There is none, or this version cannot read it.
    """
    content = read(run, SPEC)
    if content is None:
        raise BadRecord(run / SPEC, "there is no such file")
    try:
        return parse(content)
    except ConfigErrors as error:
        first = error.errors[0]
        raise BadRecord(run / SPEC, f"{first.where}: {first.rule}") from None


def job_of(run: Path) -> dict[str, Any]:
    """The job of a run as it is started in the run's own place: with the run directory where it says ``{run}``.

    Raises:
        BadRecord: There is none, or it does not say what is started and where.
    """
    content = read(run, JOB)
    if content is None:
        raise BadRecord(run / JOB, "there is no such file")
    for key in ("argv", "environment", "working_directory"):
        if not content.get(key) and content.get(key) != {}:
            raise BadRecord(run / JOB, f"it lacks {key}")
    filled: dict[str, Any] = put(content, RUN, str(run))
    return filled


def put(content: Any, mark: str, text: str) -> Any:
    """JSON with a text in place of a mark, in every value."""
    if isinstance(content, str):
        return content.replace(mark, text)
    if isinstance(content, list):
        return [put(each, mark, text) for each in content]
    if isinstance(content, dict):
        return {key: put(each, mark, text) for key, each in content.items()}
    return content


_NOTHING = object()


def _json(path: Path) -> object:
    """What a file holds.

    Raises:
        BadRecord: It cannot be read.
    """
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
