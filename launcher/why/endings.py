"""Ends other than running out of memory: a signal, a hang, a NaN loss, a time limit, a preemption, an error.

Each function answers for one cause.
"""

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from launcher.base import files, typed
from launcher.base.files import JsonObject
from launcher.job.memory import OutOfMemory
from launcher.rundir import contents, failure, health, output, results
from launcher.spec import edit
from launcher.why import host
from launcher.why.answer import Answer, Cause, Evidence, WayOut, Where
from launcher.why.subject import Subject

_STEP = re.compile(r"\bstep (\d+)")


def answer(run: Subject) -> Answer:
    """The answer about a run that failed for a reason other than memory, or that is requeued."""
    by_files = run.failure.kind if run.failure.text and run.failure.text in run.reason else "error"
    return _ANSWERS[run.row.cause if run.row.cause in _ANSWERS else by_files](run)


def _killed(run: Subject) -> Answer:
    said = [run.reason or "a rank was killed"]
    if "SIGKILL" in run.reason:
        said.append(
            "SIGKILL comes from the kernel if a node runs out of memory (`dmesg` there shows `Out of memory`), "
            "from an administrator, or from a container that ends"
        )
    found = [
        *run.evidence_in("logs/node.err", r"exitcode\s*:\s*-\d+"),
        *_slurm_evidence(run, r"(?i)oom[-_]kill|error:"),
    ]
    reads_ahead, node = run.settings is not None and run.settings.data.workers, run.failure.node
    fewer = run.offer("data.workers=0", "less host memory: no data loader processes", when=reads_ahead)
    ways = [run.resume(text=run.from_here()), *fewer]
    return run.answer(
        "rank_killed", said, where=Where(rank=_rank(run), step=_last_step(run), node=node), evidence=found, ways=ways
    )


def _hang(run: Subject) -> Answer:
    found = [*_hang_event(run), *run.evidence_of(failure.HUNG, "why the ranks were ended")]
    stacks = health.stacks(run.run)
    if stacks is not None:
        found += run.evidence_of(stacks, "the Python stacks of all ranks")
    found += first_error(run)
    ranks = _hung_ranks(run)
    by_hand = run.settings is not None and run.settings.train.on_hang != "restart"
    ways = [
        WayOut(command=shlex.join(["launch", "logs", run.name]), text="shows the stacks"),
        run.resume(text=run.from_here()),
        *run.offer("train.on_hang=restart", "restarts automatically when a step hangs", when=by_hand),
    ]
    first = ranks[0] if ranks else {}
    step = first.get("step") or _step_in(run.reason) or _last_step(run)
    at = Where(rank=first.get("rank", _rank(run)), phase=first.get("phase"), step=step, node=first.get("host"))
    return run.answer("hang", [run.reason or "a step hung"], where=at, evidence=found, ways=ways)


def _nan(run: Subject) -> Answer:
    found = [
        *run.evidence_in("events.jsonl", r'"kind": "spike"'),
        *run.evidence_in("metrics.jsonl", lambda text: '"loss"' in text),
        *first_error(run),
    ]
    said = [run.reason]
    rows = results.steps(run.run)
    if rows:
        last = rows[-1]
        said.append(f"the last loss before that was {last['loss']:.4g} in step {last['step']}{_gradient(last)}")
    ways = [*_stabler(run), run.resume(text=run.from_here())]
    return run.answer("nan", said, where=Where(step=_step_in(run.reason)), evidence=found, ways=ways)


def _gradient(last: JsonObject) -> str:
    said = []
    norm, rate = results.number(last, "grad_norm"), results.number(last, "learning_rate")
    if norm is not None:
        said.append(f"a gradient norm of {norm:.3g}")
    elif "grad_norm" in last:
        said.append("a gradient norm that was already NaN or infinite")
    if rate is not None:
        said.append(f"a learning rate of {rate:.3g}")
    return f", with {' and '.join(said)}" if said else ""


def _stabler(run: Subject) -> Iterator[WayOut]:
    if (spec := run.settings) is None:
        return
    unclipped = spec.optimizer.clip in (None, 0)
    yield from run.offer("optimizer.clip=1.0", "clips the gradient norm to 1", when=unclipped)
    yield from run.offer(edit.override("optimizer.lr", spec.optimizer.lr / 2), "half the learning rate")
    yield from run.offer("train.on_spike=rollback", "rolls back automatically and skips the samples", when=run.saved)


def _time_limit(run: Subject) -> Answer:
    spec = run.settings
    limit, seldom = None if spec is None else spec.cluster.time_limit_min, spec is not None and spec.save_every is None
    longer = run.offer(f"cluster.time_limit_min={2 * (limit or 0)}", "twice the time limit", when=limit)
    often = run.offer("save.every=100", "a checkpoint every 100 steps, so that less is lost", when=seldom)
    return _ended_by_slurm(run, "time_limit", [*longer, *often])


def _preempted(run: Subject) -> Answer:
    seldom = run.settings is not None and run.settings.cluster.requeues < 3
    often = run.offer("cluster.requeues=10", "is requeued up to ten times in a row", when=seldom)
    return _ended_by_slurm(run, "preempted", often)


