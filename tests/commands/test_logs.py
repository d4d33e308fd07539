"""`launch logs`: steps first, a failure by its own traceback, what is around it folded, and all of it as it comes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.commands import logs
from launcher.rundir import state
from tests.support.recorded_runs import line, recorded
from tests.support.slurm_runs import launch

TRACEBACK = "Traceback (most recent call last):\n  File \"/a/data.py\", line 3, in rows\nKeyError: 'texxt'\n"
LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logs, "_POLL_S", 0.01)


def printed(run: Path, attempt: str = "a", **ranks: str) -> None:
    """What ranks print on stderr, and torchrun and submitit around them."""
    for name, text in ranks.items():
        folder = run / "logs" / "ranks" / f"{attempt}_x_345678" / "attempt_0" / name.removeprefix("rank")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "stderr.log").open("a") as file:
            file.write(text)
    (run / "logs" / "submitit").mkdir(exist_ok=True)
    (run / "logs" / "node.err").write_text("torchrun's own traceback\nof many lines\n")
    (run / "logs" / "submitit" / "7_0_log.err").write_text("submitit's own traceback\n")


def wrote_error(run: Path, rank: int, message: str, traceback: str) -> None:
    content = {"type": message.partition(":")[0], "message": message, "traceback": traceback}
    (run / "logs" / f"error.rank{rank}.json").write_text(json.dumps(content))


def test_a_failure_begins_with_the_workers_own_traceback_and_folds_those_around_it(tmp_path: Path) -> None:
    reason = "rank 0: KeyError: 'texxt' (data.py:3 in rows)"
    run = recorded(tmp_path / "runs" / "a", steps=[line(1, 2.0), line(2, 1.5)], now="failed", reason=reason)
    wrote_error(run, 0, "KeyError: 'texxt'", TRACEBACK)
    wrote_error(run, 1, LOST, f"Traceback\n{LOST}\n")
    printed(run, rank0="a warning\n", rank1="one more\n")
    said = launch("logs", "a").out.splitlines()
    assert said[:2] == [f"a is failed: {reason}", f"==> {run}/logs/error.rank0.json <=="]
    assert said[2:5] == TRACEBACK.splitlines()
    assert [row[:21] for row in said[5:7]] == ["step 1/100  loss 2.00", "step 2/100  loss 1.50"]
    assert [said[8], said[10]] == ["a warning", "one more"]
    assert said[11:] == [
        "folded: 3 lines of torchrun and submitit and 1 traceback of other ranks (launch logs a --all)"
    ]
    everything = launch("logs", "a", "--all").out
    assert all(text in everything for text in ("of many lines", "submitit's own", LOST))
    assert "folded" not in everything
    [document] = launch("logs", "a", "--json").json["logs"]
    assert document["error"]["traceback"] == TRACEBACK
    assert [step["step"] for step in document["steps"]] == [1, 2]
    assert len(document["files"]) == 4


def test_a_rank_that_was_killed_is_not_hidden_by_the_tracebacks_of_those_that_lost_it(tmp_path: Path) -> None:
    run = recorded(tmp_path / "runs" / "a", now="failed", reason="rank 1 was ended by SIGKILL")
    wrote_error(run, 0, LOST, f"Traceback\n{LOST}\n")
    printed(run, rank0="launch: rank 0: lost\n")
    said = launch("logs", "a").out
    assert said.startswith("a is failed: rank 1 was ended by SIGKILL\n==> ")
    assert "Traceback" not in said
    assert said.endswith("3 lines of torchrun and submitit and 1 traceback of other ranks (launch logs a --all)\n")


def test_an_end_of_which_no_rank_tells_shows_what_torchrun_and_submitit_say(tmp_path: Path) -> None:
    run = recorded(tmp_path / "runs" / "a", now="failed", reason="exit status 1")
    printed(run)
    said = launch("logs", "a").out
    assert "of many lines" in said
    assert "submitit's own traceback" in said
    assert "folded" not in said


def follow(run: Path, *acts: Callable[[], object]) -> tuple[list[str], str]:
    """What ``logs --follow`` prints while these things happen to a run, in turn, before it has finished."""

    def happen() -> None:
        for act in acts:
            time.sleep(0.15)
            act()
        time.sleep(0.15)
        state.put(run, "finished")

    thread = threading.Thread(target=happen)
    thread.start()
    said = launch("logs", run.name, "--follow", "--lines", "1")
    thread.join()
    assert said.status == 0
    return said.out.splitlines(), said.err


def test_a_run_is_followed_over_a_new_attempt_and_the_steps_that_it_does_again_until_it_ends(tmp_path: Path) -> None:
    steps = [line(step, 9.0 - step) for step in (1, 2, 3)]
    run = recorded(tmp_path / "runs" / "a", steps=steps, now="running")
    printed(run, rank0="old\n")
    again = [*steps[:2], {**line(3, 5.5), "time": 2e9}, {**line(4, 5.0), "time": 2e9 + 1}]

    def resumed() -> None:
        (run / "new").write_text("".join(f"{json.dumps(each)}\n" for each in again))
        (run / "new").rename(run / "metrics.jsonl")

    def train() -> None:
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**line(5, 4.0), "time": 2e9 + 2}) + "\n")

    said, _ = follow(
        run,
        lambda: printed(run, rank0="more\n"),
        resumed,
        lambda: printed(run, "b", rank1="of the new attempt\n"),
        train,
    )
    told = [" ".join(row.split()[:4]) if row.startswith("step") else row for row in said if not row.startswith("==>")]
    assert told[:2] == ["a is running", "step 3/100 loss 6.0000"]
    assert told[2:4] == ["old", "folded: 3 lines of torchrun and submitit (launch logs a --all)"]
    assert told[4:6] == ["more", "continues from step 2"]
    assert told[6:8] == ["step 3/100 loss 5.5000", "step 4/100 loss 5.0000"]
    assert told[8:10] == ["of the new attempt", "step 5/100 loss 4.0000"]
    assert told[10] == "a is finished"
    assert said[-1].endswith("and 2 lines of earlier attempts (launch logs a --all)")


def test_what_a_followed_run_waits_for_is_said_when_it_changes(tmp_path: Path) -> None:
    run = recorded(tmp_path / "runs" / "a", now="running")
    said, told = follow(run, lambda: state.put(run, "requeued", reason="preempted after step 3"))
    assert told == "launch: a is requeued: preempted after step 3\n"
    assert [said[0], said[-1]] == ["a is running", "a is finished"]
