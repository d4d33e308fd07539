"""Files written whole or not at all, and files of anyone's read within limits, which stand here for all readers."""

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
"""Of a file that people write: a recipe, a lock, a configuration, an argument list, a line of points."""

MOST_OF_A_SCRIPT = 1 << 17
"""Characters of shell text, variables put in: Python's ``shlex`` takes a time that grows with the square of a word."""

MOST_OF_A_RECORD = 1 << 26  # Bytes of a JSON file that programs write: the points of a sweep may be many.
MOST_OF_A_LOG = 1 << 28
"""Bytes of a file that grows with every step or is as long as its sweep: a million lines of metrics."""

MOST_NODES = 100_000  # Values in a YAML file; a lock has some two thousand.
DEEPEST = 12  # Lists and mappings in one another; a specification has four.
LARGEST = 2**64 - 1
"""No setting, size or count is larger, and products of a few such numbers are still floating-point numbers."""


def write_atomically(path: Path, content: JsonObject) -> None:
    """Write JSON under a temporary name and move it into place: a reader sees the old file or the new one."""
    write_text_atomically(path, json.dumps(content) + "\n")


def write_text_atomically(path: Path, text: str) -> None:
    """Write text under a temporary name and move it into place: a reader sees the old file or the new one."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write bytes under a temporary name and move them into place; a disk that is full leaves nothing of them."""
    with _written_beside(path, content) as temporary:
        temporary.replace(path)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that must not exist yet, with its folder: it appears whole; FileExistsError where it exists."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _written_beside(path, content) as temporary:
        try:
            path.hardlink_to(temporary)  # Unlike a renaming it fails where somebody else was quicker.
        except FileExistsError:
            raise
        except OSError:  # A file system without links.
            temporary.rename(path)


def require_room(folder: Path, size: int) -> None:
    """Raise OSError unless so many bytes can be reserved in a folder: what a quota leaves is in no table."""
    path = folder / f".room.{os.getpid()}"
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _written_beside(path: Path, content: bytes) -> Iterator[Path]:
    """The content under a temporary name, removed afterwards; short, since a name may have 255 bytes."""
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def real(path: Path) -> Path:
    """The path without links; a link to itself stays as it is, where ``Path.resolve`` raises before Python 3.13."""
    return Path(os.path.realpath(path))


def expanded(path: str) -> Path:
    """The path with a ``~`` in front read as a shell does: where there is no such user, as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def near(typed: str | Path) -> list[str]:
    """Paths beside one that is not there whose names are nearest to its own, three at most, spelt as it is typed."""
    import difflib  # Late, as most files are there.

    path = expanded(str(typed))
    try:
        names = () if path.exists() else os.listdir(path.parent)  # noqa: PTH208
    except OSError:
        return []
    start = str(typed).removesuffix("/").removesuffix(path.name)
    return [f"{start}{name}" for name in difflib.get_close_matches(path.name, names, cutoff=0.8)]


class Refused(OSError, ValueError):
    """A file that is not read: it is no regular file, or larger than any of its kind."""


_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_HANDED = ("/dev/stdin", "/dev/fd/")
"""Names of what the caller's own shell has opened for this process, as ``<(command)`` is named."""


def opened(path: Path, *, handed: bool = False) -> io.BufferedReader:
    """A regular file, open for reading: to open a pipe may wait for ever, and a device may have no end.

    ``handed`` is true where a pipe is read, too, that the shell has opened for this command. Raises OSError where it
    cannot be read, and Refused where it is a pipe, a socket or a device.
    """
    return open(descriptor(path, os.O_RDONLY, handed=handed), "rb")


