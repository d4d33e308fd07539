"""The cost of kills, on the development cluster (root, Linux): ``python -m benchmarks.slurm_kills --kills 50``.

Jobs on two nodes, of every engine, with and without background saves, are disturbed at random moments: by ``kill -9``
of a rank, of torchrun, or of slurmd, which is restarted, or by Slurm's early signal (``--kinds``). Each job must finish
with the losses of an undisturbed job of its engine. A kill costs the steps that are repeated, at most those since the
last checkpoint. A kill that hits nothing is retried, and an engine whose job ends before all of its kills gets another
job. The status is 1 unless every kill happened and its job finished well.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reporting import keep
from launcher import cli
from launcher.base import files
from launcher.rundir import attempts, results, state, status
from slurm import dev_cluster
from slurm.dev_cluster import Cluster

STEPS, EVERY = 120, 10
WORDS = (
    *("model=tiny", "model.num_hidden_layers=2", "model.hidden_size=64", "model.intermediate_size=96"),
    *("model.num_attention_heads=4", "model.num_key_value_heads=2"),
    *("precision=fp32", "data=synthetic", "train.sequence_length=32", "train.global_batch_size=8"),
    "train.micro_batch_size=4",
    *("cluster=slurm", "hardware.device=cpu", "cluster.nodes=2", "cluster.gpus_per_node=1", "cluster.exclusive=true"),
    *(f"train.steps={STEPS}", f"save.every={EVERY}", "cluster.requeues=20"),
)
ENGINES: dict[str, tuple[str, ...]] = {
    "fsdp": ("parallel=fsdp",),
    "fsdp_async": ("parallel=fsdp", "save.async=true"),
    "ddp": ("parallel=ddp",),
    "ddp_async": ("parallel=ddp", "save.async=true"),
    "zero1": ("parallel=zero1",),
    "zero2": ("parallel=zero2",),
    "zero3": ("parallel=zero3",),
    "megatron": ("parallel=tp", "parallel.tensor=2"),
    "megatron_async": ("parallel=tp", "parallel.tensor=2", "save.async=true"),
}
KINDS = ("rank", "torchrun", "slurmd", "signal")
AT_ONCE, NODES = 2, 8
"""Jobs, each with two nodes of its own; most of their time they wait for Slurm to put them back, and a node that has
failed twice is left out."""

_PATIENCE_S = 900
_MOMENT_S = 1.5
"""A kill comes up to so long after its step, so that it meets saves and starts as well."""

_LOOK_S = 2.0
"""Between two questions to Slurm."""


def main() -> None:
    """Disturb jobs until all kills are spent, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--engines", default=",".join(ENGINES), help="default %(default)s")
    parser.add_argument("--kinds", default="rank,torchrun,slurmd", help=f"of {', '.join(KINDS)} (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=120, help="stop after this many minutes (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    engines, kinds = options.engines.split(","), options.kinds.split(",")
    if unknown := [*(set(engines) - set(ENGINES)), *(set(kinds) - set(KINDS))]:
        parser.error(f"unknown: {', '.join(unknown)}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="launch-kills-") as name, contextlib.chdir(name):
        cluster = dev_cluster.start(Path(name) / "c", lifetime_s=6 * 3600, nodes=NODES)
        try:
            os.environ.update(cluster.environment)
            chances = Chances(cluster, options.seed, began + 60 * options.minutes, kinds)
            shares = [options.kills // len(engines) + (n < options.kills % len(engines)) for n in range(len(engines))]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                found = list(pool.map(functools.partial(_engine, chances), engines, shares))
        finally:
            cluster.stop()
    jobs = [job for of_engine in found for job in of_engine]
    figures = {"seed": options.seed, **_figures(jobs, kinds), "minutes": round((time.monotonic() - began) / 60, 1)}
    keep(
        "slurm_kills",
        f"python -m benchmarks.slurm_kills --kills {options.kills} --engines {options.engines} --kinds {options.kinds} "
        f"--minutes {options.minutes:g} --seed {options.seed}",
        figures,
    )
    sys.exit(0 if figures["kills_that_ended_well"] == options.kills else 1)


@dataclass(frozen=True, slots=True)
class Chances:
    """Where, until when and how jobs are disturbed; the seed decides the moments."""

    cluster: Cluster
    seed: int
    until: float
    kinds: Sequence[str]


def _figures(found: Sequence[dict[str, Any]], kinds: Sequence[str]) -> dict[str, Any]:
    jobs = [job for job in found if job["kills"]]
    kills = [kill for job in jobs for kill in job["kills"]]
    lost = [kill["steps_lost"] for kill in kills]
    good = [job for job in jobs if job["state"] == "finished" and job["undisturbed_losses"]]
    return {
        "steps": STEPS,
        "checkpoint_every": EVERY,
        "jobs": len(jobs),
        "jobs_finished": sum(job["state"] == "finished" for job in jobs),
        "jobs_with_the_undisturbed_losses": sum(job["undisturbed_losses"] for job in jobs),
        "kills": len(kills),
        "kills_that_ended_well": sum(len(job["kills"]) for job in good),
        "kills_by_kind": {kind: sum(kill["kind"] == kind for kill in kills) for kind in kinds},
        "engines": {
            job["name"]: {
                "kills": len(job["kills"]),
                "state": job["state"],
                "reason": job["reason"],
                "undisturbed_losses": job["undisturbed_losses"],
                "attempts": job["attempts"],
            }
            for job in jobs
        },
        "steps_lost_worst": max(lost, default=None),
        "steps_lost_mean": round(sum(lost) / len(lost), 2) if lost else None,
    }


def _engine(chances: Chances, engine: str, kills: int) -> list[dict[str, Any]]:
    """The jobs that received an engine's kills, and one undisturbed job."""
    jobs = list[dict[str, Any]]()
    if kills == 0 or time.monotonic() > chances.until:
        return jobs
    whole = _finished(_submitted(f"{engine}_whole", engine))
    chance = random.Random(f"{chances.seed} {engine}")
    while (left := kills - sum(len(job["kills"]) for job in jobs)) and time.monotonic() < chances.until:
        job = _disturbed(chances, chance, engine, f"{engine}_{len(jobs)}" if jobs else engine, left)
        jobs.append(job | {"undisturbed_losses": job["losses"] == whole["losses"] and len(whole["losses"]) == STEPS})
        if job["state"] != "finished":
            break
    return jobs


def _disturbed(chances: Chances, chance: random.Random, engine: str, name: str, wanted: int) -> dict[str, Any]:
    """One job with its kills, each at a random moment after it has gone on from the last; none is begun too late."""
    run, kills = _submitted(f"{name}_disturbed", engine), list[dict[str, Any]]()
    for each in range(wanted):
        low, high = (number * (STEPS - EVERY) // wanted for number in (each, each + 1))
        _wait(run, chance.randrange(low + 1, high + 1))
        time.sleep(chance.random() * _MOMENT_S)
        kind = chance.choice(chances.kinds)
        while status.read(run).state not in state.ENDED and time.monotonic() < chances.until:
            before, attempt = results.read_progress(run).step or 0, _attempt(run)
            if _kill(chances.cluster, run, engine, kind, chance):
                # Without its slurmd the job goes on, and slurmd finds it again.
                kills.append({"kind": kind, "steps_lost": 0 if kind == "slurmd" else _lost(run, before, attempt)})
                print(f"{name}: kill {len(kills)} of {wanted}, {kind} at step {before}: {kills[-1]}", flush=True)
                break
            time.sleep(_LOOK_S)  # It was not there: the job is about to begin.
    return {"name": name, **_finished(run), "kills": kills, "attempts": _attempt(run)}


def _kill(cluster: Cluster, run: Path, engine: str, kind: str, chance: random.Random) -> bool:
    """Kill one of a job's processes; False if there was none to kill."""
    if kind == "signal":
        cluster.ask("scancel", "--signal=USR2", str(status.read(run).job_id))
        return True
    if kind == "slurmd":
        nodes = cluster.ask("squeue", "-h", "-j", str(status.read(run).job_id), "-o", "%N")
        if not nodes:
            return False
        node = chance.choice(cluster.ask("scontrol", "show", "hostnames", nodes).split())
        cluster.kill(node, "slurmd")
        time.sleep(1)
        cluster.revive(node, "slurmd", "-D", "-N", node)
        return True
    backend = {"zero": "deepspeed", "mega": "megatron"}.get(engine[:4], "fsdp")
    found = _processes(run, f"launcher.worker.{backend}" if kind == "rank" else "torch.distributed.run")
    with contextlib.suppress(ProcessLookupError):
        if found:
            os.kill(chance.choice(found), signal.SIGKILL)
            return True
    return False


def _processes(run: Path, mark: str) -> list[int]:
    """Processes of a run by what they run; torchrun's command line names its program as well."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            agent = "torch.distributed.run" in words
            ours = f"LAUNCH_RUN={run}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if ours and mark in words and agent == (mark == "torch.distributed.run"):
                found.append(int(entry.name))
    return found


def _lost(run: Path, before: int, attempt: int) -> int:
    """Steps done again: those after the checkpoint that the next attempt starts from."""
    deadline = time.monotonic() + _PATIENCE_S
    while _attempt(run) == attempt and time.monotonic() < deadline:
        if status.read(run).state in state.ENDED:
            break
        time.sleep(0.5)
    return max(0, before - (results.read_progress(run).checkpoint_step or 0))


def _attempt(run: Path) -> int:
    return int((files.read_json(run / attempts.FILE) or {}).get("count", 0))


def _submitted(name: str, engine: str) -> Path:
    if cli.main([*WORDS, *ENGINES[engine], f"run.name={name}"]) != 0:
        raise RuntimeError(f"{name} was not submitted")
    return Path.cwd() / "runs" / name


def _wait(run: Path, step: int) -> None:
    """Wait until a run has reached a step, has ended, or has stopped making progress."""
    looked = began = time.monotonic()
    while (results.read_progress(run).step or 0) < step and time.monotonic() < began + _PATIENCE_S:
        now = time.monotonic()
        if now > looked + _LOOK_S:
            looked = now
            if status.read(run).state in state.ENDED:
                return
        time.sleep(0.05)


def _finished(run: Path) -> dict[str, Any]:
    _wait(run, STEPS)
    deadline = time.monotonic() + _PATIENCE_S
    while (ending := status.read(run)).state not in state.ENDED and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {"state": ending.state, "reason": ending.reason, "losses": [line["loss"] for line in lines]}


if __name__ == "__main__":
    main()
