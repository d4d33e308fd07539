"""Ctrl-C at a few random moments of a real launch; the benchmark has many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import interrupts


def test_a_launch_that_is_interrupted_at_any_moment_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    found = interrupts.disturbed(tmp_path, ["run"], 6, seed=1, life=(0.5, 0.8))
    assert len(found) == 6
    assert not [one for one in found if one.faults]
