"""The hang watch of one node: finds ranks whose step takes far too long, takes their stacks, and ends them if asked to.

A step hangs if it takes ``train.hang_factor`` times the median of earlier steps, and at least ``train.timeout_s``;
evaluations and checkpoints are compared with their own kind. The ranks' collectives time out a little later, so that
the ranks are still there to inspect. For a user's script, new lines of ``metrics.jsonl`` are the heartbeat.

Every node inspects its own ranks and writes what it found; the first node reports it, and if ``train.on_hang`` is
``restart`` or ``fail``, all nodes end their ranks. On Slurm the job is then requeued; on this machine it is restarted.
Both happen at most ``cluster.requeues`` times in a row without a new checkpoint.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from launcher.base import files, machine
from launcher.base.files import JsonObject
from launcher.base.process import Timer
from launcher.base.units import duration
from launcher.job import beat, events
from launcher.job.beat import Heartbeat
from launcher.rundir import attempts, failure, health, results, state
from launcher.submission import stacks
from launcher.submission.processes import SlurmPlace
from launcher.submission.stacks import Rank, RankStacks

_LOOK_S = 0.5  # Seconds between two looks at the heartbeats: short compared with the shortest timeout.
_GATHER_S = 8.0  # Seconds to wait until the other nodes have inspected their ranks, too.
_NOT_STARTED = Heartbeat(rank=0, pid=0, step=0, phase="start", began=0.0, entered=0.0, usual=0.0)


def watches(directory: Path, place: SlurmPlace | None) -> "Generator[HangWatch]":
    """A watch for each start of the job on this node: one, and for a local job one more after each restart."""
    with _heartbeat_folder() as folder:
        watch = HangWatch(directory, place, folder)
        if place is None and watch.on_hang == "restart":
            attempts.forget(directory)
        if place is None or place.number == 0:
            nodes = [machine.node()] if place is None else list(place.hosts)
            step = results.newest_checkpoint(directory)
            events.add(directory, "start", "the ranks are started", step=step, nodes=nodes)
        while True:
            if place is None and watch.on_hang == "restart":
                attempts.begin(directory, f"{os.getpid()}_{watch.number}")
            yield watch
            if place is not None or not watch.begins_again():
                return
            watch = HangWatch(directory, place, folder, watch.number + 1)


@contextlib.contextmanager
def _heartbeat_folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    place = str(memory) if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="launch-", dir=place, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class HangWatch:
    """Watches the ranks of one node in start ``number`` of its job, by their heartbeats in ``folder``."""

    def __init__(self, directory: Path, place: SlurmPlace | None, folder: Path, number: int = 0) -> None:
        self._directory, self._place, self.number = directory, place, number
        self.folder = folder / str(number)
        self.folder.mkdir()
        spec = files.read_json(directory / "spec.json") or {}
        train: JsonObject = spec.get("train") or {}
        self._timeout, self._factor = float(train.get("timeout_s", 1800)), float(train.get("hang_factor", 10.0))
        self.on_hang: str = train.get("on_hang", "report")
        self._limit = int((spec.get("cluster") or {}).get("requeues", 0))
        self._lines = _Lines(directory) if spec.get("script") is not None else None
        self._look, self._hang_since, self._ended = Timer(_LOOK_S), 0.0, False
        job = files.read_json(directory / "job.json") or {}
        self._program, self._nodes = str((job.get("argv") or [""])[0]), int(job.get("nodes", 1))
        self._ranks_here = int(job.get("gpus_per_node", 1))

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variable that tells the ranks the folder of heartbeats."""
        return {beat.FOLDER: str(self.folder)}

    def look(self, process: subprocess.Popen[bytes]) -> None:
        """Look at the ranks if it is time; report a hang or its end, and end the ranks if asked to."""
        if not self._look.is_due():
            return
        try:
            self._judge(process, time.monotonic())
        except Exception as error:  # A fault of the watch must not end a job.
            print(f"launch: the ranks could not be inspected: {error!r}", file=sys.stderr)  # noqa: T201
        if not self._is_first:
            ended = files.read_json(self._directory / failure.HUNG)
            if ended is not None and ended.get("attempt") == self._attempt:
                process.kill()

    def _judge(self, process: subprocess.Popen[bytes], now: float) -> None:
        ranks = self._ranks(process, now)
        slow = [each for each in ranks if each.beat is not None and self._hangs(each.beat, now)]
        if slow and not self._hang_since:
            self._hang_since = now
            self._report(ranks, process, now)
        elif not slow and self._hang_since and ranks:
            self._report_over(now)

    def begins_again(self) -> bool:
        """True if a local job that was ended because of a hang should be restarted; records the restart."""
        if not self._ended or self.on_hang != "restart" or (self._directory / state.CANCEL_REQUEST).exists():
            return False
        record = attempts.recorded(self._directory)
        fruitless = 1 if record is None else record.fruitless_now(self._directory)
        if fruitless > self._limit:
            in_a_row = f"{fruitless} attempts in a row left no new checkpoint (cluster.requeues={self._limit})"
            health.note_hang(self._directory, restart=True, attempt=self._attempt, beside=f"not restarted: {in_a_row}")
            return False
        step = results.newest_checkpoint(self._directory)
        where = "from the start" if step is None else f"from the checkpoint of step {step}"
        events.add(self._directory, "restart", f"restarted after a hang, {where}", step=step)
        (self._directory / failure.HUNG).unlink(missing_ok=True)
        return True

    @property
    def _is_first(self) -> bool:
        return self._place is None or self._place.number == 0

    @property
    def _attempt(self) -> str | None:
        return None if self._place is None else self._place.attempt

    def _ranks(self, process: subprocess.Popen[bytes], now: float) -> list[Rank]:
        found = [each for path in self.folder.glob("*.beat") if (each := beat.read(path)) is not None]
        if self._lines is None:
            begun = [Rank(rank=each.rank, pid=each.pid, beat=each) for each in found]
            return sorted([*begun, *self._starting(process, begun)], key=lambda each: each.rank) if begun else []
        line = self._lines.beat(now)
        if line is None:
            return []
        return [replace(each, beat=replace(line, rank=each.rank, pid=each.pid)) for each in stacks.ranks(process.pid)]

    def _starting(self, process: subprocess.Popen[bytes], begun: list[Rank]) -> list[Rank]:
        if len(begun) == self._ranks_here or any(each.beat is not None and each.beat.step for each in begun):
            return []
        known = {each.rank for each in begun}
        return [each for each in stacks.ranks(process.pid) if each.rank not in known]

    def _hangs(self, now_at: Heartbeat, now: float) -> bool:
        if now_at.phase == "end":
            return False
        long = max(self._factor * now_at.usual, self._timeout)
        return now - now_at.began > long or now - now_at.entered > max(now_at.usual, self._timeout)

    def _report(self, ranks: list[Rank], process: subprocess.Popen[bytes], now: float) -> None:
        known = ranks if self._lines is None else [replace(each, beat=None) for each in ranks]
        found = stacks.take_stacks(self.folder, known, self._program)
        rows = [_row(each, found[each.rank], now) for each in ranks]
        step = max((each.beat.step for each in ranks if each.beat is not None), default=0)
        part = health.part(self._directory, step, 0 if self._place is None else self._place.number)
        part.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(part, {"attempt": self._attempt, "ranks": rows})
        if not self._is_first:
            return
        text = health.say_hang(self._directory, step, self._parts(step))
        if self.on_hang == "report":
            return
        self._ended = True
        health.note_hang(self._directory, restart=self.on_hang == "restart", attempt=self._attempt, text=text)
        process.kill()

    def _parts(self, step: int) -> list[JsonObject]:
        paths = [health.part(self._directory, step, number) for number in range(self._nodes)]
        until = time.monotonic() + _GATHER_S
        while True:
            found = [content for path in paths if (content := files.read_json(path)) is not None]
            found = [content for content in found if content.get("attempt") == self._attempt]
            if len(found) == self._nodes or time.monotonic() > until:
                return [row for content in found for row in content["ranks"]]
            time.sleep(0.2)

    def _report_over(self, now: float) -> None:
        seconds, self._hang_since = now - self._hang_since, 0.0
        if self._is_first:
            text = f"it continues, {duration(seconds)} after the hang was reported"
            events.add(self._directory, "hang", text, step=None, over=True)


