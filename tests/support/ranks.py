"""The ranks of a job, forked from a process that has imported the frameworks: that takes longer than to train a little.

What torchrun does is the matter of the tests of whole runs.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from unittest import mock

_UNTOUCHED = dict(os.environ)
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["launcher.worker.fsdp.engine"])

_TIMEOUT_S = 480


def run(
    program: Callable[..., None], arguments: Sequence[str], *, count: int, environment: Mapping[str, str], log: Path
) -> None:
    """Call a program in every rank, until all have come to its end.

    Args:
        program: A function of a module.
        arguments: Its arguments.
        count: CPU processes.
        environment: All variables but those of a rank's place.
        log: What the ranks print.

    Raises:
        AssertionError: A rank failed, or a rank is not done in time; the others are ended.
    """
    _start()
    places = [{**environment, **_place(rank, count)} for rank in range(count)]
    ranks = [_FORKED.Process(target=_rank, args=(program, arguments, place, log)) for place in places]
    for rank in ranks:
        rank.start()
    working = [rank.sentinel for rank in ranks]
    try:
        while working and not any(rank.exitcode for rank in ranks):
            ended = connection.wait(working, _TIMEOUT_S)
            assert ended, f"not done in {_TIMEOUT_S} s: {log.read_text()[-4000:]}"
            working = [each for each in working if each not in ended]
        assert [rank.exitcode for rank in ranks] == [0] * count, log.read_text()[-4000:]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


@functools.cache
def _start() -> None:
    """Start the process that ranks are forked from, without what the test that comes first has set.

    Modules read variables as they are imported (TorchInductor its compiler), and every later rank would inherit it.
    """
    with mock.patch.dict(os.environ, _UNTOUCHED, clear=True):
        forkserver.ensure_running()


def _place(rank: int, count: int) -> dict[str, str]:
    """As torchrun tells it."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in places.items()}}


def _rank(program: Callable[..., None], arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    from launcher.worker import process  # It imports torch, which the test's own process does not need.

    process.die_with_agent()
    printed = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.environ.clear()
    os.environ.update(environment)
    program(*arguments)
    process.leave()
