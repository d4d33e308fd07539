"""The state of the git repository around a folder, asked so that nothing which the repository names is started.

A repository's own settings name programs: filters that git starts wherever it reads a tracked file, monitors, hooks,
drivers of differences, commands of remotes. All of them are switched off, the filters one by one by their names, so
that a file is compared by its bytes as they lie in the folder.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.base.frozen import dataclass

_NOTHING_ELSE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.bigFileThreshold=64m")
_NO_REMOTE = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
"""Of a clone of parts, git fetches what is missing by commands of its remote; versions before 2.44 know the first."""

_TIMEOUT_S = 10
_NAMES = ("status", "--porcelain", "-z", "-uno", "--no-renames", "--ignore-submodules=dirty")
_DIFFERENCE = (
    *("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", "--submodule=short", "--no-color"),
    *("-M", "-U3", "--inter-hunk-context=0", "--diff-algorithm=default", "--src-prefix=a/", "--dst-prefix=b/"),
)
"""The words for a difference in one form, since two are compared by their hash: settings of the user's have others."""

_OFF = {"clean": "", "smudge": "", "process": "", "required": "false"}  # Of a filter, by the last part of its keys.


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A repository beside its last commit."""

    commit: str  # That commit; ``(initial)`` where there is none yet.
    changed: tuple[str, ...]  # The names of tracked files that differ from it.
    difference: str | None  # How they do, as git writes it, empty where it cannot; None where none does.


def state(folder: Path) -> State | None:
    """The repository that a folder lies in; None outside of one, without git, and where it cannot be asked safely."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = Path(os.fsdecode(top.removesuffix(b"\n")))
    commit, filters = _git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}"), _filters(root)
    if filters is None:
        return None
    listed = _git(root, *filters, *_NAMES)
    if listed is None:
        return None
    changed = sorted(entry[3:] for entry in listed.split(b"\0") if entry)  # Behind two letters and a blank.
    with _copied_index(root) as index:
        text = _git(root, *filters, *_DIFFERENCE, index=index) if changed else None
    return State(
        commit="(initial)" if commit is None else commit.decode().strip(),
        changed=tuple(map(os.fsdecode, changed)),
        difference=(text or b"").decode(errors="replace") if changed else None,
    )


def _filters(root: Path) -> Sequence[str] | None:
    """Options that switch the filters of a repository off; None where one has a name that no option can hold."""
    listed = _git(root, "config", "--name-only", "-z", "--get-regexp", r"^filter\..*\.") or b""
    keys = [os.fsdecode(key) for key in listed.split(b"\0") if key]
    if any("=" in key for key in keys):
        return None
    names = dict.fromkeys(key.rpartition(".")[0] for key in keys)
    return [word for name in names for key, value in _OFF.items() for word in ("-c", f"{name}.{key}={value}")]


@contextlib.contextmanager
def _copied_index(root: Path) -> Iterator[Path]:
    """A copy of the index, which ``git diff`` may write, with its time, by which git tells which files it must read."""
    own = _git(root, "rev-parse", "--git-path", "index") or b""
    with tempfile.TemporaryDirectory(prefix="launch-git-") as folder:
        index = Path(folder) / "index"
        with contextlib.suppress(OSError):  # There is none before the first file is added.
            shutil.copy2(root / os.fsdecode(own.removesuffix(b"\n")), index)
        yield index


def _git(folder: Path, *words: str, index: Path | None = None) -> bytes | None:
    command, env = ["git", *_NOTHING_ELSE, *words], {**os.environ, **_NO_REMOTE}
    env |= {} if index is None else {"GIT_INDEX_FILE": str(index)}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
