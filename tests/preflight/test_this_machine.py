"""Refusals of runs for which this machine lacks something beside GPUs and packages."""

from __future__ import annotations

import pytest

from launcher.preflight.this_machine import obstacles
from tests.support.helpers import CPU_HOST, make_spec


@pytest.mark.parametrize(("compiler", "lacks"), [("no-such-compiler", True), ("sh", False)])
def test_a_compiled_run_on_the_cpu_needs_a_compiler(
    compiler: str, *, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    words = ("model=tiny", "hardware=cpu", "train.compile=true")
    found = [error for error in obstacles(make_spec(*words), CPU_HOST) if error.path == "train.compile"]
    assert [error.way_out for error in found] == ([("train.compile=false",)] if lacks else [])