def descriptor(path: Path, flags: int, *, handed: bool = False) -> int:
    """The descriptor of a regular file, opened without waiting; flags and errors as of :func:`opened` and ``os.open``.

    A file that it makes may be read and written by all whom the umask lets.
    """
    try:
        found = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # A socket; or a pipe that nobody reads, opened for writing.
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
    """Refuse a file that is no regular one, for a library that opens it by itself; ``mode`` is that of its ``stat``."""
    kind = stat.S_IFMT(path.stat().st_mode if mode is None else mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise Refused(errno.EINVAL, f"it is {_KINDS.get(kind, 'no file')}, and only regular files are read", str(path))


def read_bytes(path: Path, most: int = MOST_BYTES, *, handed: bool = False) -> bytes:
    """A regular file's content; raises Refused where it has more bytes; ``handed`` as of :func:`opened`."""
    with opened(path, handed=handed) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Refused(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES, *, errors: str = "strict", handed: bool = False) -> str:
    """A file's text, read as :func:`read_bytes` does; ``errors`` is that of ``bytes.decode``."""
    return read_bytes(path, most, handed=handed).decode(errors=errors)


def last_lines(path: Path, most: int = MOST_OF_A_LOG) -> list[str]:
    """The lines in the last ``most`` bytes of a file that grows; of the first only its end, none where it is absent."""
    return end_of(path, most).splitlines()


def end_of(path: Path, most: int) -> str:
    """The text in the last ``most`` bytes of a file that grows; empty where it cannot be read."""
    try:
        with opened(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""


def json_objects(lines: Iterable[str | bytes]) -> Iterator[JsonObject]:
    """The JSON objects among lines; all else is passed over, such as a line that is being written."""
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(line)
            if isinstance(content, dict):
                yield content


def json_lines(path: Path) -> Iterator[JsonObject]:
    """The JSON objects of a file from its first line on; none where it is missing or cannot be read."""
    with contextlib.suppress(OSError), io.TextIOWrapper(opened(path), errors="replace") as file:
        yield from json_objects(file)


def lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed, without waiting: False if another has it, None where there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class Tail:
    """A file that grows, read from where the last call ended, whatever happens to it.

    One that became shorter, or was put in place of another (a rotated log, metrics that a resumed worker has cut), is
    read from its start, and :attr:`restarted` says so of what has just been returned. At most :data:`MOST_OF_A_LOG`
    bytes are read at once.
    """

    def __init__(self, path: Path, *, from_start: bool) -> None:
        self._path, self._offset, self._inode = path, 0, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.restarted = False
        with contextlib.suppress(OSError):
            facts = path.stat()
            self._offset, self._inode = 0 if from_start else facts.st_size, facts.st_ino

    def lines(self, *, ended: bool = False) -> list[str]:
        """Whole lines since the last call; with ``ended`` also a last one that has no end."""
        data = self._new()
        whole = data if ended else data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace").splitlines()

    def text(self) -> str:
        """All characters since the last call; one whose bytes are cut between two calls comes with the later."""
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
    """The time of a file or folder; 0 where it was removed meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def bytes_in(folder: Path) -> int:
    """Bytes of all files in a folder and below; what vanishes meanwhile counts as nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            total += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return total


def read_json(path: Path) -> JsonObject | None:
    """A JSON file's mapping; None where there is none of ours (yet), which ``launcher.rundir.contents`` explains."""
    with contextlib.suppress(OSError, ValueError):
        content = load_json(path)
        if isinstance(content, dict) and depth(content) <= DEEPEST:
            return content
    return None


def load_json(path: Path) -> Any:
    """The JSON of a file that a program wrote; raises OSError where it cannot be read, else ValueError."""
    return any_json(read_text(path, MOST_OF_A_RECORD))


def any_json(text: str | bytes) -> Any:
    """JSON as Python reads it, as deep as it can. Raises ValueError if it is none, or deeper."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def load_own(path: Path) -> Any:
    """Read a YAML of this package, which needs no limits."""
    import yaml  # Late, because most commands read none.

    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def own_json(path: Path) -> Any:
    """The content of a JSON of this package, read once."""
    return json.loads(path.read_text())


def parse_json(text: str | bytes) -> Any:
    """JSON from anyone; ValueError says why it is none, not finite, or beyond :data:`LARGEST` or :data:`DEEPEST`."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        content = json.loads(text, parse_int=integer)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST}") from None
    check_plain(content)
    return content


def check_plain(content: object) -> None:
    """Raise ValueError unless plain data keep within the limits of numbers and depth."""
    for each in _levels(content, DEEPEST):
        check_numbers(each)


def check_numbers(values: Iterable[object]) -> None:
    """Raise ValueError unless all numbers among some values are finite, and none is beyond :data:`LARGEST`."""
    for value in values:
        if type(value) is int and abs(value) > LARGEST:
            raise _too_large(str(value) if abs(value) < LARGEST**4 else f"one of {value.bit_length()} bits")
        if type(value) is float and not math.isfinite(value):
            raise ValueError(f"{value} is no finite number")


def depth(content: object) -> int:
    """Lists and mappings in one another; 0 of a value that is neither."""
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
    """A whole number, ValueError beyond :data:`LARGEST`; Python refuses one of 4,300 digits, in words about itself."""
    if len(digits) > len(str(LARGEST)) + 1:
        raise _too_large(f"{digits[:20]}..., a number of {len(digits)} digits,")
    return int(digits)


def _too_large(what: str) -> ValueError:
    return ValueError(f"{what} is beyond 64 bits, which no setting is")
