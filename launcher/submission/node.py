"""One node's part of a job: insert the node's facts into argv, start it, wait, and record how it ended.

Only the first node writes ``state.json`` and renews the run's heartbeat; the others leave a file if their part fails.
SIGUSR2 asks the ranks to save (before a time limit, a preemption, or after ``launch cancel``), repeated every two
seconds, since a rank may not have a handler yet; on this machine torchrun gets SIGTERM once and forwards it. If a node
finds that Slurm has restarted the job elsewhere, it ends its ranks and writes nothing: it no longer owns the state.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from launcher.base import files
from launcher.base.errors import JobFailed
from launcher.base.files import JsonObject
from launcher.base.process import Process, Timer
from launcher.data import epoch, token_folder
from launcher.job import torchrun
from launcher.rundir import attempts, contents, failure, keeper, results, state
from launcher.slurm import jobs
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.submission import ending, hanging, processes
from launcher.submission.processes import OomKillDetector, SlurmPlace

_POLL_S = 0.1  # Seconds between two looks at the agent.
_REMIND_S = 2.0  # Seconds between two signals to ranks that may not have installed a handler yet.
_GRACE_S = 20.0
"""Seconds in which ranks notice by themselves that another has failed; one that hangs or is stopped does not."""

_LOOK_S = 2.0  # Seconds between two checks whether the job has been restarted elsewhere.


def run(directory: Path, *, facts: Mapping[str, str] | None = None, place: SlurmPlace | None = None) -> None:
    """Run this node's part of the recorded job to its end. Raises JobFailed, with the worker's last error if any."""
    job = contents.job_of(directory)
    if place is not None and _is_done(directory, place):
        return
    if place is not None and place.number:
        _other_node(directory, job, facts or {}, place)
        return
    with keeper.heartbeat(directory):
        _forget_last_attempt(directory)
        reason = _first_node(directory, job, facts or {}, place)
    if reason is not None:
        raise JobFailed(reason)


def _is_done(directory: Path, place: SlurmPlace) -> bool:
    """True if this job has already finished the run: Slurm 24.11 requeues a preempted job once more as it ends."""
    content = contents.known(directory, contents.STATE)
    return content.get("state") == "finished" and content.get("job_id") == place.job_id


def _first_node(directory: Path, job: JsonObject, facts: Mapping[str, str], place: SlurmPlace | None) -> str | None:
    if place is not None and (reason := _crash_loop(directory, ending.requeues(directory), place)) is not None:
        state.put(directory, "failed", reason=reason, job_id=place.job_id)
        return reason
    if place is None and ending.asked_to_end(directory):  # With several nodes, the others would wait for this one.
        return ending.conclude(directory, 0, place)
    attempt = str(os.getpid()) if place is None else place.attempt
    before = preparing_job(directory, job, attempt)
    if before is not None:
        with processes.start_agent(directory, before, facts, place) as process:
            _running(directory, process, place, reason="tokenizing the data")
            wait_for_process(process, lambda: _asked_to_stop(directory, place))
        if process.returncode:
            return _not_prepared(directory, process.returncode, attempt, place)
        if place is None and ending.asked_to_end(directory):  # The request came while that process was ending.
            return ending.conclude(directory, process.returncode, place)
    returncode = _ranks(directory, job, facts, place)
    if returncode == 0 and (after := evaluating_job(directory, job, attempt)) is not None:
        with processes.start_agent(directory, after, facts, place) as process:
            _running(directory, process, place, reason="evaluating the exported model on tasks")
            stopped = wait_for_process(process, lambda: _asked_to_stop(directory, place))
        if place is not None and attempts.superseded(directory, place.attempt):
            return None
        if stopped:
            ending.interrupt(directory)  # The next attempt has no step to do, exports again and evaluates.
        elif process.returncode:
            return _not_evaluated(directory, process.returncode, attempt, place)
    return None if returncode is None else ending.conclude(directory, returncode, place)


def _ranks(directory: Path, job: JsonObject, facts: Mapping[str, str], place: SlurmPlace | None) -> int | None:
    superseded, killing, is_first = False, OomKillDetector(directory), place is None or place.number == 0
    for watch in hanging.watches(directory, place):
        with processes.start_agent(directory, job, facts, place, watch.environment) as process:
            if is_first:
                _running(directory, process, place)
            superseded = _wait(process, directory, place, watch, killing)
            killing.read(watch.folder)
        processes.end_leftovers(directory)
    if process.returncode and not superseded:
        killing.tell(directory / "logs" / f"{processes.log_name(place)}.err", process)
    return None if superseded else process.returncode


def _running(
    directory: Path, process: subprocess.Popen[bytes], place: SlurmPlace | None, reason: str | None = None
) -> None:
    if place is not None:
        state.put(directory, "running", reason=reason, job_id=place.job_id)
        return
    keeper, agent = Process.here().as_dict(), Process.of(process.pid).as_dict()
    state.put(directory, "running", reason=reason, keeper=keeper, agent=agent)


def _asked_to_stop(directory: Path, place: SlurmPlace | None) -> bool:
    if place is None:
        return ending.asked_to_end(directory)
    told = place.told_to_save.is_set() or place.told_to_end.is_set()
    return told or ending.asked_to_end(directory) or attempts.superseded(directory, place.attempt)


def _not_prepared(directory: Path, returncode: int, attempt: str, place: SlurmPlace | None) -> str | None:
    """Conclude a job that ended before its ranks started: by an error in the data, or because it was told to."""
    if place is not None and attempts.superseded(directory, place.attempt):
        return None
    reason = None if ending.asked_to_end(directory) else preparing_failure(directory, attempt, returncode)
    if reason is None:
        return ending.conclude(directory, returncode, place)
    return _failed(directory, reason, place)


def _failed(directory: Path, reason: str, place: SlurmPlace | None) -> str:
    state.put(directory, "failed", reason=reason, **({} if place is None else {"job_id": place.job_id}))
    return reason


def _not_evaluated(directory: Path, returncode: int, attempt: str, place: SlurmPlace | None) -> str:
    """Record a run whose model is trained and exported, but whose tasks failed; returns the reason."""
    noted = files.read_json(directory / results.EVALUATION) or {}
    said = (noted.get("error") if noted.get("attempt") == attempt else None) or f"status {returncode}"
    return _failed(directory, f"eval.tasks failed, after training and export: {said}", place)


def _other_node(directory: Path, job: JsonObject, facts: Mapping[str, str], place: SlurmPlace) -> None:
    """Run the part of a node other than the first; if its ranks fail, leave a file for the first, which concludes."""
    (directory / "logs" / f"node{place.number}.err").unlink(missing_ok=True)
    if not wait_for_tokens(directory, place.attempt, place.number, lambda: _asked_to_stop(directory, place)):
        return
    if returncode := _ranks(directory, job, facts, place):
        name = f"node{place.number}.{place.attempt}.failed"
        files.write_atomically(directory / "logs" / name, {"returncode": returncode})


def _wait(
    process: subprocess.Popen[bytes],
    directory: Path,
    place: SlurmPlace | None,
    watch: hanging.HangWatch,
    killing: OomKillDetector,
) -> bool:
    failed, told = None, False
    remind, look = Timer(_REMIND_S, at_once=True), Timer(_LOOK_S, at_once=True)
    killing.look()  # Once before the loop, for a job that ends at once.
    while process.poll() is None:  # Not wait(): a signal handler that polls would deadlock on its lock.
        time.sleep(_POLL_S)
        watch.look(process)
        killing.look()
        if place is None:
            if not told and ending.asked_to_end(directory):
                told = True
                process.terminate()
            continue
        now = time.monotonic()
        wants_save = place.told_to_save.is_set() or ending.asked_to_end(directory)
        if wants_save and remind.is_due():
            processes.ask_to_save(process, own=ending.spec(directory).get("script") is None)
        if place.number == 0 and failed is None and _has_failed(directory, place):
            failed = now
        if failed is not None and now - failed > _GRACE_S:
            process.kill()
        if look.is_due() and attempts.superseded(directory, place.attempt):
            process.kill()
            process.wait()
            return True
    return False


def _has_failed(directory: Path, place: SlurmPlace) -> bool:
    logs = directory / "logs"
    return any(logs.glob(f"node*.{place.attempt}.failed")) or any(logs.glob("error.rank*.json"))


def _crash_loop(directory: Path, limit: int, place: SlurmPlace) -> str | None:
    before = files.read_json(directory / "state.json") or {}
    tried = attempts.begin(directory, place.attempt)
    if tried.fruitless <= limit:
        return None
    last = f": {before['reason']}" if before.get("reason") else ""
    return f"{tried.fruitless} attempts in a row left no new checkpoint (cluster.requeues={limit}){last}"


def _forget_last_attempt(directory: Path) -> None:
    """Remove the files of the last attempt, which would be mistaken for those of this one."""
    logs = directory / "logs"
    # Each node removes its own output: another may have started before this one.
    old = [*logs.glob("error.rank*.json"), *logs.glob("node*.failed"), logs / "outcome.json", logs / "node.err"]
    # A request to end stays: it was made for this attempt, while it was starting.
    for path in (*old, directory / failure.HUNG):
        path.unlink(missing_ok=True)
    failure.put_out_of_memory_aside(directory)


_REQUEUE_PATIENCE_S = 90
"""Seconds that a job that has saved waits for an unreachable controller; after Slurm's margin it is ended anyway."""


