"""The file of measured runs: JSON lines, one row per run, the newest last, appended to by concurrent runs.

The file is in the user's state folder, or where ``cluster.measurements`` says. A row is appended by one write under a
lock on the file, so rows never interleave; if a run has two rows, the later one counts. Only the newest rows are read,
from the last few megabytes. Since other users write to a cluster's file, lines are parsed strictly: every value has a
type and bounds, and texts contain no terminal control characters. A line that is not a valid row is skipped, counted
and left in the file.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from launcher.base import files, typed
from launcher.base.errors import SubmitError, unreadable
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass

MOST_ROWS = 2000  # Newest rows read: a few hundred milliseconds at most.
_MOST_BYTES = 4 << 20
_PATIENCE_S = 10.0  # Seconds that the end of a job waits for a lock on the file.
_POLL_S = 0.02
SCHEMA = 1
LONGEST_LINE = 1 << 13  # Bytes in a line; our own lines have about a thousand.
_LONGEST_TEXT = 1000
_MOST_VERSIONS = 20
_MOST = 10**18  # No number of tokens, GPUs or bytes a second is larger.


class _Limit(NamedTuple):
    """A limit on the values of a type, and the limited type in words."""

    holds: Callable[[Any], bool]
    noun: str

    def words(self, _: str) -> str:
        """The limited type in words."""
        return self.noun


def _is_shown(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_TEXT and text.isprintable()


def _is_amount(number: float) -> bool:
    return 0 < number <= _MOST


type _Text = Annotated[str, _Limit(_is_shown, f"a text of at most {_LONGEST_TEXT} printable characters")]
type _Count = Annotated[int, _Limit(lambda number: 0 <= number <= _MOST, "a whole number")]
type _Bytes = Annotated[int, _Limit(_is_amount, "a positive number")] | None
type _Amount = Annotated[float, _Limit(_is_amount, "a positive number")] | None
type _Versions = Annotated[
    Mapping[_Text, _Text],
    _Limit(
        lambda texts: len(texts) <= _MOST_VERSIONS and all(map(_is_shown, texts)),
        f"an object of at most {_MOST_VERSIONS} texts",
    ),
]

_WORDS: Mapping[Any, str] = {bool: "true or false", type(None): "null", Mapping: "an object {...}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    """The prediction recorded with a run."""

    tokens_per_second_per_gpu: _Amount = None  # As reported to the user; None if unknown, as on a CPU.
    uncorrected: _Amount = None  # The same before any measured constant.
    allocated_bytes: _Bytes = None  # Allocated peak of one rank.
    needed_bytes: _Bytes = None  # The least with which the allocator does not run out.
    reserved_bytes: _Bytes = None  # What the allocator would reserve.


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """The measured speed, memory and saves of a run."""

    tokens_per_second_per_gpu: _Amount = None  # Median over the second half of its metrics, past the warm-up.
    steps: _Count = 0  # The number of steps in that half.
    allocated_bytes: _Bytes = None  # Allocated peak of the worst rank.
    reserved_bytes: _Bytes = None  # What its allocator reserved.
    checkpoint_bytes: _Bytes = None  # Size of one checkpoint.
    save_seconds: _Amount = None  # Time until a checkpoint was complete, the median over all.
    blocking_seconds: _Amount = None  # The part of it during which training waited; None if training waited throughout.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured run."""

    id: _Text  # The run's name, as ``launch status`` shows it.
    directory: _Text  # Its folder, which distinguishes it from others of the same name.
    date: _Text  # When it finished, in UTC.
    hardware: _Text  # The card that it was predicted for, an option of the group ``hardware``.
    title: _Text  # The device that ran it.
    device: _Text  # ``cuda`` or ``cpu``.
    nodes: _Count  # Number of nodes.
    gpus: _Count  # Number of ranks.
    cluster: _Text  # ``local`` or ``slurm``.
    link_bandwidth: _Amount  # Bytes/s between the GPUs of a node, as in its prediction.
    network_bandwidth: _Amount  # Bytes/s of a GPU's share of the network.
    network_latency: _Amount  # Seconds per step of a ring between nodes.
    framework: _Text  # The engine, by its name in ``launcher/estimate/speed/calibration.json``.
    versions: _Versions = field(default_factory=dict)  # Versions of the packages that ran it.
    calibration: _Text | None  # The shipped calibration that its prediction used; None if there was no prediction.
    spec_hash: _Text  # The run's hash.
    model: _Text  # The model's name.
    experts: bool  # True if the model has experts.
    layout: _Text  # The layout in words; runs with equal words have the same layout.
    predicted: PredictedRun  # Its prediction.
    measured: MeasuredRun  # What was measured.
    left_out: _Text | None = None  # Why its speed contributes to no constant; None if it may.

    @property
    def ratio(self) -> float | None:
        """Measured / uncorrected predicted speed; None if unknown or if the row may be in no constant."""
        predicted, measured = self.predicted.uncorrected, self.measured.tokens_per_second_per_gpu
        return None if self.left_out is not None or predicted is None or measured is None else measured / predicted

    @property
    def peak_ratio(self) -> float | None:
        """Measured / predicted peak of allocated bytes; None if either is unknown."""
        predicted, measured = self.predicted.allocated_bytes, self.measured.allocated_bytes
        return None if predicted is None or measured is None else measured / predicted

    def as_dict(self) -> JsonObject:
        """The row as data."""
        return {"schema": SCHEMA, **asdict(self)}

    def as_line(self) -> bytes:
        """The row as a line of the file, in ASCII."""
        return f"{json.dumps(self.as_dict())}\n".encode()


