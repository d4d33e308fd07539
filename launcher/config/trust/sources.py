"""Trust: files from elsewhere are foreign until trusted, and trust is recorded for exact bytes.

Reading, checking and showing a foreign file needs no permission and has no side effects; to run it, its privileged
settings (``trust.privileged_settings``) need permission: ``--trust``, or ``launch recipe trust FILE`` before.

A file is the user's own if it is shipped, was written by ``launch`` from the user's own words, or is in ``recipes/`` or
``conf/`` of the working folder, belongs to this user, and the folder is not in a repository with an untrusted remote.
Files that nobody writes by hand, a lock and everything in ``runs/``, are the user's own only by their bytes, unless
the user trusts the repository that they came with. A file is foreign in any case if it was fetched, imported, or saved
from a foreign one: these are recognized by their hash, by the path that they were written to, even if edited since,
and by the code that they name, wherever it was copied to.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from launcher.base import files, secret
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.base.package import shipped
from launcher.config.trust import privileged_settings
from launcher.config.trust import store as trust_store
from launcher.config.trust.privileged_settings import PrivilegedSetting
from launcher.config.trust.store import TrustRecord
from launcher.spec import RunSpec

_RUNS = ("runs",)
_OWN_FOLDERS = ("recipes", *_RUNS, "conf")
_LOSSES = b"\nlosses:"
ELSEWHERE = "it is not in recipes/, runs/ or conf/ of the working folder"
NOT_WRITTEN = "its bytes are not those that `launch` wrote for you"
_REMOTE = re.compile(r'^\s*\[\s*remote\s+"(.*)"\s*\]', re.IGNORECASE)
_SECTION = re.compile(r"^\s*\[")
_URL = re.compile(r"^\s*url\s*=\s*(.+?)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file or folder with settings, and its privileged settings."""

    path: Path  # The recipe, the lock, the imported file, or the option of a group.
    privileged: Sequence[PrivilegedSetting]  # Settings that need the user's permission.
    written: bool = False  # True for a lock: only ``launch`` writes these, nobody by hand.


def needs_of_spec(spec: RunSpec) -> list[str]:
    """Return the privileged settings of a whole specification, one sentence each."""
    return [str(setting) for setting in privileged_settings.of_spec(spec)]


def require(sources: Iterable[Source], *, folder: Path, given: bool) -> None:
    """Allow sources that are the user's own or trusted; if ``--trust`` is ``given``, record the others as trusted.

    Raises ConfigErrors: A source is from elsewhere, and ``--trust`` is not given.
    """
    asking = [(source, reason) for source in sources if (reason := why_foreign(source, folder=folder)) is not None]
    if asking and not given:
        raise ConfigErrors(_refusal(source, reason, folder) for source, reason in asking)
    for source, _ in asking:
        note_trusted(source.path)


def _refusal(source: Source, reason: str, folder: Path) -> ConfigError:
    privileged = "; ".join(map(str, source.privileged))
    rule = f"it is from elsewhere and needs your permission: {privileged}; {reason}"
    near = source.path.absolute().is_relative_to(folder)
    name = str(source.path.absolute().relative_to(folder) if near else source.path)
    ways = ["--trust", f"launch recipe trust {shlex.quote(name)}"]
    if untrusted_remotes(source.path) and _lies_in(source.path, folder):
        ways.append("launch recipe trust --origin")
    return ConfigError(name, None, rule, ways)


def why_foreign(source: Source, *, folder: Path) -> str | None:
    """Return why a source needs the user's permission; None if nothing is privileged, or it is their own or trusted."""
    if not source.privileged:
        return None
    return origin_of(source.path, source.privileged, folder=folder, written=source.written)


def is_foreign(path: Path, *, folder: Path, privileged: Sequence[PrivilegedSetting] = ()) -> bool:
    """True if a file is from elsewhere and not trusted, whatever it sets."""
    return origin_of(path, privileged, folder=folder) is not None


