"""The state of the git repository around a folder, asked so that nothing which the repository names is started.

A repository's own settings name programs: filters that git starts wherever it reads a tracked file, monitors, hooks,
drivers of differences, commands of remotes. So git is asked for its index and its objects alone, and what has changed
is told here: by size and time as the index has them, else by the bytes as they lie in the folder.
"""

import contextlib
import hashlib
import os
import re
import stat
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.base import files
from launcher.base.frozen import dataclass

_NOTHING_ELSE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_NO_REMOTE = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
"""Of a clone of parts, git fetches what is missing by commands of its remote; versions before 2.44 know the first."""

_TIMEOUT_S = 10
_MOST_BYTES = 1 << 26  # Of a larger changed file the difference holds size and time: a launch does not read terabytes.

_ENTRY = re.compile(
    rb"(?P<tag>\S) (?P<mode>\d{6}) (?P<name>[0-9a-f]+) (?P<stage>\d)\t(?P<path>[^\0]+)\0"
    rb"  ctime: \d+:\d+\n  mtime: (?P<seconds>\d+):(?P<rest>\d+)\n  [^\n]*\n  [^\n]*\n  size: (?P<size>\d+)\t[^\n]*\n"
)
"""An entry of ``git ls-files -t --stage --debug -z``."""

_NOT_THERE, _LINK, _MODULE = b"000000", b"120000", b"160000"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A repository beside its last commit."""

    commit: str  # That commit; ``(initial)`` where there is none yet.
    changed: tuple[str, ...]  # The names of tracked files that differ from it.
    difference: str | None  # How they do, as git writes it; None where none does.


def state(folder: Path) -> State | None:
    """The repository that a folder lies in; None outside of one, or without git."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        return None
    root = Path(os.fsdecode(top.removesuffix(b"\n")))
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    now = _changed(root)
    if now is None:
        return None
    paths = dict.fromkeys(sorted({*now, *(() if commit is None else _staged(root))}))
    name = "(initial)" if commit is None else commit.decode().strip()
    difference = _difference(root, {path: now.get(path) for path in paths}) if paths and commit is not None else None
    return State(
        commit=name,
        changed=tuple(os.fsdecode(path) for path in paths),
        difference=(difference or "") if paths else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The file in the folder in place of an entry of the index: its mode, and its bytes; None for a module."""

    mode: bytes
    content: bytes | None
    name: str


def _changed(root: Path) -> dict[bytes, _File] | None:
    listed = _git(root, "ls-files", "-t", "--stage", "--debug", "-z")
    if listed is None:
        return None
    written = _time_of_index(root)
    keeps_modes = (_git(root, "config", "--type=bool", "core.fileMode") or b"true").strip() != b"false"
    found = {}
    for entry in _ENTRY.finditer(listed):
        if entry["tag"] == b"S":  # Left out of the folder on purpose: sparse-checkout.
            continue
        now = _differs(root, entry, written, keeps_modes=keeps_modes)
        if now is not None:
            found[entry["path"]] = now
    return found


def _time_of_index(root: Path) -> int:
    """The time of the index in nanoseconds: a file that is not older may have changed within the same tick."""
    path = _git(root, "rev-parse", "--git-path", "index") or b""
    with contextlib.suppress(OSError):
        return (root / os.fsdecode(path.removesuffix(b"\n"))).stat().st_mtime_ns
    return 0


def _differs(root: Path, entry: re.Match[bytes], written: int, *, keeps_modes: bool) -> _File | None:
    path = root / os.fsdecode(entry["path"])
    length, mode = len(entry["name"]), entry["mode"]
    if mode == _MODULE:
        return _module(path, entry)
    try:
        facts = path.lstat()
    except OSError:
        return _File(mode=_NOT_THERE, content=None, name="0" * length)
    if not keeps_modes or stat.S_ISLNK(facts.st_mode):
        like = _LINK if stat.S_ISLNK(facts.st_mode) else mode
    else:
        like = b"100755" if facts.st_mode & 0o100 else b"100644"
    time = int(entry["seconds"]) * 10**9 + int(entry["rest"])
    same = (facts.st_mtime_ns, facts.st_size & 0xFFFFFFFF, like) == (time, int(entry["size"]), mode)
    if same and time < written and entry["stage"] == b"0":
        return None
    content = _bytes_of(path, facts) if files.real(path.parent).is_relative_to(files.real(root)) else None
    if content is None:  # It lies elsewhere by a link of a folder, or is no file.
        return _File(mode=_NOT_THERE, content=None, name="0" * length)
    name = _name(content, length)
    unchanged = (name.encode(), like, entry["stage"]) == (entry["name"], mode, b"0")
    return None if unchanged else _File(mode=like, content=content, name=name)


def _bytes_of(path: Path, facts: os.stat_result) -> bytes | None:
    try:
        if stat.S_ISLNK(facts.st_mode):
            return os.fsencode(path.readlink())
        if not stat.S_ISREG(facts.st_mode):
            return None
        if facts.st_size > _MOST_BYTES:
            return f"{facts.st_size} bytes, changed at {facts.st_mtime_ns} ns\n".encode()
        return files.read_bytes(path, _MOST_BYTES)
    except OSError:
        return None


def _module(path: Path, entry: re.Match[bytes]) -> _File | None:
    now = _git(path, "rev-parse", "--verify", "--quiet", "HEAD") if (path / ".git").exists() else None
    if now is None or now.strip() == entry["name"]:
        return None
    return _File(mode=_MODULE, content=None, name=now.decode().strip())


def _staged(root: Path) -> Iterator[bytes]:
    listed = _git(root, "diff-index", "--cached", "--no-renames", "--name-only", "-z", "HEAD") or b""
    yield from (path for path in listed.split(b"\0") if path)


def _difference(root: Path, changed: Mapping[bytes, _File | None]) -> str | None:
    """The difference from the last commit, made by git of objects alone: the files are put beside its own as such."""
    objects = _git(root, "rev-parse", "--git-path", "objects")
    index = _git(root, "rev-parse", "--git-path", "index")
    if objects is None or index is None:
        return None
    with tempfile.TemporaryDirectory(prefix="launch-git-") as folder:
        place = Path(folder)
        (place / "objects" / "info").mkdir(parents=True)
        own = root / os.fsdecode(objects.removesuffix(b"\n"))
        (place / "objects" / "info" / "alternates").write_bytes(os.fsencode(files.real(own)) + b"\n")
        with contextlib.suppress(OSError):
            own_index = files.read_bytes(root / os.fsdecode(index.removesuffix(b"\n")), files.MOST_OF_A_LOG)
            (place / "index").write_bytes(own_index)
        lines = []
        for path, now in changed.items():
            if now is None:  # It is as in the index.
                continue
            if now.content is not None:
                _put(place / "objects", now.name, now.content)
            lines.append(b"%s %s\t%s\0" % (now.mode if now.mode != _NOT_THERE else b"0", now.name.encode(), path))
        variables = {"GIT_INDEX_FILE": str(place / "index"), "GIT_OBJECT_DIRECTORY": str(place / "objects")}
        if _git(root, "update-index", "-z", "--index-info", asked=b"".join(lines), variables=variables) is None:
            return None
        words = ("diff-index", "--cached", "-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD")
        text = _git(root, *words, variables=variables)
    return None if text is None else text.decode(errors="replace")


def _name(content: bytes, length: int) -> str:
    """The name that git gives to bytes, in a repository of SHA-1 or of SHA-256."""
    how = hashlib.sha256 if length == hashlib.sha256().digest_size * 2 else hashlib.sha1
    return how(b"blob %d\0" % len(content) + content).hexdigest()


def _put(objects: Path, name: str, content: bytes) -> None:
    path = objects / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(b"blob %d\0" % len(content) + content, 1))


def _git(folder: Path, *words: str, asked: bytes = b"", variables: Mapping[str, str] | None = None) -> bytes | None:
    command, env = ["git", *_NOTHING_ELSE, *words], {**os.environ, **_NO_REMOTE, **(variables or {})}
    try:
        done = subprocess.run(command, cwd=folder, env=env, input=asked, capture_output=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
