"""The bars of a check: what is needed, what is cached, and the capacity."""

from __future__ import annotations

import pytest

from launcher.cli import main
from tests.support.rule_cases import NODE

CROWDED = ("model=7b", "parallel=fsdp", *NODE, "hardware.memory_bytes=42000000000")


def bar(name: str, text: str) -> str:
    """The characters of the bar of this name."""
    [line] = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
    return line.split()[-1]


def test_a_run_that_fits_passes_the_capacity_with_what_is_cached_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--no-native", *CROWDED]) == 0
    text = capsys.readouterr().out
    assert text.startswith("TIGHT: 38.3 of 39.1 GiB")
    whole, capacity = bar("whole process", text), bar("capacity", text)
    assert len(whole) > len(capacity) >= whole.count("=")
    assert set(whole) == {"=", "."}
    assert "  = needed 38.32 GiB: 34.74 allocated, 2.17 fragmented, 1.40 outside torch\n" in text
    assert "  . cached 3.88 GiB: held by torch (reserved 40.80), released when short\n" in text
    assert set(bar("fragmentation", text)) == {"#", "."}


def test_what_is_needed_beyond_the_capacity_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--no-native", *CROWDED, "hardware.memory_bytes=24e9"]) == 3
    text = capsys.readouterr().out
    whole = bar("whole process", text)
    assert whole.index("!") == len(bar("capacity", text))
    assert whole.index(".") > whole.rindex("!")
    assert "  ! over capacity: " in text


def test_the_share_of_the_driver_is_told_from_the_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "model=7b", *NODE])
    assert "  - capacity: 79.65 GiB less the driver's 0.90 (assumed)\n" in capsys.readouterr().out


def test_on_the_cpu_all_is_tensors_and_nothing_needs_a_legend(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "model=tiny", "hardware=cpu"])
    assert "needed" not in capsys.readouterr().out