def read(line: bytes) -> Row:
    """Read a line. Raises ValueError with the reason if it is not a valid row."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE} bytes")
    content = files.parse_json(line.decode())
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"it is not a row of schema {SCHEMA}")
    try:
        return typed.read(Row, content)
    except typed.Unfit as error:
        fault = error.faults[0]
        words = "is missing" if fault.kind is None else f"must be {typed.describe(fault.kind, _WORDS)}"
        raise ValueError(f"{fault.path} {words}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The rows of a file."""

    path: Path  # The file.
    rows: tuple[Row, ...] = ()  # One per run, the newest last.
    unreadable: tuple[str, ...] = ()  # Lines that are not valid rows, each with the reason.


def load(path: Path) -> Content:
    """The rows of a file; none if there is no file. Raises OSError if it cannot be read."""
    try:
        descriptor = files.descriptor(path, os.O_RDONLY)
    except FileNotFoundError:
        return Content(path=path)
    with os.fdopen(descriptor, "rb") as file:
        start = max(0, os.fstat(descriptor).st_size - _MOST_BYTES)
        file.seek(start)
        lines = file.read(_MOST_BYTES).split(b"\n")[1 if start else 0 :]
    found: dict[tuple[str, str], Row] = {}
    bad = []
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    for number, line in numbered[-MOST_ROWS:]:
        try:
            row = read(line)
        except (ValueError, RecursionError) as error:
            why = unreadable(error) if isinstance(error, ValueError) else "it is nested too deeply"
            bad.append(f"line {len(lines) - number} from the end: {why}" if start else f"line {number}: {why}")
            continue
        found.pop((row.id, row.directory), None)
        found[row.id, row.directory] = row
    return Content(path=path, rows=tuple(found.values()), unreadable=tuple(bad))


def add(path: Path, row: Row) -> None:
    """Append a row, which replaces an earlier one of the same run.

    Raises OSError: The file cannot be written. Raises ValueError: The row could not be read back.
    """
    added = row.as_line()
    read(added)
    with _locked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
        size = os.fstat(descriptor).st_size
        whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        line = added if whole else b"\n" + added
        if os.write(descriptor, line) < len(line):
            raise OSError(0, "no space left")


def forget(path: Path, lost: Row) -> None:
    """Remove all rows of a run, and no other line, from the file. Raises SubmitError if it cannot be written."""
    try:
        with _locked(path, os.O_RDWR) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            kept = b"".join(line for line in file if not _is_of(line, lost))
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                temporary.write_bytes(kept)
                temporary.chmod(path.stat().st_mode & 0o7777)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise SubmitError(f"{path} cannot be written: {unreadable(error)}") from None


def _is_of(line: bytes, lost: Row) -> bool:
    try:
        found = read(line)
    except (ValueError, RecursionError):
        return False
    return (found.id, found.directory) == (lost.id, lost.directory)


@contextlib.contextmanager
def _locked(path: Path, flags: int) -> Iterator[int]:
    """The locked file, reopened if another launcher has replaced it meanwhile.

    Raises OSError: It cannot be opened, or others hold its lock for too long.
    """
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        descriptor = files.descriptor(path, flags)
        try:
            # A file system without locks must do: a row is a single append.
            if files.lock(descriptor) is not False and _is_still(path, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)
        time.sleep(_POLL_S)
    raise OSError(0, "others hold its lock")


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
