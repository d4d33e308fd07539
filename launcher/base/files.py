"""Atomic writing of files, and reading of untrusted files within limits, which are defined here for all readers."""

import codecs
import contextlib
import errno
import fcntl
import io
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

type JsonObject = dict[str, Any]
"""A JSON object as the json module reads and writes it."""

MOST_BYTES = 1 << 20
"""Limit in bytes of a file that people write: a recipe, a lock, a configuration, an argument list, a line of points."""

MOST_OF_A_SCRIPT = 1 << 17
"""Limit in characters of shell text with variables expanded: ``shlex`` needs time quadratic in a word's length."""

MOST_OF_A_RECORD = 1 << 26  # Limit in bytes of a JSON file that programs write: a sweep may have many points.
MOST_OF_A_LOG = 1 << 28
"""Limit in bytes of a file that grows with every step or point: a million lines of metrics."""

MOST_NODES = 100_000  # Limit of values in a YAML file; a lock has some two thousand.
DEEPEST = 12  # Limit of nesting depth; a specification has four levels.
LARGEST = 2**64 - 1
"""No setting, size or count is larger, and products of a few such numbers still fit in a float."""


def write_atomically(path: Path, content: JsonObject) -> None:
    """Write JSON under a temporary name and move it into place: a reader sees the old file or the new one."""
    write_text_atomically(path, json.dumps(content) + "\n")


def write_text_atomically(path: Path, text: str) -> None:
    """Write text under a temporary name and move it into place: a reader sees the old file or the new one."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write bytes under a temporary name and move them into place; on a full disk nothing is left behind."""
    with _written_beside(path, content) as temporary:
        temporary.replace(path)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, and its folder, atomically; raises FileExistsError if it exists."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _written_beside(path, content) as temporary:
        try:
            path.hardlink_to(temporary)  # Unlike a rename it fails if another process was faster.
        except FileExistsError:
            raise
        except OSError:  # A file system without hard links.
            temporary.rename(path)


def require_room(folder: Path, size: int) -> None:
    """Raise OSError unless ``size`` bytes can be allocated in a folder: statvfs does not report what a quota leaves."""
    path = folder / f".room.{os.getpid()}"
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _written_beside(path: Path, content: bytes) -> Iterator[Path]:
    """The content under a temporary name, removed afterwards; the name is cut, since it may have at most 255 bytes."""
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def real(path: Path) -> Path:
    """Return the path with links resolved; a link to itself is kept (``Path.resolve`` raises before Python 3.13)."""
    return Path(os.path.realpath(path))


def expanded(path: str) -> Path:
    """Return the path with a leading ``~`` expanded as in a shell; unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def similar_paths(typed: str | Path) -> list[str]:
    """Return up to three existing paths with names similar to that of a missing one, spelled as typed."""
    import difflib  # Imported late: most files exist.

    path = expanded(str(typed))
    try:
        names = () if path.exists() else os.listdir(path.parent)  # noqa: PTH208
    except OSError:
        return []
    start = str(typed).removesuffix("/").removesuffix(path.name)
    return [f"{start}{name}" for name in difflib.get_close_matches(path.name, names, cutoff=0.8)]


class Refused(OSError, ValueError):
    """A file that is not read: it is not a regular file, or exceeds the size limit."""


_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_HANDED = ("/dev/stdin", "/dev/fd/")
"""Prefixes of files that the caller's shell opened for this process, as for ``<(command)``."""


def opened(path: Path, *, handed: bool = False) -> io.BufferedReader:
    """Open a regular file for reading: opening a pipe may block forever, and a device may have no end.

    ``handed`` also allows a pipe that the shell opened for this command. Raises OSError if the file cannot be read, and
    Refused if it is a pipe, a socket or a device.
    """
    return open(descriptor(path, os.O_RDONLY, handed=handed), "rb")


def descriptor(path: Path, flags: int, *, handed: bool = False) -> int:
    """Return the descriptor of a regular file, opened without blocking; see ``os.open`` and :func:`opened`.

    A file that it creates has mode 0666, less the umask.
    """
    try:
        found = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # A socket, or a pipe without a reader opened for writing.
            check_kind(path, path.stat().st_mode)
        raise
    try:
        if not (handed and str(path).startswith(_HANDED)):
            check_kind(path, os.fstat(found).st_mode)
        os.set_blocking(found, True)
    except BaseException:
        os.close(found)
        raise
    return found


