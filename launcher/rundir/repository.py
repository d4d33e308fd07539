"""Reads the state of the git repository around a folder, without starting any program that the repository configures.

A repository's settings can name programs: filters that git runs whenever it reads a tracked file, monitors, hooks, diff
drivers, remotes' commands. All are disabled, filters one by one by name, so a file is compared by its raw bytes.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from launcher.base.files import JsonObject

_NOTHING_ELSE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.bigFileThreshold=64m")
_NO_REMOTE = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
"""In a partial clone, git fetches missing objects through its remote; git before 2.44 knows only the first variable."""

_TIMEOUT_S = 10
_DIFF_BYTES = 200_000  # Of a longer diff only the hash is recorded.
_NAMES = ("status", "--porcelain", "-z", "-uno", "--no-renames", "--ignore-submodules=dirty")
_DIFFERENCE = (
    *("diff", "HEAD", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", "--submodule=short", "--no-color"),
    *("-M", "-U3", "--inter-hunk-context=0", "--diff-algorithm=default", "--src-prefix=a/", "--dst-prefix=b/"),
)
"""Options that fix the form of a diff whatever the user's settings are, since diffs are compared by their hash."""

_OFF = {"clean": "", "smudge": "", "process": "", "required": "false"}  # Disables a filter, by the last part of keys.


@cache  # A sweep records many runs of one folder.
def state(folder: Path) -> JsonObject | None:
    """The repository around a folder: its last commit, the names of files that differ from it, the diff and its hash.

    None if there is none, without git, or if it cannot be read safely. The diff is empty if git cannot make it.
    """
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
    changed = sorted(entry[3:] for entry in listed.split(b"\0") if entry)  # Skips two status letters and a blank.
    with _copied_index(root) as index:
        text = _git(root, *filters, *_DIFFERENCE, index=index) if changed else None
    difference = (text or b"").decode(errors="replace") if changed else None
    held = None if difference is None else hashlib.sha256(difference.encode()).hexdigest()
    return {
        "commit": "(initial)" if commit is None else commit.decode().strip(),
        "dirty": bool(changed),
        "changed": list(map(os.fsdecode, changed)),
        "diff_sha256": held,
        "diff": f"{len(difference)} characters, sha256 {held}\n"
        if difference and len(difference) > _DIFF_BYTES
        else difference,
    }


def _filters(root: Path) -> Sequence[str] | None:
    """Options that disable the filters of a repository; None if a filter's name cannot be put into an option."""
    listed = _git(root, "config", "--name-only", "-z", "--get-regexp", r"^filter\..*\.") or b""
    keys = [os.fsdecode(key) for key in listed.split(b"\0") if key]
    if any("=" in key for key in keys):
        return None
    names = dict.fromkeys(key.rpartition(".")[0] for key in keys)
    return [word for name in names for key, value in _OFF.items() for word in ("-c", f"{name}.{key}={value}")]


@contextlib.contextmanager
def _copied_index(root: Path) -> Iterator[Path]:
    """A copy of the index for ``git diff`` to update, with its original time, by which git decides what to read."""
    own = _git(root, "rev-parse", "--git-path", "index") or b""
    with tempfile.TemporaryDirectory(prefix="launch-git-") as folder:
        index = Path(folder) / "index"
        with contextlib.suppress(OSError):  # There is no index before the first file is added.
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
