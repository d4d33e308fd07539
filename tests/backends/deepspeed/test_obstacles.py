"""What this machine lacks for a run of DeepSpeed's."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.backends.deepspeed import obstacles
from tests.support.helpers import make_spec


def lacking(*overrides: str) -> list[tuple[str, str, tuple[str, ...]]]:
    spec = make_spec("model=tiny", "parallel=zero3", "zero.nvme_path=/x", *overrides)
    return [(error.path, error.rule, error.way_out) for error in obstacles(spec)]


NVME = ("zero.offload_optimizer=nvme", "zero.offload_parameters=nvme")
TO_CPU = ("zero.offload_optimizer=cpu", "zero.offload_parameters=cpu")


def test_a_machine_without_a_compiler_cannot_offload_to_nvme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libaio.h").touch()
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    rule = "DeepSpeed compiles its async_io for NVMe, and this machine has no C++ compiler (no-such-compiler)"
    assert lacking(*NVME) == [("zero.offload_optimizer", rule, TO_CPU)]


def test_a_machine_without_libaio_s_headers_cannot_offload_to_nvme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "true")
    monkeypatch.setattr("launcher.backends.deepspeed.optimizer._has_header", lambda: False)
    rule = (
        "DeepSpeed compiles its async_io for NVMe with libaio's headers, which this machine lacks:"
        " install libaio-dev (Debian, Ubuntu) or libaio-devel (Red Hat)"
    )
    assert lacking(*NVME) == [("zero.offload_optimizer", rule, TO_CPU)]


def test_a_gpu_machine_without_a_compiler_takes_torch_s_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    rule = "DeepSpeed compiles its own Adam, and this machine has no C++ compiler (no-such-compiler)"
    assert lacking("hardware=h100_80g") == [("optimizer.fused", rule, ("optimizer.fused=true",))]
    assert lacking("hardware=h100_80g", "optimizer.fused=true") == []


def test_cpu_ranks_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert lacking() == []
