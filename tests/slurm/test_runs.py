"""Runs on a real Slurm: submitted, watched, stopped, requeued, resumed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.rundir import live, status
from launcher.slurm import jobs
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import (
    SCRIPT,
    SLURM,
    at,
    ended,
    launch,
    lines,
    restarts,
    submit,
    submitted,
    succeeds,
    wait,
)

CLUSTER = "runs"  # Places in a queue are told, which the jobs of others would move.


@pytest.fixture(scope="module", autouse=True)
def long_job(slurm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job of 100 s that has to save 40 s before the end of its two minutes; it runs beside the other tests.

    Slurm looks at the clock every half a minute, and may send its signal up to a minute early.
    """
    folder = tmp_path_factory.mktemp("long")
    (folder / "train.py").write_text(SCRIPT)
    with at(folder, slurm_cluster):
        limit = ("cluster.partition=short", "cluster.time_limit_min=2", "cluster.save_margin_s=40")
        yield submit("long", "cluster.gpus_per_node=1", *limit, "--", "--steps", "1000")


def test_a_run_on_two_nodes_from_submission_to_its_end(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = (*SLURM, "script=train.py", "run.name=two", "cluster.nodes=2", "cluster.gpus_per_node=2")
    shown = launch("show", "--json", *words)
    answer = launch("--json", *words)
    assert answer.status == 0, answer.err
    row = answer.json["run"]
    run = Path(row["directory"])
    assert (row["id"], run) == ("two", Path.cwd() / "runs" / "two")
    assert row["state"] in ("queued", "running"), "it does not wait for the job"
    script = next((run / "logs" / "submitit").glob("*_submission.sh")).read_text()
    assert script == shown.json["sbatch"], "what show prints is what Slurm got"
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    for name in ("two", str(run), row["job_id"]):
        assert launch("status", "--json", name).json["runs"][0]["directory"] == str(run), name
    succeeds(run)
    outputs = sorted(path.read_text() for path in run.glob("logs/ranks/*/attempt_0/*/stdout.log"))
    assert [text[:12] for text in outputs] == [f"rank {rank} of 4 "[:12] for rank in range(4)]
    assert all(re.search(r"sees \d,\d\n", text) for text in outputs), "each node's share of the GPUs"
    assert "rank 3 of 4" in launch("logs", "two").out


def test_a_failing_job_says_why_in_one_line(cluster: Cluster) -> None:
    run = submit("fails", "cluster.gpus_per_node=2", "--", "--do", "fail")
    ending = ended(run)
    assert ending.state == "failed"
    line = SCRIPT.splitlines().index('    raise ValueError("the learning rate is a fish")') + 1
    expected = f"ValueError: the learning rate is a fish (train.py:{line} in fail) (exit status 1;"
    assert (ending.reason or "").startswith(expected)
    assert restarts(cluster, run) == 0, "a mistake in the program is not tried again"
    said = launch("logs", "fails", "--rank", "1", "--follow").out
    assert said.startswith(f"fails is failed: {ending.reason}\n==> ")
    assert said.index("stderr.log") < said.index("ValueError: the learning rate is a fish\n") < said.index("stdout.log")
    assert launch("logs", "fails", "--rank", "7").status == 2
    wait("Slurm's own word for it", lambda: "FAILED" in cluster.ask("scontrol", "show", "job", str(ending.job_id)))


@pytest.mark.usefixtures("torchrun_without_torch")
def test_a_run_is_cancelled_while_it_waits_and_while_it_trains_and_goes_on_later_under_a_torchrun_without_torch(
    cluster: Cluster,
) -> None:
    waiting = submit("waiting", "cluster.gpus_per_node=1", "cluster.extra.begin=now+1hour")
    assert status.read(waiting).state == "queued"
    assert str(status.read(waiting).reason).startswith("waiting for its start time; Slurm expects it to start at 20")
    queue = live.read([status.read(waiting)])[0].queue
    assert queue is not None
    assert (queue.place, queue.jobs, queue.start[:2]) == (1, 1, "20")
    assert f"queue     1 of 1 waiting in partition {queue.partition}" in launch("watch", "waiting").out
    training = submit("training", "cluster.gpus_per_node=1", "--", "--steps", "80")
    assert launch("cancel", "waiting").status == 0
    assert ended(waiting).reason == "cancelled before it started"
    wait("steps", lambda: lines(training))
    answer = launch("cancel", "training")
    assert "training saves a checkpoint and ends; cancel it again to kill it at once" in answer.err
    assert ended(training).state == "cancelled"
    [saved] = [int(path.name[5:]) for path in training.glob("checkpoints/step-*")]
    assert 0 < saved < 80
    assert launch("resume", "training").status == 0
    succeeds(training)
    assert [line["step"] for line in lines(training)] == list(range(1, 81)), "no step is lost and none is done twice"


@pytest.mark.usefixtures("torchrun_without_torch")
def test_a_sweep_is_one_array_whose_points_end_like_runs_under_a_torchrun_without_torch(cluster: Cluster) -> None:
    words = ("script=train.py", "run.name=sweep", "cluster.gpus_per_node=1", "train.seed=1,2", "sweep.parallelism=1")
    answer = launch("-m", "--json", *SLURM, *words)
    assert answer.status == 0, answer.err
    points = [Path(point["run"]["directory"]) for point in answer.json["points"]]
    [first, second] = [str(status.read(point).job_id) for point in points]
    assert (first.endswith("_0"), second) == (True, first.replace("_0", "_1"))
    for point in points:
        succeeds(point)


def test_a_limit_of_jobs_at_once_holds_over_all_shapes_of_a_sweep(cluster: Cluster) -> None:
    later = ("script=train.py", "run.name=shapes", "cluster.extra.begin=now+1hour", "sweep.parallelism=1")
    answer = launch("-m", *SLURM, *later, "cluster.gpus_per_node=1,2", "train.seed=1,2")
    assert answer.status == 0, answer.err
    found = re.search(r"4 runs in 2 jobs \((\d+), (\d+)\), at most 1 at once", answer.out)
    assert found is not None, answer.out
    first, second = found.groups()

    def shown(job: str) -> str:
        return cluster.ask("scontrol", "-o", "show", "job", job)

    assert f"Dependency=afterany:{first}_*" in shown(second)
    assert all("ArrayTaskThrottle=1 " in shown(job) for job in (first, second))
    assert "Dependency=(null)" in shown(first)
    rows = launch("status", second, "--json").json["runs"]
    assert [row["id"] for row in rows] == ["shapes/002", "shapes/003"], "the id of an array names its runs"
    assert "Slurm expects it to start at 20" in rows[0]["reason"]
    assert launch("cancel", "shapes/000").status == 0
    ended(Path.cwd() / "runs" / "shapes" / "000")
    assert launch("resume", "shapes").status == 0
    third = str(status.read(Path.cwd() / "runs" / "shapes" / "000").job_id)
    assert re.search(rf"Dependency=afterany:{first}_\S*,afterany:{second}_", shown(third)), "what is queued counts"
    assert launch("cancel", "shapes").status == 0


@pytest.mark.usefixtures("torchrun_without_torch")
def test_a_sweep_is_cancelled_in_as_few_words_to_slurm_as_a_run_under_a_torchrun_without_torch(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = ("script=train.py", "script_args=[--steps,1000]", "run.name=s", "cluster.gpus_per_node=1")
    assert launch("-m", *SLURM, *words, "train.seed=1,2,3", "sweep.parallelism=1").status == 0
    first, *others = sorted((tmp_path / "runs" / "s").glob("0*"))
    wait("steps", lambda: lines(first))
    real = {name: cluster.ask("sh", "-c", f"command -v {name}") for name in ("squeue", "sacct", "scontrol", "scancel")}
    (tmp_path / "bin").mkdir()
    for name, path in real.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/said\nexec {path} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    os.environ["PATH"] = f"{tmp_path}/bin:{os.environ['PATH']}"
    job = str(status.read(first).job_id).removesuffix("_0")
    refused = jobs.signal_jobs([f"{job}_0", "1000000000"], "CONT")
    assert refused == {"1000000000": "scancel: error: Kill job error on job id 1000000000: Invalid job id specified"}
    (tmp_path / "said").unlink()
    assert launch("cancel", "s").err == (
        "launch: s/000 saves a checkpoint and ends; cancel it again to kill it at once\n"
    )
    *asked, saves, ends = (tmp_path / "said").read_text().splitlines()
    assert [words.partition(" ")[0] for words in asked] == ["squeue", "squeue"]
    assert (saves, ends) == (f"scancel --signal=USR2 {job}_0.0", f"scancel {job}_1 {job}_2")
    assert ended(first).state == "cancelled"
    assert list(first.glob("checkpoints/step-*"))
    assert [status.read(run).reason for run in others] == ["cancelled before it started"] * 2
    (tmp_path / "said").unlink()
    assert launch("cancel", "s").err == "".join(f"launch: s/00{number} is not running\n" for number in range(3))
    assert not (tmp_path / "said").exists(), "files tell the end"


def test_without_accounting_the_controller_and_the_files_tell_the_state(cluster: Cluster, tmp_path: Path) -> None:
    conf = cluster.layout.conf.read_text().replace("accounting_storage/slurmdbd", "accounting_storage/none")
    (tmp_path / "slurm.conf").write_text(
        "".join(line for line in conf.splitlines(True) if "AccountingStorageEn" not in line)
    )
    run = submit("plain", "cluster.gpus_per_node=1", "cluster.extra.begin=now+1hour")
    os.environ["SLURM_CONF"] = str(tmp_path / "slurm.conf")
    assert status.read(run).state == "queued"
    cluster.ask("scancel", str(status.read(run).job_id))
    ending = ended(run)
    assert (ending.state, ending.reason) == ("cancelled", "cancelled by scancel")
    forgotten = submitted(Path.cwd() / "runs" / "forgotten")
    assert status.read(forgotten).state == "lost"
    assert "Slurm no longer knows the job" in str(status.read(forgotten).reason)


def test_a_job_longer_than_its_time_limit_finishes_over_several_allocations(cluster: Cluster, long_job: Path) -> None:
    succeeds(long_job, 400)
    found = lines(long_job)
    assert [line["step"] for line in found] == list(range(1, 1001)), "every step once, in order"
    assert len({line["attempt"] for line in found}) >= 2
    assert restarts(cluster, long_job) >= 1