def check_kind(path: Path, mode: int | None = None) -> None:
    """Raise Refused unless a file is regular, for a library that opens it itself; ``mode`` is its ``st_mode``."""
    kind = stat.S_IFMT(path.stat().st_mode if mode is None else mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise Refused(errno.EINVAL, f"it is {_KINDS.get(kind, 'no file')}, but only regular files are read", str(path))


def read_bytes(path: Path, most: int = MOST_BYTES, *, handed: bool = False) -> bytes:
    """Return a regular file's content; raises Refused if longer than ``most``; ``handed`` as in :func:`opened`."""
    with opened(path, handed=handed) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Refused(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES, *, errors: str = "strict", handed: bool = False) -> str:
    """Return a file's text, read as :func:`read_bytes` does; ``errors`` as in ``bytes.decode``."""
    return read_bytes(path, most, handed=handed).decode(errors=errors)


def last_lines(path: Path, most: int = MOST_OF_A_LOG) -> list[str]:
    """Return the lines in the last ``most`` bytes of a growing file, the first possibly cut; empty if it is missing."""
    return end_of(path, most).splitlines()


def end_of(path: Path, most: int) -> str:
    """Return the text in the last ``most`` bytes of a growing file; empty if it cannot be read."""
    try:
        with opened(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def json_objects(lines: Iterable[str | bytes]) -> Iterator[JsonObject]:
    """Yield the JSON objects among lines; anything else is skipped, such as a partly written line."""
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(line)
            if isinstance(content, dict):
                yield content


def json_lines(path: Path) -> Iterator[JsonObject]:
    """Yield the JSON objects of a file, one per line; none if it is missing or cannot be read."""
    with contextlib.suppress(OSError), io.TextIOWrapper(opened(path), errors="replace") as file:
        yield from json_objects(file)


def lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed, without waiting; return False if another holds it, None without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class Tail:
    """Reads a growing file from where the last call ended.

    A file that became shorter or was replaced (a rotated log, metrics cut by a resumed worker) is read from its start,
    and :attr:`restarted` is True for what was just returned. At most :data:`MOST_OF_A_LOG` bytes are read at once.
    """

    def __init__(self, path: Path, *, from_start: bool) -> None:
        self._path, self._offset, self._inode = path, 0, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.restarted = False
        with contextlib.suppress(OSError):
            facts = path.stat()
            self._offset, self._inode = 0 if from_start else facts.st_size, facts.st_ino

    def lines(self, *, ended: bool = False) -> list[str]:
        """Return complete lines since the last call; with ``ended`` also an incomplete last one."""
        data = self._new()
        whole = data if ended else data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()

    def text(self) -> str:
        """Return all characters since the last call; one split between two calls is returned by the later."""
        data = self._new()
        self._offset += len(data)
        return self._decoder.decode(data)

    def _new(self) -> bytes:
        try:
            with opened(self._path) as file:
                facts = os.fstat(file.fileno())
                known = self._inode in (0, facts.st_ino) and facts.st_size >= self._offset
                self.restarted, self._inode = not known, facts.st_ino
                self._offset = self._offset if known else 0
                file.seek(self._offset)
                return file.read(MOST_OF_A_LOG)
        except OSError:
            return b""


def changed_at(path: Path) -> float:
    """Return the modification time of a file or folder; 0 if it was removed meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in and below a folder; files removed meanwhile count as 0."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            total += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return total


def read_json(path: Path) -> JsonObject | None:
    """Return a JSON file's mapping; None if it is missing or invalid, which ``launcher.rundir.contents`` explains."""
    with contextlib.suppress(OSError, ValueError):
        content = load_json(path)
        if isinstance(content, dict) and depth(content) <= DEEPEST:
            return content
    return None


def load_json(path: Path) -> Any:
    """Return the JSON of a file that a program wrote; raises OSError if it cannot be read, ValueError if invalid."""
    return any_json(read_text(path, MOST_OF_A_RECORD))


def any_json(text: str | bytes) -> Any:
    """Return JSON as Python reads it. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_own(path: Path) -> Any:
    """Return the content of a YAML file of this package, which needs no limits."""
    import yaml  # Imported late: most commands read none.

    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def own_json(path: Path) -> Any:
    """Return the content of a JSON file of this package, cached."""
    return json.loads(path.read_text())


def parse_json(text: str | bytes) -> Any:
    """Return untrusted JSON; ValueError if it is invalid, not finite, or exceeds :data:`LARGEST` or :data:`DEEPEST`."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        content = json.loads(text, parse_int=integer)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST}") from None
    check_plain(content)
    return content


def check_plain(content: object) -> None:
    """Raise ValueError unless plain data respects the limits of numbers and depth."""
    for each in _levels(content, DEEPEST):
        check_numbers(each)


def check_numbers(values: Iterable[object]) -> None:
    """Raise ValueError unless all numbers among the values are finite and at most :data:`LARGEST`."""
    for value in values:
        if type(value) is int and abs(value) > LARGEST:
            raise _too_large(str(value) if abs(value) < LARGEST**4 else f"a number of {value.bit_length()} bits")
        if type(value) is float and not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")


def depth(content: object) -> int:
    """Return the nesting depth of lists and mappings; 0 for a value that is neither."""
    return sum(any(isinstance(value, dict | list) for value in level) for level in _levels(content))


def _levels(content: object, deepest: float = math.inf) -> Iterator[list[object]]:
    level, number = [content], 0
    while level:
        yield level
        within = [value for value in level if isinstance(value, dict | list)]
        number += bool(within)
        if number > deepest:
            raise ValueError(f"it is nested deeper than {deepest:g}")
        level = [item for value in within for item in (value.values() if isinstance(value, dict) else value)]


def integer(digits: str) -> int:
    """Parse an integer; ValueError beyond :data:`LARGEST`, before Python's own limit of 4,300 digits applies."""
    if len(digits) > len(str(LARGEST)) + 1:
        raise _too_large(f"{digits[:20]}..., a number of {len(digits)} digits,")
    return int(digits)


def _too_large(what: str) -> ValueError:
    return ValueError(f"{what} does not fit in 64 bits, as every setting must")
