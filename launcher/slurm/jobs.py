"""What Slurm knows about jobs: from squeue, else from accounting, else from scontrol, in few calls for many jobs.

A command that refuses some of many jobs still handles the others, and its message says which: such refusals are
returned by job, not raised. Slurm 22.05 accepts ``ExcNodeList`` only for a pending job, so a node is excluded between
``scontrol requeue`` and the job's next start.
"""

import contextlib
import itertools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from launcher.base.errors import SubmitError
from launcher.base.frozen import dataclass
from launcher.base.units import seconds_of

_MOST_AT_ONCE = 500  # Job ids in one command line.
_DOWN_STATES = ("down", "drain", "drng", "fail", "unk", "futr", "maint", "no_respond")
"""Prefixes of node states in which a node accepts no job (sinfo(1), "NODE STATE CODES")."""

_NONE = ("", "(null)")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One job as Slurm describes it."""

    state: str  # Slurm's name of the state, such as ``RUNNING`` or ``NODE_FAIL``.
    reason: str = ""  # Why it waits or ended, as Slurm names it; empty if there is none.
    exit_code: str = ""  # Of the batch script, as ``status:signal``; empty if unknown.
    nodes: str = ""  # The nodes it has or had; empty if there are none.
    start: str = ""  # The expected start of a pending job, as ``2026-11-22 16:05``; empty if unknown.


def look(ids: Iterable[str]) -> dict[str, QueuedJob]:
    """The jobs that Slurm still knows about, by id. Raises SubmitError if Slurm does not answer."""
    wanted = list(dict.fromkeys(ids))
    found: dict[str, QueuedJob] = {}
    for at in range(0, len(wanted), _MOST_AT_ONCE):
        found |= _queued(wanted[at : at + _MOST_AT_ONCE])
    missing = [job for job in wanted if job not in found]
    if missing:
        found |= _accounted(missing)
    for job, facts in found.items():
        if facts.state in ("FAILED", "NODE_FAIL") and not facts.exit_code:
            found[job] = _described(job) or facts
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The place of a job in the queue."""

    partition: str  # Where it waits.
    place: int  # Its place among the jobs that wait there, by priority: 1 is the next.
    jobs: int  # How many wait there.
    start: str  # Its expected start, as ``2026-11-22 16:05``; empty if unknown.


def waiting(ids: Iterable[str]) -> dict[str, Waiting]:
    """The places of pending jobs in the queue, from one call for all; empty if Slurm does not answer."""
    wanted = frozenset(ids)
    queue = ["squeue", "-h", "-a", "-r", "--states=PENDING", "--sort=-p,i", "-o", "%i|%P|%S"]
    try:
        lines = ask(*queue).splitlines() if wanted else []
    except (SlurmRefused, SubmitError):
        return {}
    before: Counter[str] = Counter()
    found: dict[str, tuple[str, int, str]] = {}
    for job, partitions, start in (line.split("|") for line in lines):
        before.update(partitions.split(","))  # A job for several partitions waits in each.
        if job in wanted:
            found[job] = (partitions, max(before[each] for each in partitions.split(",")), start)
    return {
        job: Waiting(
            partition=names, place=place, jobs=max(before[each] for each in names.split(",")), start=_minute(start)
        )
        for job, (names, place, start) in found.items()
    }


def jobs_by_comment() -> dict[str, str]:
    """The newest job for each comment, by which a job is found whose launcher ended before it recorded the id."""
    rows = [line.partition("|") for line in ask("squeue", "-h", "-a", "--states=all", "-o", "%i|%k").splitlines()]
    return {comment: job for job, _, comment in sorted(rows, key=lambda row: int(re.split(r"\D", row[0])[0]))}


def signal_jobs(ids: Iterable[str], signal: str) -> dict[str, str]:
    """Send a signal to the processes that srun runs for jobs; returns Slurm's message for each job that it refused.

    The call names job steps: for an array task while others wait, Slurm 22.05 says "try again later" although the
    signal was sent, and ``scancel`` repeats it until the task has ended. Raises SubmitError if Slurm does not answer.
    """
    wanted = list(ids)
    steps = {job: job for job in wanted}
    for some in itertools.batched(wanted, _MOST_AT_ONCE):
        with contextlib.suppress(SlurmRefused):  # Slurm has forgotten all of them: scancel reports that for each.
            for step in ask("squeue", "-h", "-a", "-s", f"--jobs={','.join(some)}", "-o", "%i").split():
                job, _, number = step.partition(".")
                if number.isdigit():  # Not the batch script or the extern step.
                    steps[job] = step
    return cancel(list(steps.values()), f"--signal={signal}")


