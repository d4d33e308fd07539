"""Ctrl-C, SIGTERM and a closed terminal, at any moment of a command, end it in one of two states.

Either nothing was started and nothing is left half, or the command says what goes on and how to stop it. What must not
be cut in two, such as a start and the note of it, is done in :func:`held`: there signals are noted, and looked at where
nothing is half (:func:`look`). For a second after the first one others are noted, too. In a program that uses the
Python API signals are the program's own: there :func:`shielded` alone has an effect.
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
_SAME_S = 1.0  # Signals that come so soon after the first mean the same.
_AGAIN_S = 0.01  # Seconds until an interruption that was lost in a callback comes again: at once, behind the callback.


class Interrupted(KeyboardInterrupt):
    """A signal that ends the command; ``number`` is the signal."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class _Noted:
    """The signals and starts of this process: state of the process, since a signal handler has no other place."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[int] = []
        self.raised_s: float | None = None
        self.begun: dict[str, bool] = {}


_noted = _Noted()


def install() -> None:
    """Let signals end this command as it should end; one that is ignored, as by ``nohup``, stays so."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    sys.unraisablehook = _lost


def over() -> None:
    """Let no signal come any more: all is said, and the interpreter's end prints a traceback where it is broken off."""
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
    """Raise an interruption once more that came in a callback, where Python can only print it."""
    if isinstance(found.exc_value, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, _handle)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
    else:
        sys.__unraisablehook__(found)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Only note signals until the end of the block, where the first one is raised if nobody has looked at it."""
    _noted.depth += 1
    try:
        yield
    finally:
        _noted.depth -= 1
    if not _noted.depth:
        look()


@contextlib.contextmanager
def let_through() -> Iterator[None]:
    """Inside of :func:`held`: a part that may take long, and that may be broken off anywhere."""
    depth, _noted.depth = _noted.depth, 0
    try:
        look()
        yield
    finally:
        _noted.depth = depth


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Start processes that never get Ctrl-C or a closed terminal, and note them before either has an effect here.

    A process inherits the blocked signals of the thread that starts it: neither the run nor sbatch, whose answer would
    be lost, ends with the launcher. Handlers are left as they are: they belong to the program that we may be part of,
    and only its main thread could change them.
    """
    with held():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def look() -> None:
    """Raise the first signal that was noted, as :class:`Interrupted`."""
    if _noted.waiting:
        _noted.raised_s = time.monotonic()
        raise Interrupted(_noted.waiting.pop(0))


def happened() -> bool:
    """True if a signal has been raised, whatever has become of the exception."""
    return _noted.raised_s is not None


def note_begun(name: str) -> None:
    """Note that a run or sweep of this name has been started, and goes on without this command."""
    _noted.begun[name] = True


def note_ended(name: str) -> None:
    """Note that it goes on no more."""
    _noted.begun[name] = False


def say(*, starts: bool) -> None:
    """Say on stderr what an interruption has left."""
    going = [name for name, goes_on in _noted.begun.items() if goes_on]
    lines = [f"{name} goes on: `launch logs {name}` shows it, `launch cancel {name}` stops it" for name in going]
    if starts and not going:
        lines = ["nothing goes on" if _noted.begun else "nothing was started"]
    with contextlib.suppress(OSError):  # The terminal may be gone.
        for line in lines:
            sys.stderr.write(f"launch: interrupted; {line}\n")
        sys.stderr.flush()
