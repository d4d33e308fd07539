"""Ctrl-C, SIGTERM and a closed terminal, at any moment of a command, end it in one of two states.

Either nothing was started and nothing is left half done, or the command reports what keeps running and how to stop it.
Actions that must be atomic, such as a start and its record, run in :func:`held`: there signals are only noted, and
raised at a safe point (:func:`look`). For a second after the first signal, further ones are only noted, too. In a
program that uses the Python API, signals belong to the program: there only :func:`shielded` has an effect.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator

TYPE_CHECKING = False  # Type checkers know the name; ``typing`` takes a tenth of the time of a completion.
if TYPE_CHECKING:
    from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME_S = 1.0  # Signals that come within so many seconds of the first count as the same.
_AGAIN_S = 0.01  # Seconds until an interruption lost in a callback is raised again: right after the callback.


class Interrupted(KeyboardInterrupt):
    """Raised when a signal ends the command; ``number`` is the signal."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class _Noted:
    """The signals and starts of this process, global because a signal handler has no other state."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[int] = []
        self.raised_s: float | None = None
        self.begun: dict[str, bool] = {}


_noted = _Noted()


def install() -> None:
    """Install handlers that end this command cleanly; an ignored signal, as under ``nohup``, stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    sys.unraisablehook = _lost


def over() -> None:
    """Ignore further signals: the output is complete, and an interrupted interpreter exit would print a traceback."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _handle(number: int, frame: object) -> None:
    now, lost = time.monotonic(), number == signal.SIGALRM
    number = signal.SIGINT if lost else number
    just_raised = not lost and _noted.raised_s is not None and now - _noted.raised_s < _SAME_S
    if _noted.depth or just_raised:
        _noted.waiting.append(number)
        return
    _noted.raised_s = now
    raise Interrupted(number)


def _lost(found: "Any") -> None:
    """Raise an interruption again that came in a callback, where Python can only print it."""
    if isinstance(found.exc_value, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _handle)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(found)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Only note signals within the block; the first one is raised at its end, unless :func:`look` raised it."""
    _noted.depth += 1
    try:
        yield
    finally:
        _noted.depth -= 1
    if not _noted.depth:
        look()


@contextlib.contextmanager
def let_through() -> Iterator[None]:
    """Within :func:`held`: raise signals again, for a part that may take long and can be interrupted anywhere."""
    depth, _noted.depth = _noted.depth, 0
    try:
        look()
        yield
    finally:
        _noted.depth = depth


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Start processes that never get Ctrl-C or a closed terminal, and record them before either takes effect here.

    A process inherits the blocked signals of the thread that starts it: neither the run nor sbatch, whose answer would
    be lost, ends with the launcher. Handlers stay unchanged: they belong to the surrounding program, and only its main
    thread could change them.
    """
    with held():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def look() -> None:
    """Raise the first noted signal, if any, as :class:`Interrupted`."""
    if _noted.waiting:
        _noted.raised_s = time.monotonic()
        raise Interrupted(_noted.waiting.pop(0))


def happened() -> bool:
    """True if a signal has been raised, whatever happened to the exception."""
    return _noted.raised_s is not None


def note_begun(name: str) -> None:
    """Note that a run or sweep of this name has been started and keeps running without this command."""
    _noted.begun[name] = True


def note_ended(name: str) -> None:
    """Note that a run or sweep of this name has ended."""
    _noted.begun[name] = False


def say(*, starts: bool) -> None:
    """Report on stderr what keeps running after an interruption."""
    running = [name for name, runs in _noted.begun.items() if runs]
    shown = "`launch logs {0}` shows it, `launch cancel {0}` stops it"
    lines = [f"{name} keeps running: {shown.format(name)}" for name in running]
    if starts and not running:
        lines = ["nothing is running" if _noted.begun else "nothing was started"]
    with contextlib.suppress(OSError):  # The terminal may be gone.
        for line in lines:
            sys.stderr.write(f"launch: interrupted; {line}\n")
        sys.stderr.flush()
