"""The first two sentences of a check: whether it fits, what is full, and why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.base import machine
from launcher.cli import main
from tests.support.helpers import CPU_HOST
from tests.support.rule_cases import NODE

SEVEN = ("model=7b", "parallel=fsdp", *NODE)


def paragraphs(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The paragraphs that ``launch check`` prints, each as one line."""
    main(["check", "--no-native", *words])
    return [" ".join(paragraph.split()) for paragraph in capsys.readouterr().out.split("\n\n")]


def test_the_first_line_says_whether_it_fits_and_on_what(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", *SEVEN])
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "FITS: 38.3 of 78.7 GiB on the fullest GPU (36.1 to 42.5)"


def test_what_does_not_fit_says_what_lacks_in_which_stage(capsys: pytest.CaptureFixture[str]) -> None:
    first = paragraphs(capsys, "model=70b", "parallel=tp_pp", *NODE)[0]
    assert first.startswith("DOES NOT FIT: ")
    assert "GiB on the fullest GPU (" in first
    assert "of pipeline stage 1; " in first
    assert first.endswith("GiB short.")


def test_a_disk_that_alone_is_too_small_comes_first_with_ways_out_for_a_disk(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = paragraphs(capsys, *SEVEN, "save.every=10", "hardware.disk_bytes=200e9")
    assert said[0] == (
        "DOES NOT FIT: the disk, 225.9 of 186.3 GiB for checkpoints; device memory is enough, 38.3 of 78.7 GiB on the"
        " fullest GPU (36.1 to 42.5) 3 checkpoints of 75.31 GiB are on disk at once: save.keep=2 plus the one being"
        " written."
    )
    assert re.match("what would fit, cheapest first: save.keep=1 needs 38.32 GiB; [^;]+; costs older chec", said[-2])
    assert re.search("save.every=null save.last=false needs 38.32 GiB; [^;]+; costs the trained model: no", said[-2])
    assert "checkpointing" not in said[-2]
    assert said[-1] == "put the run folder on another disk: run.directory=/path/on/a/larger/disk"


def test_host_memory_that_alone_is_too_small_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=7b", "parallel=zero3", "zero.offload_optimizer=cpu", "hardware.host_memory_bytes=1000000000", *NODE)
    assert paragraphs(capsys, *words)[0].startswith("DOES NOT FIT: a node's host memory, 1")


def test_a_run_that_is_tight_is_told_the_cheapest_change_with_which_it_fits_for_certain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tight = (*SEVEN, "hardware.memory_bytes=42000000000")
    said = paragraphs(capsys, *tight)
    assert said[0].startswith("TIGHT: 38.3 of 39.1 GiB on the fullest GPU (36.1 to 42.5) The capacity is within")
    assert said[-1].startswith("what would leave room, cheapest first: ")
    assert " checkpointing=selective needs " in said[-1]
    cheapest = said[-1].removeprefix("what would leave room, cheapest first: ").partition(" needs ")[0]
    assert paragraphs(capsys, *tight, *cheapest.split())[0].startswith("FITS: ")


def test_a_tight_run_that_is_started_says_so_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # No Slurm is found, so that nothing is submitted.
    words = (*SEVEN, "hardware.memory_bytes=42000000000", "cluster=slurm", "run.name=a")
    assert main(["run", "--no-native", *words]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "launch: TIGHT: 38.3 of 39.1 GiB on the fullest GPU (36.1 to 42.5). The capacity is within" in said
    assert re.search(r"launch: this would leave room: \S+=\S+ \((about as fast|.*% slower)", said)


def test_an_unknown_memory_refuses_nothing_and_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    first = paragraphs(capsys, *SEVEN, "hardware.memory_bytes=null")[0]
    assert first.startswith("FITS as far as known: 38.3 GiB on the fullest GPU (36.1 to 42.5); its capacity is unknown")


def test_a_rank_on_the_cpu_is_no_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    assert paragraphs(capsys, "model=tiny", "precision=bf16")[0].startswith(
        "FITS: 34.3 MiB of 12.0 GiB on the fullest rank ("
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("parallel=fsdp", "bf16 means: parameters fp32, gradients bf16, reduce fp32, master none"),
        (
            "parallel=ddp",
            "bf16 means: parameters fp32, compute bf16 (autocast), gradients fp32, reduce fp32, master no",
        ),
        ("parallel=zero3", "bf16 means: parameters bf16, gradients bf16, reduce bf16, master fp32"),
        ("parallel=tp", "bf16 means: parameters bf16, gradients fp32, reduce fp32, master fp32"),
        ("parallel=fsdp precision.reduce=bf16", "gradients bf16, reduce bf16, master none"),
    ],
)
def test_the_meaning_of_the_precision_for_the_engine_is_a_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in paragraphs(capsys, "model=1b", *NODE, *words.split())[2]
