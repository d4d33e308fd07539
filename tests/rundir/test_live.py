"""What is known of a run now comes from the ends of its files; damaged and absent ones leave a gap, not an error."""

import json
from pathlib import Path

import pytest

from launcher.job import memory
from launcher.job.memory import MemoryRecord, PhaseMemory
from launcher.rundir import live, status
from launcher.slurm import jobs
from launcher.slurm.jobs import Waiting
from tests.support.recorded_runs import line, predicted, recorded


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def sampled(step: int, rank: int, size: int) -> str:
    peak = PhaseMemory(allocated_bytes=size, piles={"parameters": size - 10, "activations": 10})
    record = MemoryRecord(
        step=step, rank=rank, node="n", time=1.0, tokens=64, phases={"forward": peak}, device_bytes=1000
    )
    return json.dumps(record.as_dict()) + "\n"


def test_memory_is_that_of_the_fullest_rank_in_the_newest_sampled_step(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", steps=[line(1, 2.0)], now="running")
    lines = [sampled(1, 0, 900), sampled(7, 0, 300), sampled(7, 1, 400), '{"step": 9, "rank"']
    (run / memory.RECORDS).write_text("".join(lines))
    found = live.read([status.read(run)])[0].memory
    assert found is not None
    assert (found.rank, found.step, found.phase, found.allocated_bytes) == (1, 7, "forward", 400)
    assert found.piles == {"parameters": 390, "activations": 10}
    assert (found.capacity_bytes, found.predicted_bytes) == (1000, 3 * 2**20)


def test_without_sampled_steps_the_first_steps_tell_the_peak(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", "hardware.memory_bytes=5000", now="running")
    assert live.read([status.read(run)])[0].memory is None
    ranks = [{"rank": 0, "static_bytes": 99, "phases": {"forward": 10, "backward": 20, "load": None}}]
    (run / "memory.json").write_text(json.dumps({"ranks": ranks}))
    found = live.read([status.read(run)])[0].memory
    assert found is not None
    assert (found.rank, found.phase, found.allocated_bytes, found.capacity_bytes) == (None, "backward", 20, 5000)


def test_the_slowest_rank_is_named_with_what_it_printed_last(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", now="running")
    place = run / "logs" / "ranks" / "id_1" / "attempt_0" / "1"
    place.mkdir(parents=True)
    (place / "stderr.log").write_text("one\ntwo\nthree\nfour\n")
    (run / "logs" / "ranks" / "rank1").symlink_to(place.relative_to(run / "logs" / "ranks"))
    rows = [{"step": 10, "seconds": [1.0, 1.0, 1.0]}, {"step": 20, "seconds": [1.0, 2.0, 1.0]}]
    (run / "rank_times.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 30, "sec')
    found = live.read([status.read(run)])[0].slowest
    assert found is not None
    assert (found.rank, found.slower, found.lines) == (1, 0.5, ("two", "three", "four"))


def test_the_newest_lines_are_a_curve_beside_the_predicted_speed(tmp_path: Path) -> None:
    steps = [line(step, 1 / step) for step in range(1, 101)]
    run = recorded(tmp_path / "a", steps=steps, now="running", speed=predicted(60))
    found = live.read([status.read(run)])[0]
    assert len(found.recent) == live.RECENT
    assert found.recent[-1] == {"step": 100, "loss": 0.01, "tokens_per_second": 100.0}
    assert found.predicted_tokens_per_second == 120


def test_a_run_that_has_nothing_yet_says_nothing(tmp_path: Path) -> None:
    found = live.read([status.read(recorded(tmp_path / "a"))])[0]
    assert found.as_dict() == {
        "queue": None,
        "recent": (),
        "predicted_tokens_per_second": None,
        "memory": None,
        "slowest": None,
    }


def test_the_place_in_the_queue_is_by_priority_in_squeue_s_recorded_words(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def ask(*command: str) -> str:
        asked.append(command)
        return "3|gpu|N/A\n7_1|gpu,long|N/A\n8|cpu|N/A\n7_2|gpu|2026-11-24T16:05:00\n9|gpu|N/A\n"

    monkeypatch.setattr(jobs, "ask", ask)
    assert jobs.waiting(["7_2", "7_1", "5"]) == {
        "7_1": Waiting(partition="gpu,long", place=2, jobs=4, start=""),
        "7_2": Waiting(partition="gpu", place=3, jobs=4, start="2026-11-24 16:05"),
    }
    assert len(asked) == 1
    assert jobs.waiting([]) == {}
    assert len(asked) == 1, "nothing waits, and nothing is asked"


@pytest.mark.parametrize(
    "damage", [{"piles": None}, {"allocated_bytes": "x"}, {"allocated_bytes": 1, "piles": {"a": "b"}}]
)
def test_a_line_with_values_of_other_types_is_passed_over(tmp_path: Path, damage: dict[str, object]) -> None:
    run = recorded(tmp_path / "a", now="running")
    content = json.loads(sampled(7, 0, 300))
    content["phases"]["forward"] |= damage
    (run / memory.RECORDS).write_text(sampled(1, 0, 200) + json.dumps(content) + "\n")
    found = live.read([status.read(run)])[0].memory
    assert found is not None
    assert found.allocated_bytes == 200
