"""What surrounds Megatron's loop, tried without it."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from launcher.saved.checkpoints import TRACKER
from launcher.worker import CheckpointError, TrainingError
from launcher.worker.engine import Context
from launcher.worker.megatron import cpu
from launcher.worker.megatron.checkpoints import Checkpoints, source
from launcher.worker.megatron.pretraining import suits
from launcher.worker.memory import MemoryTracker
from tests.support.helpers import make_spec, needs


def _context(directory: Path, *overrides: str) -> Context:
    return Context(
        spec=make_spec("parallel=tp", "cluster.gpus_per_node=2", *overrides),
        directory=directory,
        rank=0,
        world=2,
        device=torch.device("cpu"),
        memory=MemoryTracker(),
    )


def _checkpoint(folder: Path, step: int) -> Path:
    """As Megatron leaves it: a folder, then the tracker that names it."""
    path = folder / f"iter_{step:07d}"
    path.mkdir(parents=True)
    (folder / TRACKER).write_text(str(step))
    return path


def test_the_stand_ins_for_cuda_refuse_to_load_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = torch.cuda.synchronize
    with pytest.raises(TrainingError) as caught:
        cpu.install()
    assert str(caught.value) == (
        "hardware.device=cpu would hide torch.cuda from Megatron, but this node has a GPU: set hardware=auto"
    )
    assert torch.cuda.synchronize is before


@pytest.mark.thorough  # Each way imports torch's compiler anew.
@pytest.mark.parametrize("before", ["", "import torch._dynamo; "])
def test_without_a_compiler_what_megatron_compiles_is_computed_all_the_same(before: str) -> None:
    needs("megatron.core")
    code = (
        f"{before}from launcher.worker.megatron import cpu; cpu.install(); import torch; print(torch.compile(abs)(-3))"
    )
    environment = {**os.environ, "CXX": "no-such-compiler"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr[-2000:]


@pytest.mark.parametrize("version", ["0.19.0", "0.19.2"])
def test_the_supported_versions_are_taken(version: str) -> None:
    suits(version)


@pytest.mark.parametrize("version", ["0.18.2", "0.20.0", "0.190.0"])
def test_another_version_is_refused_with_the_way_out(version: str) -> None:
    with pytest.raises(TrainingError) as caught:
        suits(version)
    assert str(caught.value) == (
        f"megatron-core {version} is installed, but launch drives the training loop only of versions from 0.19, "
        f"below 0.20: {sys.executable} -m pip install 'llm-launch[megatron]'"
    )


def test_a_run_goes_on_from_its_own_checkpoint_before_the_one_it_was_to_start_from(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    _checkpoint(other / "checkpoints", 7)
    context = _context(run, f"save.load={other}")
    assert source(context) == (other / "checkpoints", 7)
    assert source(_context(run)) is None
    named = _checkpoint(other / "checkpoints", 9)
    assert source(_context(run, f"save.load={named.with_name('iter_0000007')}")) == (other / "checkpoints", 7)
    _checkpoint(run / "checkpoints", 3)
    assert source(context) == (run / "checkpoints", 3)


def test_a_folder_without_a_checkpoint_of_megatrons_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000010").mkdir(parents=True)
    with pytest.raises(CheckpointError) as caught:
        source(_context(tmp_path / "run", f"save.load={tmp_path}"))
    assert str(caught.value) == (
        f"save.load={tmp_path} holds no checkpoint of backend=megatron: name a run directory of that backend or one of "
        "its checkpoints/iter_*, or export from the backend that wrote it (save.export=safetensors) and start with "
        "model.weights"
    )


def test_a_checkpoint_that_is_not_there_is_none_whatever_its_name(tmp_path: Path) -> None:
    gone = tmp_path / "checkpoints" / "iter_0000100"
    with pytest.raises(CheckpointError, match=re.escape(f"save.load={gone} holds no checkpoint of backend=megatron: ")):
        source(_context(tmp_path / "run", f"save.load={gone}"))


def test_a_damaged_tracker_is_named(tmp_path: Path) -> None:
    _checkpoint(tmp_path / "checkpoints", 3)
    (tmp_path / "checkpoints" / TRACKER).write_text("")
    with pytest.raises(CheckpointError, match="should name a step, but contains ''"):
        source(_context(tmp_path))


def test_checkpoints_are_checked_thinned_out_and_intact_after_a_failure(tmp_path: Path) -> None:
    context: Any = _context(tmp_path, "save.keep=2")
    data: Any = type("Data", (), {"identity": lambda self: {"samples": 8}})()
    checkpoints, folder = Checkpoints(context, data), tmp_path / "checkpoints"
    for step in (1, 2, 3):
        checkpoints.save(step, functools.partial((folder / TRACKER).write_text, str(step)))
    assert sorted(path.name for path in folder.glob("iter_*")) == ["iter_0000002", "iter_0000003"]

    def fill() -> None:
        (folder / TRACKER).write_text("")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError) as caught:
        checkpoints.save(4, fill)
    assert (folder / TRACKER).read_text() == "3", "what was cut off is as it was"
    assert str(caught.value) == (
        f"the checkpoint of step 4 could not be written to {folder}: no space left on the disk; iter_0000003 is intact"
    )
    state = folder / "iter_0000003" / "state.json"
    content = json.loads(state.read_text())
    content["model"]["model.hidden_size"] = 1
    state.write_text(json.dumps(content))
    differing = re.escape("another model: model.hidden_size is 1 in it and 256 in this run")
    with pytest.raises(CheckpointError, match=differing), checkpoints.loading():
        raise AssertionError("Megatron is not asked")


def test_tokens_are_indexed_for_megatrons_own_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron warns on import of each package that it does without.
        from megatron.core.datasets.indexed_dataset import IndexedDataset

        from launcher.worker.megatron import data as index
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(index, "SEQUENCE", 1000)
    ids = np.random.default_rng(0).integers(0, 300, size=2500)
    for kind in (np.uint16, np.uint32):
        file = tmp_path / f"ids.{kind.__name__}"
        ids.astype(kind).tofile(file)
        index.write(tmp_path / "data" / "corpus", np.memmap(file, dtype=kind, mode="r"))
        found = IndexedDataset(str(tmp_path / "data" / "corpus"))
        assert np.concatenate([found[number] for number in range(len(found))]).tolist() == ids.tolist()
