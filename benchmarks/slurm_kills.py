"""The cost of kills ``python -m benchmarks.slurm_kills --kills 50``, on the development cluster (root, Linux).

Jobs of 200 steps on two nodes are disturbed at random moments: a rank or torchrun is killed, slurmd is killed and
comes back, Slurm's early signal is sent. Each job must finish with the losses of an undisturbed one; what a kill costs
are the steps done again, at most those since the last checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.reporting import keep
from launcher import cli, files
from launcher.rundir import attempts, progress, state, status
from slurm import dev_cluster
from slurm.dev_cluster import Cluster

STEPS, EVERY, KILLS_A_JOB = 200, 20, 5
WORDS = (
    *("model=tiny", "model.num_hidden_layers=2", "model.hidden_size=64", "model.intermediate_size=96"),
    *("model.num_attention_heads=4", "model.num_key_value_heads=2"),
    *("parallel=fsdp", "precision=fp32", "data=synthetic", "train.sequence_length=32", "train.global_batch_size=8"),
    "train.micro_batch_size=4",
    *("cluster=slurm", "hardware.device=cpu", "cluster.nodes=2", "cluster.gpus_per_node=1", "cluster.exclusive=true"),
    *(f"train.steps={STEPS}", f"save.every={EVERY}"),
)
KINDS = ("rank", "torchrun", "slurmd", "signal")
AT_ONCE = 2
"""Jobs, each with nodes of its own; most of their time they wait for Slurm to put them back."""

_PATIENCE_S = 600
_LOOK_S = 2.0
"""Between two questions to Slurm."""


def main() -> None:
    """Disturb jobs until all kills are spent, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=120, help="kill no more after so long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="launch-kills-") as name, contextlib.chdir(name):
        cluster = dev_cluster.start(Path(name) / "c", lifetime_s=6 * 3600)
        try:
            os.environ.update(cluster.environment)
            whole = _finished(_submitted("whole"))
            with ThreadPoolExecutor(AT_ONCE) as pool:
                numbers = range(-(-options.kills // KILLS_A_JOB))
                until = began + 60 * options.minutes
                found = pool.map(lambda number: _disturbed(cluster, number, options.seed, until), numbers)
                jobs = [job for job in found if job["kills"]]
        finally:
            cluster.stop()
    kills = [kill for job in jobs for kill in job["kills"]]
    lost = [kill["steps_lost"] for kill in kills]
    keep(
        "slurm_kills",
        f"python -m benchmarks.slurm_kills --kills {options.kills} --minutes {options.minutes:g} --seed {options.seed}",
        {
            "steps": STEPS,
            "checkpoint_every": EVERY,
            "jobs": len(jobs),
            "jobs_finished": sum(job["state"] == "finished" for job in jobs),
            "jobs_with_the_undisturbed_losses": sum(job["losses"] == whole["losses"] for job in jobs),
            "kills": len(kills),
            "kills_by_kind": {kind: sum(kill["kind"] == kind for kill in kills) for kind in KINDS},
            "steps_lost_worst": max(lost, default=None),
            "steps_lost_mean": round(sum(lost) / len(lost), 2) if lost else None,
            "minutes": round((time.monotonic() - began) / 60, 1),
        },
    )


def _disturbed(cluster: Cluster, number: int, seed: int, until: float) -> dict[str, Any]:
    """One job with its kills, each at a random step after it has gone on from the last; none is begun too late."""
    if time.monotonic() > until:
        return {"kills": []}
    chance = random.Random(f"{seed} {number}")
    run, kills = _submitted(f"disturbed{number}"), list[dict[str, Any]]()
    for each in range(KILLS_A_JOB):
        low = each * STEPS // KILLS_A_JOB
        _wait(run, low + chance.randrange(1, STEPS // KILLS_A_JOB))
        if status.read(run).state in state.ENDED or time.monotonic() > until:
            break
        kind, before, attempt = chance.choice(KINDS), progress.read(run).step or 0, _attempt(run)
        _kill(cluster, run, kind, chance)
        # Without its slurmd the job goes on, and slurmd finds it again.
        kills.append({"kind": kind, "steps_lost": 0 if kind == "slurmd" else _lost(run, before, attempt)})
    return {**_finished(run), "kills": kills}


def _kill(cluster: Cluster, run: Path, kind: str, chance: random.Random) -> None:
    if kind == "signal":
        cluster.ask("scancel", "--signal=USR2", str(status.read(run).job_id))
    elif kind == "slurmd":
        nodes = cluster.ask("squeue", "-h", "-j", str(status.read(run).job_id), "-o", "%N")
        node = chance.choice(cluster.ask("scontrol", "show", "hostnames", nodes).split())
        cluster.kill(node, "slurmd")
        time.sleep(1)
        cluster.revive(node, "slurmd", "-D", "-N", node)
    else:
        mark = "launcher.worker.fsdp" if kind == "rank" else "torch.distributed.run"
        for pid in chance.sample(found := _processes(run, mark), min(1, len(found))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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
        time.sleep(0.05)
    saved = [int(path.name[5:]) for path in (run / "checkpoints").glob("step-*") if path.suffix != ".partial"]
    return max(0, before - max(saved, default=0))


def _attempt(run: Path) -> int:
    return int((files.read_json(run / attempts.FILE) or {}).get("count", 0))


def _submitted(name: str) -> Path:
    if cli.main([*WORDS, f"run.name={name}"]) != 0:
        raise RuntimeError(f"{name} was not submitted")
    return Path.cwd() / "runs" / name


def _wait(run: Path, step: int) -> None:
    """Wait until a run has come to a step, or has ended."""
    looked = began = time.monotonic()
    while (progress.read(run).step or 0) < step:
        now = time.monotonic()
        if now > began + _PATIENCE_S:
            raise RuntimeError(f"{run.name} did not come to step {step} in {_PATIENCE_S} s: {status.read(run)}")
        if now > looked + _LOOK_S:
            looked = now
            if status.read(run).state in state.ENDED:
                return
        time.sleep(0.01)


def _finished(run: Path) -> dict[str, Any]:
    _wait(run, STEPS)
    deadline = time.monotonic() + _PATIENCE_S
    while (ending := status.read(run)).state not in state.ENDED and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {"state": ending.state, "losses": [line["loss"] for line in lines]}


if __name__ == "__main__":
    main()
