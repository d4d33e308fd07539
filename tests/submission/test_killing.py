"""What a node says of ranks that the kernel has killed: real kills in a cgroup, and recorded words of Slurm."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from launcher.base.errors import JobFailed
from launcher.job import memory
from launcher.job.memory import Kills, OutOfMemory, ran_out
from launcher.rundir import failure
from launcher.submission import node, processes
from launcher.why.explain import explain
from tests.support import ended_runs
from tests.support import out_of_memory as cases

REPORT = "Root Cause (first observed failure):\\n  rank      : 1 (local_rank: 1)\\n  exitcode  : -9 (pid: 999999)\\n"
STEPD = "slurmstepd: error: Detected 1 oom_kill event in StepId=41.0. Some of the step tasks have been OOM Killed."
NOBODY = Kills(known=False, group=0, limit=0, machine=7)


def recorded(run: Path, program: str) -> Path:
    (run / "logs" / "submitit").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    (run / "spec.json").write_text("{}")
    job = {
        "argv": [sys.executable, "-c", program],
        "environment": {"LAUNCH_RUN": str(run)},
        "working_directory": "/",
    }
    (run / "job.json").write_text(json.dumps(job))
    return run


def killed(run: Path, *, now: Kills, log: str | None = None) -> OutOfMemory | None:
    """What a node leaves whose rank 1 was killed, with the kernel's counters before and after."""
    says = "" if log is None else f"open({str(run / 'logs' / 'submitit' / '41_0_log.err')!r}, 'a').write({log!r});"
    recorded(run, f"import sys; {says} sys.stderr.write('{REPORT}'); sys.exit(1)")
    with mock.patch.object(memory, "kills", side_effect=[NOBODY, now]), pytest.raises(JobFailed):
        node.run(run)
    return ran_out(run)


@pytest.mark.skipif(not cases.can_make("other process"), reason="this machine lets nobody make cgroups")
def test_a_rank_that_the_kernel_kills_in_a_cgroup_is_named_with_the_program_that_took_the_memory(
    tmp_path: Path,
) -> None:
    run = cases.ended("other process", tmp_path)
    found = ran_out(run)
    assert found is not None
    assert (found.kind, found.place, found.rank) == ("cgroup", "host", 0)
    assert found.host is not None
    assert found.capacity_bytes == found.host.node_bytes
    assert 0.8 * 1.5e9 < (found.host.node_used_bytes or 0) <= 1.5e9 == pytest.approx(found.capacity_bytes, rel=1e-4)
    assert found.others[0]["bytes"] > 450_000_000, "the other program"
    told = json.loads((run / "state.json").read_text())
    assert told["state"] == "failed"
    assert told["reason"].startswith("rank 0 was ended by the kernel: out of host memory, 1.")
    assert explain(run, tmp_path).pile == ended_runs.pile_of("other process")


def test_a_kill_that_the_counters_of_a_cgroup_show_is_of_its_limit_where_that_was_met(tmp_path: Path) -> None:
    found = killed(tmp_path / "a", now=replace(NOBODY, group=1, limit=3, machine=8))
    assert found is not None
    assert (found.kind, found.rank, found.host is not None) == ("cgroup", 1, True)
    found = killed(tmp_path / "b", now=replace(NOBODY, group=1, machine=8))
    assert found is not None
    assert found.kind == "host_killer"


def test_a_kill_that_only_the_machine_counts_is_the_hosts_unless_the_cgroups_would_know(tmp_path: Path) -> None:
    found = killed(tmp_path / "a", now=replace(NOBODY, machine=8))
    assert found is not None
    assert found.kind == "host_killer"
    assert killed(tmp_path / "b", now=replace(NOBODY, known=True, machine=8)) is None


def test_a_sigkill_that_nobody_counts_is_none_of_memory(tmp_path: Path) -> None:
    assert killed(tmp_path / "a", now=NOBODY) is None
    told = json.loads((tmp_path / "a" / "state.json").read_text())
    assert told["reason"] == "rank 1 was ended by SIGKILL: the kernel may have been out of memory"


def test_the_recorded_words_of_slurms_step_daemon_are_understood(tmp_path: Path) -> None:
    found = killed(tmp_path / "a", now=NOBODY, log=STEPD)
    assert found is not None
    assert (found.kind, found.rank, found.message) == ("slurm", 1, STEPD)


def test_the_recorded_words_of_an_earlier_attempt_do_not_count(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", f"import sys; sys.stderr.write('{REPORT}'); sys.exit(1)")
    (run / "logs" / "submitit" / "40_0_log.err").write_text(STEPD)
    with mock.patch.object(memory, "kills", return_value=NOBODY), pytest.raises(JobFailed):
        node.run(run)
    assert ran_out(run) is None


def test_an_attempt_is_not_judged_by_the_end_of_memory_of_the_one_before(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", "pass")
    told = OutOfMemory(
        kind="budget", place="device", time=1.0, rank=0, node="n", snapshot="logs/memory_snapshot.rank0.json"
    )
    (run / "oom.json").write_text(json.dumps(told.as_dict()))
    (run / "logs" / "memory_snapshot.rank0.json").write_text("{}")
    node.run(run)
    assert ran_out(run) is None
    aside = list((run / failure.EARLIER).iterdir())
    assert len(aside) == 1
    assert sorted(path.name for path in aside[0].iterdir()) == ["memory_snapshot.rank0.json", "oom.json"]
    assert json.loads((run / "state.json").read_text())["state"] == "finished"


def test_what_slurm_says_of_a_job_is_noted_once_and_never_over_a_ranks_own_words(tmp_path: Path) -> None:
    failure.note_out_of_memory_of_slurm(tmp_path)
    found = ran_out(tmp_path)
    assert found is not None
    assert (found.kind, found.rank) == ("slurm", None)
    assert failure.out_of_memory_line(found).startswith(
        "the job was ended by the kernel: out of host memory; `launch why RUN`"
    )
    before = (tmp_path / "oom.json").read_text()
    failure.note_out_of_memory_of_slurm(tmp_path)
    assert (tmp_path / "oom.json").read_text() == before


def test_a_run_whose_rank_has_said_more_is_explained_by_that(tmp_path: Path) -> None:
    report = (
        "import json\n"
        "told = {'schema': 1, 'kind': 'device', 'place': 'device', 'time': 1.0, 'rank': 3, 'node': 'n', 'step': 120,\n"
        "        'phase': 'backward', 'layer': 17, 'requested_bytes': 1503238553, 'free_bytes': 966367641}\n"
        f"open('{tmp_path}/a/oom.json', 'w').write(json.dumps(told))\n"
        "error = {'type': 'OutOfMemoryError', 'message': 'OutOfMemoryError: CUDA out of memory.', 'traceback': ''}\n"
        f"open('{tmp_path}/a/logs/error.rank3.json', 'w').write(json.dumps(error))\n"
        "raise SystemExit(1)"
    )
    run = recorded(tmp_path / "a", report)
    with pytest.raises(JobFailed):
        node.run(run)
    text = "rank 3: out of memory in backward of step 120, layer 17: asked for 1.40 GiB with 0.90 GiB free; `launch why"
    assert json.loads((run / "state.json").read_text())["reason"].startswith(text)


def test_a_reading_that_fails_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, asked = processes.OomKillDetector(tmp_path), []

    def fails() -> None:
        asked.append(1)
        raise FileNotFoundError("a cgroup that is gone")

    monkeypatch.setattr(memory, "host_memory", fails)
    watched.look()
    assert asked == [1]