class NodeTask:
    """The pickled callable: importable and stateless; everything the job needs is in the run directory."""

    def __call__(self, directory: str) -> None:
        """Run this node's part of the job.

        The early signal only sets a flag. Submitit's own handler would treat any signal as a timeout in jobs of ten
        minutes or less, and would decide inside the handler, before the ranks have finished.
        """
        import submitit

        environment = submitit.JobEnvironment()
        if environment.cluster == "local":
            run(Path(directory))
            return
        told = {signal.SIGUSR2: threading.Event(), signal.SIGTERM: threading.Event()}

        def note(number: int, frame: FrameType | None) -> None:
            told[signal.Signals(number)].set()

        for each in told:
            signal.signal(each, note)
        job_id = environment.raw_job_id
        restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        attempt = f"{job_id}_{restarts}"
        # Below the ephemeral ports (32768), equal on all nodes and different for each attempt.
        port = 20000 + (int("".join(filter(str.isdigit, job_id)) or 0) + 4999 * restarts) % 10000
        facts = {
            torchrun.HOST: environment.hostnames[0],
            torchrun.PORT: str(port),
            torchrun.IS_HOST: "1" if environment.node == 0 else "0",
            torchrun.RENDEZVOUS: attempt,
        }
        place = SlurmPlace(
            job_id=environment.job_id,
            number=environment.node,
            attempt=attempt,
            told_to_save=told[signal.SIGUSR2],
            told_to_end=told[signal.SIGTERM],
            requeue=lambda: jobs.ask("scontrol", "requeue", environment.job_id, patience_s=_REQUEUE_PATIENCE_S),
            seconds_left=lambda: jobs.seconds_left(environment.job_id),
            without=lambda bad: jobs.obstacle(environment.job_id, bad),
            exclude=lambda bad: jobs.exclude(environment.job_id, bad, patience_s=_REQUEUE_PATIENCE_S),
            hosts=tuple(environment.hostnames),
        )
        run(Path(directory), facts=facts, place=place)

    def checkpoint(self, directory: str) -> Any:
        """Requeue the task unchanged: submitit asks only if the signal comes before :meth:`__call__`."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, directory)


_SHARED_LOOK_S = 1.0  # Seconds between two looks at a shared file system.
_UNSEEN_S = 60.0
"""Seconds after which a folder written by another node is visible on any shared file system."""


def preparing_job(directory: Path, ranks: JsonObject, attempt: str) -> JsonObject | None:
    """The job that tokenizes the data, in the ranks' own Python and on all cores; None if the run needs none."""
    spec = _spec(directory)
    if spec is None or not token_folder.is_tokenised(spec):
        return None
    if (found := token_folder.recorded_folder(directory, spec.data)) is not None:
        token_folder.record_folder(directory, spec.data, found, attempt, epoch.steps_of(spec, found))
        return None
    argv = [ranks["argv"][0], "-P", "-m", "launcher.worker.prepare", f"--run={directory}", f"--attempt={attempt}"]
    return {**ranks, "argv": argv, "environment": {**ranks["environment"], "TOKENIZERS_PARALLELISM": "true"}}