def origin_of(
    path: Path, privileged: Sequence[PrivilegedSetting], *, folder: Path, written: bool = False
) -> str | None:
    """Return the origin of an untrusted file, as a clause; None if the file is the user's own or trusted."""
    if any(files.real(path).is_relative_to(files.real(shipped(kind))) for kind in ("recipes", "conf")):
        return None
    known, content = trust_store.known(), files.read_bytes(path)
    digest = _digest(content)
    if digest in known.trusted or _head(content) in known.locks:
        return None
    if (source := known.foreign.get(digest)) is not None:
        return f"it is from {source}"
    if (source := known.places.get(str(files.real(path)))) is not None:
        return f"it was from {source} before it was edited"
    for setting in privileged:
        if setting.mark in known.marks:
            return f"it names the same code as a file from {known.marks[setting.mark]}"
    if not _lies_in(path, folder):
        return ELSEWHERE
    return _not_written_here(path, known, by_hand=not written and not _lies_in(path, folder, _RUNS))


def _not_written_here(path: Path, known: TrustRecord, *, by_hand: bool) -> str | None:
    """Why an unrecorded file in the user's folders may be somebody else's; None if it is the user's own."""
    if path.stat().st_uid != os.getuid():
        return "it belongs to another user"
    urls = remotes(path)
    if unknown := [url for url in urls if url not in known.origins]:
        return f"it is in a repository from {' and '.join(unknown)}, which is not trusted"
    return None if by_hand or urls else NOT_WRITTEN


def untrusted_remotes(path: Path) -> list[str]:
    """Return the untrusted remotes of the repository around a file."""
    known = trust_store.known()
    return [url for url in remotes(path) if url not in known.origins]


def note_foreign(path: Path, content: bytes, source: str, privileged: Iterable[PrivilegedSetting]) -> None:
    """Record content and path of a file from elsewhere, before it is written there.

    Raises ConfigErrors: It cannot be recorded; the file must then not be written.
    """
    marks = [setting.mark for setting in privileged if setting.runs_code]
    place = str(files.real(path))
    trust_store.add("foreign", sha256=_digest(content), path=place, source=secret.redacted(source), marks=marks)


def note_own(path: Path, content: bytes) -> None:
    """Record the content of a file made from the user's own words, before it is written.

    Raises ConfigErrors: It cannot be recorded.
    """
    trust_store.add("trusted", sha256=_digest(content), path=str(files.real(path)))


def note_lock(text: str) -> None:
    """Record the lock of a user's own run; its losses are added later and do not count."""
    trust_store.add("lock", sha256=_head(text.encode()))


def note_trusted(path: Path) -> None:
    """Record a file's current content as trusted."""
    note_own(path, files.read_bytes(path))


def _lies_in(path: Path, folder: Path, names: Sequence[str] = _OWN_FOLDERS) -> bool:
    place = files.real(path)
    return any(place.is_relative_to(files.real(folder) / name) for name in names)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _head(content: bytes) -> str:
    """The hash of a lock without its losses, which are appended when the run has ended."""
    return _digest(content.partition(_LOSSES)[0])


# The origin of a repository.


def remotes(place: Path) -> tuple[str, ...]:
    """Return the URLs of all remotes of the repository around a file or folder; empty without a repository."""
    resolved = files.real(place)
    for git in (folder / ".git" for folder in (resolved, *resolved.parents)):
        if git.exists():
            try:
                return _addresses(files.read_text(_configuration(git), errors="replace"))
            except OSError:  # Stands for a URL that nobody trusts.
                return (f"a repository whose {git} cannot be read",)
    return ()


def _configuration(git: Path) -> Path:
    if git.is_file():
        place = git.parent / files.read_text(git, errors="replace").removeprefix("gitdir:").strip()
        common = place / "commondir"
        git = place / files.read_text(common, errors="replace").strip() if common.is_file() else place
    return git / "config"


def _addresses(text: str) -> tuple[str, ...]:
    found, inside = list[str](), False
    for line in text.splitlines():
        if _SECTION.match(line):
            remote = _REMOTE.match(line)
            inside, line = remote is not None, line[remote.end() :] if remote else ""
        if inside and (match := _URL.match(line)):
            found.append(_without_secrets(match[1].strip('"')))
    return tuple(dict.fromkeys(found))


def _without_secrets(url: str) -> str:
    """A URL without user name and password, which must not appear in records or messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if not parts.scheme:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
