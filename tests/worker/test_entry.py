"""A job looks at its data before its ranks wait for each other: what is wrong ends it with the words of a check."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from launcher.spec import RunSpec
from launcher.spec.parse import to_dict
from launcher.worker import process
from tests.support.helpers import make_spec


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("data=text", "data.path=typo.txt"),
            "data.path=typo.txt: no file matches; data=text reads text, or rows of JSON lines, JSON, CSV, Parquet or "
            "Arrow with the column data.column; try data=synthetic data.path=null",
        ),
        (
            ("data=tokens", "data.path=typo.bin"),
            "data.path=typo.bin: no file matches; data=tokens reads token ids of data.token_dtype end to end, "
            "or Megatron-LM's PREFIX.bin with PREFIX.idx; try data=synthetic data.path=null",
        ),
        (
            ("backend=megatron", "data=text", "data.path=rows.jsonl"),
            "data.column=text: row 1 has no such column; it has body; try data.column=body",
        ),
    ],
)
def test_a_typo_ends_the_job_before_anything_is_built(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    def train(spec: RunSpec, directory: Path, rest: list[str]) -> None:
        pytest.fail("the rank went on")

    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"body": "a"}\n')
    Path("spec.json").write_text(json.dumps(to_dict(make_spec("model=tiny", *words))))
    monkeypatch.setattr(sys, "argv", ["worker", "--run", str(tmp_path)])
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit, match="1"):
        process.main(train)
    assert json.loads(Path("logs/error.rank0.json").read_text())["message"] == message


def test_an_optimizer_that_steps_on_the_host_has_its_ranks_share_of_the_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("launcher.worker.process.torch.set_num_threads", asked.append)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(32)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    offloaded = ("model=tiny", "parallel=fsdp", "hardware=h100_80g", "zero.offload_parameters=cpu")
    process.use_host(make_spec(*offloaded))
    process.use_host(make_spec(*offloaded, "+cluster.environment.OMP_NUM_THREADS=2"))
    process.use_host(make_spec("model=tiny", "parallel=fsdp", "hardware=h100_80g"))
    assert asked == [4]
