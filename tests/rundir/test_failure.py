"""Why a job failed, in one line, from what its ranks and its agent leave behind."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.job.memory import ran_out
from launcher.rundir import status
from launcher.rundir.failure import explain
from launcher.rundir.output import never_began
from launcher.slurm.jobs import QueuedJob
from launcher.slurm.states import translate


def recorded(run: Path, errors: Mapping[int, Mapping[str, str]] | None = None, **logs: str) -> Path:
    """A run directory of 4 ranks on 2 nodes; errors appear in the order given, logs by their name."""
    folder = run / "logs" / "ranks" / "1_0_x" / "attempt_0" / "1"
    folder.mkdir(parents=True)
    (run / "logs" / "submitit").mkdir()
    (run / "job.json").write_text(json.dumps({"nodes": 2, "gpus_per_node": 2}))
    for number, (rank, content) in enumerate((errors or {}).items()):
        path = run / "logs" / f"error.rank{rank}.json"
        path.write_text(json.dumps(content))
        os.utime(path, ns=(number, number))
    places = {"agent": run / "logs" / "node.err", "rank": folder / "stderr.log"}
    places["slurm"] = run / "logs" / "submitit" / "7_0_log.err"
    for name, text in logs.items():
        places[name].write_text(text)
    return run


def killed(code: int) -> str:
    """The end of torchrun's report, as torch 2.15 prints it."""
    other = "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 8)\n"
    root = f"  rank      : 1 (local_rank: 1)\n  exitcode  : {code} (pid: 9)\n"
    return f"Failures:\n[1]:\n{other}\nRoot Cause (first observed failure):\n[0]:\n{root}"


TRACEBACK = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in main\n    x()\nValueError: no'
GLOO = ("Timed out waiting 15000ms for recv operation to complete", "Application timeout caused pair closure")
NCCL = (
    "[rank1]:[E] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
)


def test_what_slurm_calls_out_of_memory_is_noted_for_launch_why(tmp_path: Path) -> None:
    ended = status._from_slurm(tmp_path, None, QueuedJob(state="OUT_OF_MEMORY"))
    assert ended == ("failed", "the kernel killed it: out of host memory", "out_of_memory")
    found = ran_out(tmp_path)
    assert found is not None
    assert found.kind == "slurm"


def test_a_python_error_is_that_of_the_first_rank_with_its_last_frame(tmp_path: Path) -> None:
    first = {"type": "ValueError", "message": "ValueError: no", "traceback": TRACEBACK}
    run = recorded(tmp_path, {2: first, 0: {"type": "RuntimeError", "message": "RuntimeError: peer", "traceback": ""}})
    assert explain(run, 1).text == "rank 2: ValueError: no (train.py:3 in main)"
    assert not explain(run, 1).transient, "the same job would fail again"


def test_what_the_worker_words_itself_has_no_frame(tmp_path: Path) -> None:
    error = {"type": "DataError", "message": "data.path is empty", "traceback": TRACEBACK}
    assert explain(recorded(tmp_path, {0: error}), 1).text == "rank 0: data.path is empty"


def test_an_error_of_a_script_is_read_from_the_log_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    run = recorded(tmp_path, rank=TRACEBACK, agent=killed(1))
    assert explain(run, 1).text.startswith("ValueError: no (train.py:3 in main) (exit status 1; ")


def test_a_rank_that_torchrun_ended_is_not_the_reason(tmp_path: Path) -> None:
    run = recorded(
        tmp_path, rank=TRACEBACK, agent=killed(1).replace("exitcode  : 1 (pid: 8)", "exitcode  : -15 (pid: 8)")
    )
    assert explain(run, 1).text.startswith("ValueError: no (train.py:3 in main)")
    assert not explain(run, 1).transient


def test_too_little_gpu_memory_says_how_much_was_asked_for(tmp_path: Path) -> None:
    message = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB"
    run = recorded(tmp_path, {3: {"type": "OutOfMemoryError", "message": message, "traceback": TRACEBACK}})
    expected = "rank 3: out of GPU memory: tried to allocate 2.00 GiB; `launch check` lists what would fit"
    assert (explain(run, 1).text, explain(run, 1).transient) == (expected, False)


def test_the_kernels_kill_for_memory_is_told_from_any_other(tmp_path: Path) -> None:
    said = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
    found = explain(recorded(tmp_path / "a", agent=killed(-9), slurm=said), 1)
    assert (found.text, found.transient) == ("rank 1 was ended by the kernel: out of host memory", False)
    found = explain(recorded(tmp_path / "b", agent=killed(-9)), 1)
    assert (found.text.partition(":")[0], found.transient) == ("rank 1 was ended by SIGKILL", True)
    found = explain(recorded(tmp_path / "c"), -9)
    assert (found.text.partition(":")[0], found.transient) == ("torchrun was ended by SIGKILL", True)