def cancel(names: Sequence[str], *options: str) -> dict[str, str]:
    """Call scancel for jobs or steps; returns Slurm's message for each that it refused."""
    refused: dict[str, str] = {}
    for some in itertools.batched(names, _MOST_AT_ONCE):
        try:
            ask("scancel", *options, *some)
        except SlurmRefused as error:  # It has handled the others, and names those that it refused.
            named = [name for name in some if re.search(rf"\b{name}\b", str(error))]
            refused |= {name.partition(".")[0]: str(error) for name in named or some}
    return refused


def seconds_left(job: str) -> float | None:
    """Seconds that a job may still run; None if it has no limit, or if unknown."""
    try:
        text = ask("squeue", "-h", "-j", job, "-o", "%L").strip()
    except (SlurmRefused, SubmitError):
        return None
    return 0 if text == "INVALID" else seconds_of(text)  # INVALID is over its limit; UNLIMITED and NOT_SET have none.


def _queued(ids: list[str]) -> dict[str, QueuedJob]:
    command = ["squeue", "-h", "-a", "-r", "--states=all", f"--jobs={','.join(ids)}", "-o", "%i|%T|%r|%N|%S"]
    try:
        lines = ask(*command).splitlines()
    except SlurmRefused:  # "Invalid job id specified": Slurm has forgotten the only job asked for.
        return {}
    rows = (line.split("|") for line in lines)
    return {
        job: QueuedJob(state=state, reason=_word(reason), nodes=nodes, start=_minute(start))
        for job, state, reason, nodes, start in rows
    }


def _minute(start: str) -> str:
    """A time without seconds; empty if Slurm prints ``N/A``."""
    return start[:16].replace("T", " ") if start[:4].isdecimal() else ""


def _accounted(ids: list[str]) -> dict[str, QueuedJob]:
    command = ["sacct", "-n", "-P", "-X", f"--jobs={','.join(ids)}", "-o", "JobID,State,ExitCode,NodeList"]
    try:
        rows = [line.split("|") for line in ask(*command).splitlines()]
    except (SlurmRefused, SubmitError):
        return {}
    return {
        job: QueuedJob(state=state.split()[0], exit_code=code, nodes=_word(nodes))
        for job, state, code, nodes in rows
        if state
    }


def _facts(job: str, patience_s: float = 0) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", ask("scontrol", "-o", "show", "job", job, patience_s=patience_s)))


def _described(job: str) -> QueuedJob | None:
    try:
        facts = _facts(job)
    except SlurmRefused:
        return None
    return QueuedJob(
        state=facts.get("JobState", "FAILED"),
        reason=_word(facts.get("Reason", "")),
        exit_code=facts.get("ExitCode", ""),
        nodes=_word(facts.get("NodeList", "")),
    )


def _word(text: str) -> str:
    return "" if text in ("None", "(null)", "None assigned") else text


def obstacle(job: str, bad: Sequence[str]) -> str | None:
    """Why a job cannot run without some nodes; None if it can."""
    try:
        facts = _facts(job)
        fixed = [node for node in bad if node in _names(facts.get("ReqNodeList", ""))]
        partition = facts.get("Partition", "")
        rows = [line.split() for line in ask("sinfo", "-h", "-N", "-p", partition, "-o", "%N %T").splitlines()]
        out = {*bad, *_names(facts.get("ExcNodeList", ""))}
    except (SlurmRefused, SubmitError) as error:
        return f"Slurm does not say which other nodes there are: {error}"
    if fixed:
        return f"the job requests {', '.join(fixed)} by name (cluster.nodelist)"
    left = {node for node, state in rows if not state.startswith(_DOWN_STATES)} - out
    needed = int(re.match(r"\d*", facts.get("NumNodes", ""))[0] or 1)  # type: ignore[index]
    if len(left) >= needed:
        return None
    others = f"{len(left)} other {'node' if len(left) == 1 else 'nodes'} that {'is' if len(left) == 1 else 'are'} up"
    return f"partition {partition} has {others}, and the run needs {needed}"