def _ended_by_slurm(run: Subject, cause: Cause, ways: list[WayOut]) -> Answer:
    said = [run.reason]
    if run.row.state == "requeued":
        said.append(f"it waits in the queue and will continue by itself; {run.from_here()}")
        ways = []
    else:
        ways = [run.resume(text=run.from_here()), *ways]
    found = [*run.evidence_of(contents.STATE, run.reason), *_slurm_evidence(run, r"(?i)time limit|preempt")]
    return run.answer(cause, said, where=Where(step=_step_in(run.reason) or _last_step(run)), evidence=found, ways=ways)


def _disk(run: Subject) -> Answer:
    error = run.errors[0] if run.errors else {}
    oom = OutOfMemory(
        kind="disk",
        place="disk",
        time=0.0,
        rank=_rank(run),
        node=error.get("node"),
        step=_step_in(run.reason) or _last_step(run),
        phase="checkpoint_save" if re.search(r"checkpoint|save", run.reason) else None,
        operation=next(iter(re.findall(r"'(/[^']+)'", run.reason)), None),
        message=run.reason,
    )
    return host.of_the_disk(run, oom)


def _host_memory(run: Subject) -> Answer:
    killed = re.search(r"ended by the kernel|the kernel killed|oom_kill", run.reason)
    kind: Any = "slurm" if "OUT_OF_MEMORY" in run.reason else "host_killer" if killed else "allocator"
    oom = OutOfMemory(
        kind=kind, place="host", time=0.0, rank=_rank(run), node=None, step=_last_step(run), message=run.reason
    )
    return host.of_the_host(run, oom, run.reason)


def _error(run: Subject) -> Answer:
    said = [run.reason or "it failed without a message"]
    where = Where(rank=_rank(run), step=_last_step(run), node=run.errors[0].get("node") if run.errors else None)
    found = list(frames(run)) + list(first_error(run)) + list(_last_lines(run))
    if run.row.state == "lost":
        said.append("no process was left to record how it ended: a reboot, a killed session, or all processes killed")
    ways = [WayOut(command=shlex.join(["launch", "logs", run.name]), text="the traceback and the ranks' output")]
    ways.append(run.resume(text=f"once that is fixed; {run.from_here()}"))
    return run.answer("error", said, where=where, evidence=found, ways=ways)


_ANSWERS = {
    "rank_killed": _killed,
    "hang": _hang,
    "nan": _nan,
    "time_limit": _time_limit,
    "preempted": _preempted,
    "disk": _disk,
    "out_of_memory": _host_memory,
    "error": _error,
}


def frames(run: Subject) -> Iterator[Evidence]:
    """File and line of the error's innermost frame outside installed packages, else of the innermost."""
    message, traceback = _traceback(run)
    frames = re.findall(r'^\s*File "([^"]+)", line (\d+), in (\S+)', traceback, re.MULTILINE)
    own = [frame for frame in frames if "site-packages" not in frame[0] and "/lib/python" not in frame[0]]
    for file, line, function in (own or frames)[-1:]:
        yield Evidence(file=file, line=int(line), text=f"{message[:160]} in {function}")


def _traceback(run: Subject) -> tuple[str, str]:
    for error in run.errors[:1]:
        return error["message"].partition("\n")[0], error["traceback"]
    logged = output.logged_error(run.run)
    return ("", "") if logged is None else (logged["message"], logged["traceback"])


def first_error(run: Subject) -> Iterator[Evidence]:
    """The error file of the first rank that failed."""
    for error in run.errors[:1]:
        yield from run.evidence_of(f"logs/error.rank{error['rank']}.json", error["message"])


def _last_lines(run: Subject) -> Iterator[Evidence]:
    if run.errors:
        return
    yield from run.evidence_in(output.first_log(run.run) or run.run / "logs" / "node.err", r"\S")


def _hang_event(run: Subject) -> Iterator[Evidence]:
    return run.evidence_in("events.jsonl", r'"kind": "hang"')


def _hung_ranks(run: Subject) -> list[JsonObject]:
    for found in _hang_event(run):
        lines = files.last_lines(run.run / "events.jsonl")
        try:
            return health.suspects(json.loads(lines[(found.line or 1) - 1])["ranks"])
        except (ValueError, KeyError, IndexError, TypeError):
            return []
    return []


def _slurm_evidence(run: Subject, pattern: str) -> Iterator[Evidence]:
    return (line for path in run.slurm_logs for line in run.evidence_in(path, pattern))


def _rank(run: Subject) -> int | None:
    kept = run.content.get("rank")
    if typed.is_whole(kept):
        return kept
    found = re.search(r"\brank (\d+)", run.reason)
    return int(found[1]) if found else run.failure.rank


def _step_in(text: str) -> int | None:
    found = _STEP.search(text)
    return int(found[1]) if found else None


def _last_step(run: Subject) -> int | None:
    step = run.row.progress.step
    return None if step is None else step + 1
