"""Signals for the processes that a benchmark or a test starts, whoever has started these themselves."""

from __future__ import annotations

import signal

_SENT = ("SIGINT", "SIGHUP", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD")


def hear_in_children() -> None:
    """Let what is started here hear signals that this process was itself started to ignore or to block.

    A process inherits both, and the background of a shell, ``nohup`` and many a CI ignore SIGINT or SIGHUP. A handler
    is not inherited but becomes the default where a program is started; one that does nothing leaves this process as
    deaf as it was meant to be.
    """
    sent = [signal.Signals[name] for name in _SENT]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, sent)
    for number in sent:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _nothing)


def _nothing(number: int, frame: object) -> None:
    """A signal handler that does nothing."""
