"""Where a repository's files come from: the addresses of its remotes, read from git's own files without running git.

Git runs programs that a repository's configuration names, and the question is asked of repositories that are not
trusted yet. A repository without a remote is the work of whoever made it here.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from launcher.base import files

_REMOTE = re.compile(r'^\s*\[\s*remote\s+"(.*)"\s*\]', re.IGNORECASE)
_SECTION = re.compile(r"^\s*\[")
_URL = re.compile(r"^\s*url\s*=\s*(.+?)\s*$", re.IGNORECASE)


def remotes(place: Path) -> tuple[str, ...]:
    """The addresses of all remotes of the repository that a file or folder lies in; none where it lies in none."""
    resolved = files.real(place)
    for folder in (resolved, *resolved.parents):
        git = folder / ".git"
        if git.exists():
            try:
                return _addresses(files.read_text(_configuration(git), errors="replace"))
            except OSError:  # It stands for an address that nobody trusts.
                return (f"a repository whose {git} cannot be read",)
    return ()


def _configuration(git: Path) -> Path:
    """The configuration of a repository; that of a worktree or a submodule lies where its file ``.git`` says."""
    if git.is_file():
        place = git.parent / files.read_text(git, errors="replace").removeprefix("gitdir:").strip()
        common = place / "commondir"
        git = place / files.read_text(common, errors="replace").strip() if common.is_file() else place
    return git / "config"


def _addresses(text: str) -> tuple[str, ...]:
    """The addresses of all remotes of a configuration."""
    found, inside = list[str](), False
    for line in text.splitlines():
        if _SECTION.match(line):
            remote = _REMOTE.match(line)
            inside, line = remote is not None, line[remote.end() :] if remote else ""
        if inside and (match := _URL.match(line)):
            found.append(_without_secrets(match[1].strip('"')))
    return tuple(dict.fromkeys(found))


def _without_secrets(url: str) -> str:
    """An address without the name and password that it may hold, which belong into no record and no message."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if not parts.scheme:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