def wait_for_process(process: subprocess.Popen[bytes], stopped: Callable[[], bool]) -> bool:
    """Wait for a process that runs before or after the ranks; True if it was ended because the job was told to stop."""
    while process.poll() is None:
        time.sleep(_POLL_S)
        if stopped():
            process.terminate()
            process.wait()
            return True
    return False


def preparing_failure(directory: Path, attempt: str, returncode: int) -> str | None:
    """Why tokenizing failed, from its own record or its return code; None if it was told to stop."""
    content = files.read_json(directory / token_folder.POINTER) or {}
    if content.get("attempt") == attempt and "error" in content:
        return str(content["error"])
    if returncode == -signal.SIGKILL:
        return "tokenizing the data was ended by SIGKILL: the kernel may have been out of memory"
    return None


def evaluating_job(directory: Path, ranks: JsonObject, attempt: str) -> JsonObject | None:
    """The job that evaluates a finished run's export on tasks; None if it has no tasks or has not finished."""
    spec, outcome = _spec(directory), files.read_json(directory / "logs" / "outcome.json") or {}
    if spec is None or not spec.eval.tasks or outcome.get("state") != "finished":
        return None
    argv = [ranks["argv"][0], "-P", "-m", "launcher.worker.evaluate", f"--run={directory}", f"--attempt={attempt}"]
    # This single process may use all cores of the node; each rank was limited to one.
    alone = {name: value for name, value in ranks["environment"].items() if name != "OMP_NUM_THREADS"}
    return {**ranks, "argv": argv, "environment": alone}