@pytest.mark.parametrize("gloo", GLOO)
def test_a_hung_collective_names_the_rank_that_did_not_arrive(tmp_path: Path, gloo: str) -> None:
    waited = {"type": "RuntimeError", "message": f"RuntimeError: {gloo}", "traceback": TRACEBACK}
    lost = {"type": "RuntimeError", "message": "RuntimeError: Connection closed by peer [127.0.0.1]:1", "traceback": ""}
    found = explain(recorded(tmp_path, {0: waited, 3: waited, 1: lost}), 1)
    expected = "timeout in a collective: rank 2 did not arrive while 2 waited (train.timeout_s)"
    assert (found.text, found.transient) == (expected, True)


def test_a_timeout_of_the_programs_own_is_no_hung_collective(tmp_path: Path) -> None:
    error = {"type": "TimeoutError", "message": "TimeoutError: the server timed out", "traceback": TRACEBACK}
    found = explain(recorded(tmp_path, {0: error}), 1)
    assert (found.text, found.transient) == ("rank 0: TimeoutError: the server timed out (train.py:3 in main)", False)


def test_nodes_that_do_not_find_each_other_are_tried_again(tmp_path: Path) -> None:
    said = (
        "Traceback (most recent call last):\ntorch.distributed.DistStoreError: wait timeout after 60000ms, keys: /a\n"
    )
    found = explain(recorded(tmp_path, agent=said), 1)
    expected = "torchrun's rendezvous failed: torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /a"
    assert (found.text, found.transient) == (expected, True)


def test_nccls_watchdog_is_read_from_the_ranks_stderr(tmp_path: Path) -> None:
    found = explain(recorded(tmp_path, rank=NCCL, agent=killed(-6)), 1)
    assert (found.text, found.transient) == ("NCCL timeout in ALLREDUCE after 600 s (train.timeout_s)", True)


def test_a_process_that_never_came_to_the_job_is_known_by_its_last_words(tmp_path: Path) -> None:
    before = "its process ended before the job started"
    (tmp_path / "logs" / "submitit").mkdir(parents=True)
    assert never_began(tmp_path) == f"{before}, without a message; see {tmp_path}/logs"
    (tmp_path / "logs" / "node.err").write_text("torchrun: no such file\n")
    assert never_began(tmp_path) == f"{before}: torchrun: no such file ({tmp_path}/logs/node.err)"
    log = tmp_path / "logs" / "submitit" / "7_0_log.err"
    log.write_text("Traceback (most recent call last):\nImportError: no NodeTask\n\n")
    assert never_began(tmp_path) == f"{before}: ImportError: no NodeTask ({log})"


def test_ranks_that_only_lost_a_peer_do_not_hide_the_one_that_was_killed(tmp_path: Path) -> None:
    lost = {"type": "RuntimeError", "message": "RuntimeError: Connection closed by peer [127.0.0.1]:1", "traceback": ""}
    found = explain(recorded(tmp_path / "a", {0: lost}, agent=killed(-11)), 1)
    assert (found.text, found.transient) == ("rank 1 was ended by SIGSEGV", True)
    found = explain(recorded(tmp_path / "b", {0: lost}), 1)
    assert (found.text, found.transient) == ("rank 0 lost its connection to another rank", True)


HOSTS = ("n1", "n2")


def test_the_node_is_named_whose_rank_was_killed_first(tmp_path: Path) -> None:
    lost = {"type": "RuntimeError", "message": "RuntimeError: Connection closed by peer [127.0.0.1]:1", "traceback": ""}
    here = explain(recorded(tmp_path / "a", {0: lost}, agent=killed(-9)), 1, HOSTS)
    assert (here.node, here.broken) == ("n1", False)
    run = recorded(tmp_path / "b", {0: lost}, agent=killed(1))
    (run / "logs" / "node1.err").write_text(killed(-11))
    there = explain(run, 1, HOSTS)
    assert (there.text, there.node) == ("rank 1 was ended by SIGSEGV", "n2")
    assert explain(recorded(tmp_path / "c", {0: lost}), 1, HOSTS).node is None, "nobody knows"


def test_the_node_is_named_whose_torchrun_was_killed_and_not_that_which_waited_for_it(tmp_path: Path) -> None:
    assert explain(recorded(tmp_path / "a"), -9, HOSTS).node == "n1"
    for number, (code, node) in enumerate(((-9, "n2"), (1, None))):
        run = recorded(tmp_path / str(number))
        (run / "logs" / "node1.7_0.failed").write_text(json.dumps({"returncode": code}))
        found = explain(run, -9, HOSTS)
        assert (found.text.partition(":")[0], found.node) == ("torchrun was ended by SIGKILL", node)