def _row(rank: Rank, found: RankStacks, now: float) -> JsonObject:
    """A rank that hangs, or has not started, as plain data: its last heartbeat and its process."""
    last = rank.beat or _NOT_STARTED
    row = {"rank": rank.rank, "host": machine.node(), "step": last.step, "phase": last.phase, **asdict(found)}
    row |= {"seconds": round(now - last.began, 1), "usual": round(last.usual, 3)}
    return row if rank.beat else row | {"seconds": 0.0, "state": found.state or "still starting"}


class _Lines:
    """The lines of ``metrics.jsonl`` as the heartbeat of a user's script."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / results.METRICS
        self._size, self._began = self._now(), 0.0
        self._seconds: list[float] = []

    def _now(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def beat(self, now: float) -> Heartbeat | None:
        """The heartbeat from new lines; None until there are two of them to compare."""
        size = self._now()
        if size != self._size:
            self._seconds = [*self._seconds[-31:], now - self._began] if self._began else []
            self._size, self._began = size, now
        if not self._seconds:
            return None
        rows = results.newest(self._path.parent, 1)
        step = int(rows[-1]["step"]) if rows else 0
        usual = median(self._seconds)
        return Heartbeat(rank=0, pid=0, step=step, phase="unknown", began=self._began, entered=self._began, usual=usual)