def wait_for_tokens(directory: Path, attempt: str, node: int, stopped: Callable[[], bool]) -> bool:
    """Wait, on another node, for the first node's token ids; False if told to stop. Raises JobFailed on its error."""
    spec = _spec(directory)
    if spec is None or not token_folder.is_tokenised(spec):
        return True
    while not stopped():
        content = files.read_json(directory / token_folder.POINTER) or {}
        if content.get("attempt") == attempt:
            if "error" in content:
                raise JobFailed(content["error"])
            folder, rank = token_folder.folder_of(content, directory), node * spec.cluster.gpus_per_node
            return _wait_until_seen(folder, directory, rank, stopped)
        time.sleep(_SHARED_LOOK_S)
    return False


def _wait_until_seen(folder: Path, directory: Path, rank: int, stopped: Callable[[], bool]) -> bool:
    """Wait until the folder is visible; if it never is, leave a rank's error file, which the first node reads."""
    until = time.monotonic() + _UNSEEN_S
    while token_folder.read(folder) is None:
        if stopped():
            return False
        if time.monotonic() > until:
            message = (
                f"node {os.uname().nodename} does not see the token ids in {folder}: set cluster.shared_folder or"
                f" {token_folder.CACHE} to a folder that all nodes share"
            )
            content = {"type": "DataError", "message": message, "traceback": ""}
            files.write_atomically(directory / "logs" / f"error.rank{rank}.json", content)
            return False
        time.sleep(_SHARED_LOOK_S)
    return True


def _spec(directory: Path) -> RunSpec | None:
    content = files.load_json(directory / "spec.json")
    return parse(content) if "data" in content else None