def test_the_node_is_named_of_a_rank_that_did_not_arrive(tmp_path: Path) -> None:
    waited = {"type": "RuntimeError", "message": f"RuntimeError: {GLOO[0]}", "traceback": TRACEBACK}
    run = recorded(tmp_path, {0: waited, 2: waited, 3: waited})
    (run / "logs" / "ranks" / "1_0_x" / "attempt_0" / "1.node").write_text("n1")
    (run / "logs" / "ranks" / "rank1").symlink_to("1_0_x/attempt_0/1")
    found = explain(run, 1, HOSTS)
    assert found.node == "n1"
    assert found.text == "timeout in a collective: rank 1 on n1 did not arrive while 3 waited (train.timeout_s)"


def test_a_gpu_that_is_broken_is_no_mistake_of_the_program(tmp_path: Path) -> None:
    message = "AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    error = {"type": "AcceleratorError", "message": message, "traceback": TRACEBACK, "node": "n2"}
    found = explain(recorded(tmp_path, {3: error}), 1, HOSTS)
    assert (found.text, found.transient, found.node, found.broken) == (f"rank 3: {message}", True, "n2", True)


@pytest.mark.parametrize(
    ("job", "started", "word", "reason"),
    [
        (QueuedJob(state="PENDING", reason="Resources"), False, "queued", "waiting for free nodes"),
        (QueuedJob(state="PENDING", reason="BeginTime"), True, "requeued", "waiting for its start time"),
        (
            QueuedJob(state="PENDING", reason="Priority", start="2026-11-22 16:05"),
            False,
            "queued",
            "waiting behind jobs of higher priority; Slurm expects it to start at 2026-11-22 16:05",
        ),
        (
            QueuedJob(state="PENDING", reason="QOSMaxGRESPerUser"),
            False,
            "queued",
            "waiting because of a limit of its quality of service on GPUs (QOSMaxGRESPerUser)",
        ),
        (
            QueuedJob(state="PENDING", reason="AssocMaxWallDurationPerJobLimit"),
            False,
            "queued",
            "waiting because of a limit of its account or user on the time limit of a job (cluster.time_limit_min); no "
            "single job may have that much, so it will never start (AssocMaxWallDurationPerJobLimit)",
        ),
        (
            QueuedJob(state="PENDING", reason="DependencyNeverSatisfied"),
            False,
            "queued",
            "it will never start: a job that it had to wait for did not end as required",
        ),
        (
            QueuedJob(state="PENDING", reason="ReqNodeNotAvail, UnavailableNodes:n7"),
            False,
            "queued",
            "a node that it needs is not available: down, drained or reserved (UnavailableNodes:n7)",
        ),
        (QueuedJob(state="PENDING", reason="SomethingNew"), False, "queued", "SomethingNew"),
        (QueuedJob(state="COMPLETING"), True, "running", None),
        (QueuedJob(state="CANCELLED"), True, "cancelled", "cancelled by scancel"),
        (QueuedJob(state="TIMEOUT"), True, "failed", "its time limit ended it before it saved"),
        (
            QueuedJob(state="NODE_FAIL", nodes="node2"),
            True,
            "failed",
            "a node failed (node2), and the job was not requeued",
        ),
        (QueuedJob(state="OUT_OF_MEMORY"), True, "failed", "the kernel killed it: out of host memory"),
        (QueuedJob(state="PREEMPTED"), True, "failed", "preempted, and not requeued because of its partition or"),
        (
            QueuedJob(state="FAILED", exit_code="0:53", nodes="n1"),
            False,
            "failed",
            "the nodes (n1) cannot write to the run",
        ),
        (QueuedJob(state="FAILED", exit_code="1:0"), True, "failed", "Slurm says FAILED, exit status 1:0"),
    ],
    ids=lambda value: value.state if isinstance(value, QueuedJob) else "",
)
def test_slurms_words_in_ours(job: QueuedJob, started: bool, word: str, reason: str | None) -> None:
    found, said, _ = translate(job, started=started)
    assert found == word
    assert said == reason if reason is None else str(said).startswith(reason)


@pytest.mark.parametrize(
    ("word", "cause"),
    [("TIMEOUT", "time_limit"), ("PREEMPTED", "preempted"), ("NODE_FAIL", "rank_killed"), ("FAILED", None)],
)
def test_slurms_words_tell_the_cause_of_an_end(word: str, cause: str | None) -> None:
    assert translate(QueuedJob(state=word), started=True)[2] == cause


def test_the_cause_is_the_one_that_the_rank_has_written(tmp_path: Path) -> None:
    error = {"type": "TrainingError", "message": "the loss is lost", "traceback": "", "kind": "nan"}
    assert explain(recorded(tmp_path / "a", {2: error}), 1).facts == {"cause": "nan", "rank": 2}
    assert explain(recorded(tmp_path / "b", {2: {**error, "kind": "weather"}}), 1).kind == "error"
