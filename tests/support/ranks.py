"""Ranks of a job, forked from an agent that has imported the frameworks, which takes longer than short training.

Each of pytest's workers has one agent per framework, itself forked from a process that has imported what all of them
need; another agent forks the ranks of whole runs for the tests' torchrun. Tests with the real torchrun cover what
torchrun does.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import multiprocessing
import os
import runpy
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

_UNTOUCHED = dict(os.environ)
_FROM_SERVER = multiprocessing.get_context("forkserver")
_FROM_SERVER.set_forkserver_preload(["launcher.worker.fsdp.engine"])
_FROM_AGENT = multiprocessing.get_context("fork")

_TIMEOUT_S = 480
_READ_BY_IMPORTS = ("CXX", "DS_ACCELERATOR", "OMP_NUM_THREADS")
"""Variables that modules read on import (TorchInductor its compiler): other values need another agent."""


@dataclass(frozen=True, slots=True)
class _Job:
    program: Callable[..., None]
    arguments: Sequence[str]
    count: int
    environment: Mapping[str, str]
    log: Path
    late: Sequence[str]


_agents: dict[tuple[object, ...], Connection] = {}


def run(
    program: Callable[..., None],
    arguments: Sequence[str],
    *,
    imports: Callable[[], None],
    count: int,
    environment: Mapping[str, str],
    log: Path,
    late: Sequence[str] = (),
) -> None:
    """Call a program in every rank, and wait until all have finished.

    Args:
        program: A function of a module.
        arguments: Its arguments.
        imports: A module's function that imports what every rank needs.
        count: CPU processes.
        environment: All variables except those of a rank's place.
        log: File for the ranks' output.
        late: Modules that this job and probably later ones need, but not every job.

    Raises:
        AssertionError: A rank failed or did not finish in time; the others are ended.
    """
    read = {name: environment[name] for name in _READ_BY_IMPORTS if name in environment}
    key = (imports, *read.items())
    agent = _agents.pop(key, None) or _start(imports, read)  # An agent that is interrupted here is not used again.
    agent.send(_Job(program, arguments, count, environment, log, late))
    codes = agent.recv()
    _agents[key] = agent
    said = log.read_text()[-4000:]
    assert codes is not None, f"not done in {_TIMEOUT_S} s: {said}"
    assert codes == [0] * count, f"the ranks ended with {codes}: {said}"


def _start(imports: Callable[[], None], environment: Mapping[str, str]) -> Connection:
    """Start an agent, from a server without the first test's environment, because every later rank inherits it."""
    with mock.patch.dict(os.environ, _UNTOUCHED, clear=True):
        forkserver.ensure_running()
    ours, theirs = _FROM_SERVER.Pipe()
    _FROM_SERVER.Process(target=_serve, args=(imports, environment, theirs)).start()
    theirs.close()
    atexit.register(ours.close)  # The agent ends with it; at exit Python waits for child processes only after this.
    return ours


def _serve(imports: Callable[[], None], environment: Mapping[str, str], jobs: Connection) -> None:
    """Run jobs until the connection closes."""
    from launcher.worker import process  # Imports torch, which the test process does not need.

    process.die_with_agent()
    os.environ.update(environment)
    imports()
    _put_by()
    while True:
        try:
            job: _Job = jobs.recv()
        except EOFError:
            return
        if late := [name for name in job.late if name not in sys.modules]:
            for name in late:
                importlib.import_module(name)
            _put_by()
        jobs.send(_codes(job))


def _put_by() -> None:
    """Freeze all objects so far: DeepSpeed and the memory accounts of both engines scan all unfrozen objects."""
    gc.collect()
    gc.freeze()


def _codes(job: _Job) -> list[int | None] | None:
    """The exit status of every rank once all are done or one has failed; None if they take too long."""
    ranks: list[Any] = [_FROM_AGENT.Process(target=_rank, args=(job, rank)) for rank in range(job.count)]
    for rank in ranks:
        rank.start()
    working = {rank.sentinel: rank for rank in ranks}
    try:
        while working and not any(rank.exitcode for rank in ranks):
            ended = connection.wait(list(working), _TIMEOUT_S)
            if not ended:
                return None
            for sentinel in ended:
                working.pop(sentinel).join()
        return [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _place(rank: int, count: int) -> dict[str, str]:
    """Variables of a rank's place, as torchrun sets them."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in places.items()}}


def _rank(job: _Job, rank: int) -> None:
    from launcher.worker import process

    process.die_with_agent()
    printed = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.environ.clear()
    os.environ.update(job.environment)
    os.environ.update(_place(rank, job.count))
    job.program(*job.arguments)
    process.exit_at_once()


@functools.cache
def address() -> str:
    """The socket of an agent that forks ranks of the FSDP worker when ``tests.support.torchrun`` requests them."""
    folder = tempfile.mkdtemp(prefix="launch-ranks-")  # Short, because socket paths are limited.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = f"{folder}/fsdp"
    with mock.patch.dict(os.environ, _UNTOUCHED, clear=True):
        forkserver.ensure_running()
    ours, theirs = _FROM_SERVER.Pipe()
    _FROM_SERVER.Process(target=_listen, args=(place, theirs)).start()
    theirs.close()
    atexit.register(ours.close)  # As in :func:`_start`.
    ours.recv()
    return place


def _listen(place: str, tests: Connection) -> None:
    """Fork each requested rank, report its exit status, and end it if nobody waits for it any more."""
    from launcher.worker import process
    from tests.support import train_many

    process.die_with_agent()
    os.environ.update(OMP_NUM_THREADS="1")
    train_many.with_fsdp()
    _put_by()
    asked: dict[Any, Any] = {}  # The rank by the connection of its requester.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        tests.send("listening")
        while True:
            sentinels = {rank.sentinel: asker for asker, rank in asked.items()}
            for ready in connection.wait([server, tests, *asked, *sentinels]):
                if ready is tests:  # The tests are over.
                    return
                if ready is server:
                    asker: Any = Connection(server.accept()[0].detach())
                    asked[asker] = rank = _FROM_AGENT.Process(target=_whole, args=(asker.recv(),))
                    rank.start()
                    asker.send(rank.pid)
                elif (asker := sentinels.get(ready, ready)) in asked:
                    _end(asked.pop(asker), asker)


def _end(rank: Any, asker: Connection) -> None:
    """End a rank that has exited, or whose torchrun is gone, and report its exit status."""
    if rank.exitcode is None:
        rank.kill()
    rank.join()
    try:
        asker.send(rank.exitcode)
    except OSError:
        return
    finally:
        asker.close()


def _whole(job: tuple[Sequence[str], Mapping[str, str], str, str]) -> None:
    """Run as the rank that torchrun would have started: ``python -u -m MODULE ARGUMENTS``, with its own logs."""
    argv, environment, working_directory, folder = job
    for name, number in (("stdout", 1), ("stderr", 2)):
        log = os.open(f"{folder}/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, number)
        os.close(log)
    os.chdir(working_directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
