"""A frame of ``launch watch``: it fits the terminal, and reads without colour."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rundir import status
from launcher.rundir.live import Live, MemoryNow, SlowestRank
from launcher.slurm.jobs import Waiting
from launcher.views import runs as view
from tests.support.recorded_runs import line, recorded

MIB = 2**20
MEMORY = MemoryNow(
    rank=3,
    step=100,
    phase="backward",
    allocated_bytes=60 * MIB,
    predicted_bytes=58 * MIB,
    capacity_bytes=80 * MIB,
    piles={"parameters": 20 * MIB, "activations": 40 * MIB},
)
NOW = Live(
    queue=None,
    recent=tuple({"step": step, "loss": 3 - step / 10, "tokens_per_second": 1000.0} for step in range(1, 20)),
    predicted_tokens_per_second=1250.0,
    memory=MEMORY,
    slowest=SlowestRank(rank=3, slower=0.08, log="x", lines=("x" * 200, "step 5")),
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return recorded(tmp_path / "a", "train.steps=40", steps=[line(19, 1.1)], now="running")


def test_a_run_that_trains(run: Path) -> None:
    text = "\n".join(view.frame(status.read(run), NOW, 80))
    assert "step      ━━━━━━━━━━━━━━┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄  19/40 48%  42 s left" in text
    assert "last loss 1.1000     ███▇▇▆▆▅▅▅▄▄▃▃▂▂▁▁▁" in text
    assert "tokens/s  1,000      ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄  -20% of 1,250 predicted" in text
    assert "memory    60.0 MiB of 80.0 MiB, predicted 58.0 MiB" in text
    assert "at the peak in backward on rank 3, step 100" in text
    assert f"[{'P' * 17}{'A' * 34}{'┄' * 17}]" in text
    assert "A activations 40.0 MiB | P parameters 20.0 MiB" in text
    assert "slowest   rank 3, 8% above the median of the ranks' own work" in text


def test_a_run_that_waits_says_where_in_the_queue_and_when_it_may_start(run: Path) -> None:
    queue = Waiting(partition="gpu", place=3, jobs=17, start="2026-11-24 16:05")
    now = Live(queue=queue, recent=(), predicted_tokens_per_second=None, memory=None, slowest=None)
    assert "queue     3 of 17 waiting in partition gpu; Slurm expects a start at 2026-11-24 16:05" in (
        view.frame(status.read(run), now, 80)
    )


@given(width=st.integers(20, 200), used=st.integers(0, 200), capacity=st.none() | st.integers(0, 150))
def test_the_bar_has_the_width_that_it_was_given_whatever_is_full(width: int, used: int, capacity: int | None) -> None:
    found = MemoryNow(
        rank=0,
        step=1,
        phase="forward",
        allocated_bytes=used,
        predicted_bytes=None,
        capacity_bytes=capacity,
        piles={"parameters": used // 3, "temporary": used - used // 3},
    )
    assert len(view.memory_bar(found, width)) == width


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(run: Path, width: int) -> None:
    lines = view.folded(view.frame(status.read(run), NOW, width), width)
    assert len(lines) > 8
    assert max(map(len, lines)) <= width


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_a_curve_has_a_column_a_value_and_its_ends_at_the_lowest_and_the_highest(values: list[float]) -> None:
    drawn = view.sparkline(values)
    assert len(drawn) == len(values)
    if min(values) < max(values):
        assert drawn[values.index(min(values))] == "▁"
        assert drawn[values.index(max(values))] == "█"
