"""Unambiguous identification of a process: by pid, start time, boot, PID namespace and host.

A pid alone is reused by later processes. So every record that names a process holds a :class:`Process`, which is
checked and signaled by all of these; nothing is claimed about a process that is not visible from here. :class:`Timer`
is a timer for periodic work.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Self

from launcher.base.frozen import dataclass

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys" / "kernel" / "random" / "boot_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process."""

    pid: int  # Its pid in its own namespace.
    # Its start time in clock ticks since the boot (``proc(5)``, field 22 of ``stat``); None without ``/proc``.
    start: int | None
    boot: str  # The kernel's random boot id; empty without ``/proc``.
    namespace: str  # The kernel's id of its PID namespace; empty without ``/proc``.
    host: str  # The host's name, for people, and to distinguish a reboot from another machine.

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return a process that is visible from here."""
        stat = _stat(pid)
        return cls(
            pid=pid,
            start=None if stat is None else int(stat[19]),
            boot=_boot(),
            namespace=_namespace(),
            host=os.uname().nodename,
        )

    @classmethod
    def here(cls) -> Self:
        """Return this process."""
        return cls.of(os.getpid())

    @classmethod
    def recorded(cls, content: object) -> Self | None:
        """The process of a record; None where the record has none."""
        if not isinstance(content, Mapping):
            return None
        fields = {name: content.get(name) for name in cls.__slots__}
        texts = all(isinstance(fields[name], str) for name in ("boot", "namespace", "host"))
        numbers = isinstance(fields["pid"], int) and isinstance(fields["start"], int | None)
        return cls(**fields) if texts and numbers and is_pid(fields["pid"]) else None  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, object]:
        """Return it as in records."""
        return asdict(self)

    @property
    def visible(self) -> bool:
        """True if its pid refers to the same process here as where it was recorded."""
        return self.boot == _boot() and self.namespace == _namespace()

    @property
    def before_a_reboot(self) -> bool:
        """True if this host has rebooted since, so that the process has ended."""
        return self.boot != _boot() and self.host == os.uname().nodename

    @property
    def alive(self) -> bool:
        """True if it is visible from here and alive; a zombie is not."""
        return self.visible and alive(self.pid) and self._is_now(self.pid)

    def send(self, how: signal.Signals, *, group: bool = False) -> bool:
        """Send a signal to it, or to the process group that it leads; return False if it is not alive or not visible.

        The process is held by a descriptor (``pidfd_open(2)``) while it is checked, so that the signal cannot reach
        another process that reuses its pid.
        """
        with _held(self.pid) as descriptor:
            if not self.alive:
                return False
            try:
                if group:
                    os.killpg(self.pid, how)  # The group's id is not reused while the process exists.
                elif descriptor is None:
                    os.kill(self.pid, how)
                else:
                    signal.pidfd_send_signal(descriptor, how)
            except ProcessLookupError:
                return False
            return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def _is_now(self, pid: int) -> bool:
        stat = _stat(pid)
        return self.start is None or (stat is not None and int(stat[19]) == self.start)


def is_pid(number: object) -> bool:
    """True for a valid pid: 0 and negative numbers mean process groups in ``kill(2)``."""
    return isinstance(number, int) and 0 < number < 1 << 31


def alive(pid: int) -> bool:
    """True if a process on this machine has this pid; a zombie does not count."""
    if (letter := state(pid)) is None:
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            return not (_PROC / "self").exists()
        return False
    return letter not in ("Z", "X")


def state(pid: int) -> str | None:
    """Return the letter of a process's state (proc(5), ``stat``); None without such a process, or without ``/proc``."""
    stat = _stat(pid)
    return None if stat is None else stat[0]


def children(pid: int) -> list[Process]:
    """Return the children of a process; each is identified first and then checked, so that no pid reuse can mislead."""
    try:
        numbers = (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return []
    found = [Process.of(int(number)) for number in numbers]
    return [child for child in found if (stat := _stat(child.pid)) is not None and int(stat[1]) == pid]


def marked(variable: str) -> list[Process]:
    """Return the processes, except this one, whose initial environment contains ``NAME=value``."""
    found = []
    for path in _PROC.glob("[0-9]*"):
        each = Process.of(int(path.name))
        if each.pid != os.getpid() and variable.encode() in environment(each.pid):
            found.append(each)
    return found


def speaks_of(pid: int, folder: Path) -> bool:
    """True if a process was started for a run: its command line or its environment names the run's folder.

    This distinguishes torchrun from an unrelated process that a foreign record names; a system without ``/proc`` cannot
    check, and trusts the record.
    """
    if not (_PROC / "self").exists():
        return True
    words = (*_strings(pid, "cmdline"), *environment(pid))
    named = (word.removeprefix(b"LAUNCH_RUN=").removeprefix(b"--log-dir=") for word in words)
    place = os.fsencode(folder)
    return any(word == place or word.startswith(place + b"/") for word in named)


def environment(pid: int) -> list[bytes]:
    """Return the initial variables ``NAME=value`` of a process; empty if they cannot be read."""
    return _strings(pid, "environ")


def _strings(pid: int, file: str) -> list[bytes]:
    try:
        return (_PROC / str(pid) / file).read_bytes().split(b"\0")
    except OSError:
        return []


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int | None]:
    descriptor = None
    with contextlib.suppress(AttributeError, OSError):
        descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` from the third on, since the second, a name, may contain spaces."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str((_PROC / "self" / "ns" / "pid").readlink())
    except OSError:
        return ""


class Timer:
    """A timer that is due every some seconds: first after that time, or with ``at_once`` at the first call."""

    def __init__(self, seconds: float, *, at_once: bool = False) -> None:
        self._seconds, self._last = seconds, -seconds if at_once else time.monotonic()

    def is_due(self) -> bool:
        """Return True, and restart the timer, if the seconds have passed since it was last due."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