def exclude(job: str, bad: Sequence[str], *, patience_s: float = 0) -> None:
    """Exclude nodes from a pending job, in addition to those already excluded; errors are those of ``ask``."""
    before = _facts(job, patience_s).get("ExcNodeList", "")
    every = ",".join([*([] if before in _NONE else [before]), *bad])
    ask("scontrol", "update", f"JobId={job}", f"ExcNodeList={every}", patience_s=patience_s)


def _names(nodes: str) -> list[str]:
    return ask("scontrol", "show", "hostnames", nodes).split() if nodes not in _NONE else []


_TIMEOUT_S = 60
"""Seconds for one command; Slurm's own messages time out after 10 (``MessageTimeout`` in slurm.conf(5))."""

_UNREACHABLE = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "slurmctld: connect",
         "Could not establish a configuration source")  # fmt: skip
_HAS_ENDED = 2021 % 256
"""Exit status of scancel, without a message, for a step that has ended (``ESLURM_ALREADY_DONE``, slurm_errno.h).

If Slurm tells scancel to try again later, it repeats a signal that may have ended the step the first time.
"""
_BETWEEN_S = 0.5  # Seconds between two attempts while the controller is unreachable.
LEAKS = ("SLURM_", "SLURMD_", "SRUN_", "SBATCH_", "SUBMITIT_")
"""Prefixes of variables that a surrounding Slurm job or submitit sets."""

RANKS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Variables that torchrun sets for a rank: a launch from inside a job must not pass them to the next job."""


class SlurmRefused(Exception):
    """Raised if a Slurm command fails for another reason than being unable to reach Slurm; the text is Slurm's."""


def ask(*command: str, patience_s: float = 0) -> str:
    """Run a Slurm command and return its output; retries for ``patience_s`` while the controller is unreachable.

    Raises SubmitError: there is no Slurm here, or no answer. Raises SlurmRefused: it answered with an error.
    """
    import subprocess  # Late, like `shutil`, because most commands only ask whether there is a Slurm.

    if not _is_here(command[0]):
        way = "submit from a login node, or use cluster=local"
        raise SubmitError(f"{command[0]} is not found: this machine has no Slurm; {way}")
    deadline = time.monotonic() + patience_s
    while True:
        try:
            done = subprocess.run(
                command, env=environment(os.environ), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise SubmitError(f"Slurm does not answer: {command[0]} took more than {_TIMEOUT_S} s") from None
        said = " ".join((done.stderr or done.stdout).split())
        if done.returncode == 0 or (command[0] == "scancel" and done.returncode == _HAS_ENDED and not said):
            # sbatch reports on stderr what it would do.
            return f"{done.stdout}{done.stderr}" if "--test-only" in command else done.stdout
        text = said or f"{command[0]} failed without a message (exit status {done.returncode})"
        if done.returncode < 0:  # Slurm ends the processes of a job that it requeues, including this command.
            text = f"{command[0]} was ended by {signal.Signals(-done.returncode).name}"
        elif not is_away(text):
            raise SlurmRefused(text)
        if time.monotonic() >= deadline:
            raise SubmitError(f"Slurm does not answer: {text}")
        time.sleep(_BETWEEN_S)


def installed() -> bool:
    """True if this machine has Slurm's commands."""
    return _is_here("scontrol")


def _is_here(program: str) -> bool:
    from shutil import which

    return which(program) is not None


def is_away(text: str) -> bool:
    """True if a command failed because the controller did not answer."""
    return any(words in text for words in _UNREACHABLE)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment without a surrounding job's variables, which would override the script's own options."""
    return {name: value for name, value in variables.items() if not leaks(name)}


def leaks(name: str) -> bool:
    """True if a variable belongs to a surrounding job, unlike ``SLURM_CONF``, which names the cluster."""
    return name != "SLURM_CONF" and (name.startswith(LEAKS) or name in RANKS)
