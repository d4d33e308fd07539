"""Trust: what came from elsewhere is foreign until trusted, and trust is recorded for exact bytes.

Reading, checking and showing a foreign file asks for nothing and lets nothing of it act; to run it, the settings of it
that act (``config.privileged_settings``) need the user's word: ``--trust``, or ``launch recipe trust FILE`` before.

A file is the user's own if it was shipped, was written by ``launch`` from the user's own words, or lies in
``recipes/`` or ``conf/`` of the working folder, belongs to this user, and the folder is in no repository that has a
remote which is not trusted. What nobody writes by hand, a lock and all that lies in ``runs/``, is their own by its
bytes alone, unless they trust the repository that it came with. A file is foreign all the same where it was fetched,
imported, or saved from what is foreign: these are known by their hash, by the place that they were written to, whatever
was edited there since, and by the code that they name, wherever it was copied to.
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
from launcher.config.trust.store import Known
from launcher.spec import RunSpec

_RUNS = ("runs",)
_OWN_FOLDERS = ("recipes", *_RUNS, "conf")
_LOSSES = b"\nlosses:"
ELSEWHERE = "it does not lie in recipes/, runs/ or conf/ of the working folder"
NOT_WRITTEN = "it is not what `launch` has written for you, byte by byte"
_REMOTE = re.compile(r'^\s*\[\s*remote\s+"(.*)"\s*\]', re.IGNORECASE)
_SECTION = re.compile(r"^\s*\[")
_URL = re.compile(r"^\s*url\s*=\s*(.+?)\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file or folder with settings, and the settings in it that act."""

    path: Path  # The recipe, the lock, the imported file, or the option of a group.
    privileged: Sequence[PrivilegedSetting]  # What needs the user's word.
    written: bool = False  # True for a lock: ``launch`` writes them, and nobody by hand.


def needs_of_spec(spec: RunSpec) -> list[str]:
    """Privileged settings of a whole specification that need the user's word, a sentence each."""
    return [str(setting) for setting in privileged_settings.of_spec(spec)]


def require(sources: Iterable[Source], *, folder: Path, given: bool) -> None:
    """Allow sources that are the user's own or trusted; trust the others from now on where ``--trust`` is ``given``.

    Raises ConfigErrors: A source is from elsewhere, and nobody has said so.
    """
    asking = [(source, reason) for source in sources if (reason := why_foreign(source, folder=folder)) is not None]
    if asking and not given:
        raise ConfigErrors(_refusal(source, reason, folder) for source, reason in asking)
    for source, _ in asking:
        note_trusted(source.path)


def _refusal(source: Source, reason: str, folder: Path) -> ConfigError:
    privileged = "; ".join(map(str, source.privileged))
    rule = f"it is from elsewhere and would do what needs your word: {privileged}; {reason}"
    near = source.path.absolute().is_relative_to(folder)
    name = str(source.path.absolute().relative_to(folder) if near else source.path)
    ways = ["--trust", f"launch recipe trust {shlex.quote(name)}"]
    if untrusted_remotes(source.path) and _lies_in(source.path, folder):
        ways.append("launch recipe trust --origin")
    return ConfigError(name, None, rule, ways)


def why_foreign(source: Source, *, folder: Path) -> str | None:
    """The reason why a source needs the user's word; None where it wants nothing, is their own or trusted."""
    if not source.privileged:
        return None
    return origin_of(source.path, source.privileged, folder=folder, written=source.written)


def is_foreign(path: Path, *, folder: Path, privileged: Sequence[PrivilegedSetting] = ()) -> bool:
    """True if a file is from elsewhere and not trusted, whatever it wants."""
    return origin_of(path, privileged, folder=folder) is not None


def origin_of(
    path: Path, privileged: Sequence[PrivilegedSetting], *, folder: Path, written: bool = False
) -> str | None:
    """The origin of a file that is not trusted, as a clause; None for one that is the user's own or trusted."""
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
            return f"it names the same as a file from {known.marks[setting.mark]}"
    if not _lies_in(path, folder):
        return ELSEWHERE
    return _not_written_here(path, known, by_hand=not written and not _lies_in(path, folder, _RUNS))


def _not_written_here(path: Path, known: Known, *, by_hand: bool) -> str | None:
    """Why a file without a record, in a folder of the user's, may be somebody else's; None for the user's own."""
    if path.stat().st_uid != os.getuid():
        return "it belongs to another user"
    urls = remotes(path)
    if unknown := [url for url in urls if url not in known.origins]:
        return f"it lies in a repository from {' and '.join(unknown)}, which is not trusted"
    return None if by_hand or urls else NOT_WRITTEN


def untrusted_remotes(path: Path) -> list[str]:
    """The addresses of the repository around a file that are not trusted."""
    known = trust_store.known()
    return [url for url in remotes(path) if url not in known.origins]


def note_foreign(path: Path, content: bytes, source: str, privileged: Iterable[PrivilegedSetting]) -> None:
    """Record what a file from elsewhere will hold and where it will lie, before it is written there.

    Raises ConfigErrors: It cannot be recorded; the file is then not to be written.
    """
    marks = [setting.mark for setting in privileged if setting.runs_code]
    place = str(files.real(path))
    trust_store.add("foreign", sha256=_digest(content), path=place, source=secret.hidden(source), marks=marks)


def note_own(path: Path, content: bytes) -> None:
    """Record what a file of the user's own words will hold, before it is written.

    Raises ConfigErrors: It cannot be recorded.
    """
    trust_store.add("trusted", sha256=_digest(content), path=str(files.real(path)))


def note_lock(text: str) -> None:
    """Record the lock of a run of the user's own; its losses are added later and do not count."""
    trust_store.add("lock", sha256=_head(text.encode()))


def note_trusted(path: Path) -> None:
    """Record a file as it is now as trusted."""
    note_own(path, files.read_bytes(path))


def _lies_in(path: Path, folder: Path, names: Sequence[str] = _OWN_FOLDERS) -> bool:
    place = files.real(path)
    return any(place.is_relative_to(files.real(folder) / name) for name in names)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _head(content: bytes) -> str:
    """The hash of a lock without its losses, with which ours end: they are added when the run has ended."""
    return _digest(content.partition(_LOSSES)[0])


# The origin of a repository.


def remotes(place: Path) -> tuple[str, ...]:
    """The addresses of all remotes of the repository that a file or folder lies in; none where it lies in none."""
    resolved = files.real(place)
    for git in (folder / ".git" for folder in (resolved, *resolved.parents)):
        if git.exists():
            try:
                return _addresses(files.read_text(_configuration(git), errors="replace"))
            except OSError:  # It stands for an address that nobody trusts.
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
    """An address without the name and password that it may hold, which belong into no record and no message."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if not parts.scheme:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
