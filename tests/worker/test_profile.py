"""``train.profile``: the traces of chosen steps and ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch

from launcher.job import events
from launcher.preflight import findings
from launcher.worker import memory
from launcher.worker.engine import Context
from launcher.worker.profile import FOLDER, Profile
from tests.support.helpers import make_spec

_RUN = ("model=tiny", "parallel=fsdp", "precision=fp32", "train.steps=6", "cluster.gpus_per_node=2")


def _recorded(directory: Path, asked: str, *, first: int = 1, last: int = 6, rank: int = 0) -> list[str]:
    """The files that a rank leaves which multiplies matrices in every step."""
    device = torch.device("cpu")
    spec = make_spec(*_RUN, f"train.profile={asked}")
    context = Context(spec=spec, directory=directory, rank=rank, world=2, device=device, memory=memory.tracker(device))
    profile = Profile(context)
    for step in range(first, last + 1):
        with profile.step(step):
            torch.ones(64, 64) @ torch.ones(64, 64)
    profile.end(last)
    return sorted(path.name for path in (directory / FOLDER).glob("*"))


def test_a_chosen_rank_leaves_a_trace_of_the_steps_with_their_operators_and_allocations(tmp_path: Path) -> None:
    assert _recorded(tmp_path, "{start:3,steps:2}") == ["rank0.steps-3-4.json.gz"]
    content = json.loads(gzip.decompress((tmp_path / FOLDER / "rank0.steps-3-4.json.gz").read_bytes()))
    names = [event.get("name") for event in content["traceEvents"]]
    assert names.count("aten::mm") == 2
    assert {"step 3", "step 4", "[memory]"} <= set(names)
    (told,) = events.read(tmp_path)
    assert told["files"] == ["profile/rank0.steps-3-4.json.gz"]


def test_other_ranks_and_other_steps_leave_none(tmp_path: Path) -> None:
    assert _recorded(tmp_path, "{start:3}", rank=1) == []
    assert _recorded(tmp_path, "{start:3}", last=2) == []


def test_a_run_that_ends_or_goes_on_within_them_records_what_there_is(tmp_path: Path) -> None:
    assert _recorded(tmp_path, "{start:5,steps:9}", last=5) == ["rank0.steps-5-5.json.gz"]
    assert _recorded(tmp_path, "{start:2,steps:3}", first=4)[0] == "rank0.steps-4-4.json.gz"


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        ("{start:7}", ()),
        ("{start:1,ranks:[0,2]}", ()),
        ("{start:1,steps:101}", ()),
        ("{start:1}", ("script=train.py",)),
        ("{start:1}", ("parallel=tp", "backend=megatron", "backend.path=/opt/Megatron-LM")),
    ],
)
def test_what_nobody_could_record_is_refused(asked: str, more: tuple[str, ...]) -> None:
    assert "train.profile" in {
        error.path for error in findings.errors(make_spec(*_RUN, f"train.profile={asked}", *more))
    }
