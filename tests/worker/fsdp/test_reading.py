"""A checkpoint of torch's own format is read, and no file of it can run code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest

from launcher.saved import headers
from tests.support import hostile

pytest.importorskip("torch", reason="the worker needs the extra 'fsdp'")

import torch
from torch.distributed.checkpoint import filesystem, metadata, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from launcher.worker.fsdp import reading

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def state(value: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((3, 2), value, dtype=torch.bfloat16)}, "optimizer": {"state.w.step": int(value)}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    state_dict_saver.save(state(5.0), checkpoint_id=tmp_path / "saved")
    return tmp_path / "saved"


def load(folder: Path) -> dict[str, Any]:
    found = state(0.0)
    state_dict_loader.load(found, storage_reader=reading.SafeReader(folder), planner=reading.SafePlanner())
    return found


def test_tensors_and_numbers_come_back(saved: Path) -> None:
    found = load(saved)
    assert found["model"]["w"].tolist() == [[5.0, 5.0]] * 3
    assert found["optimizer"] == {"state.w.step": 5}


def test_a_description_that_would_run_a_program_is_refused(saved: Path, tmp_path: Path) -> None:
    (saved / headers.METADATA).write_bytes(pickle.dumps(hostile.Pickle(tmp_path / "harmed")))
    with pytest.raises(CheckpointException, match=r"it names posix\.system, which describes no tensor"):
        load(saved)
    (saved / headers.METADATA).write_bytes(pickle.dumps([]))
    with pytest.raises(CheckpointException, match=r"\.metadata holds list, not a description"):
        load(saved)
    assert not (tmp_path / "harmed").exists()


def test_bytes_in_place_of_a_tensor_that_would_run_a_program_are_refused(saved: Path, tmp_path: Path) -> None:
    content = io.BytesIO()
    torch.save(hostile.Pickle(tmp_path / "harmed"), content)
    (saved / "evil.distcp").write_bytes(content.getvalue())
    described = pickle.loads((saved / headers.METADATA).read_bytes())
    index = metadata.MetadataIndex("model.w")
    described.state_dict_metadata["model.w"] = metadata.BytesStorageMetadata()
    described.storage_data[index] = filesystem._StorageInfo("evil.distcp", 0, len(content.getvalue()))
    (saved / headers.METADATA).write_bytes(pickle.dumps(described))
    with pytest.raises(CheckpointException, match=r"model\.w holds neither a tensor nor numbers, text or containers"):
        load(saved)
    assert not (tmp_path / "harmed").exists()
    state_dict_loader.load(state(0.0), checkpoint_id=saved)  # As torch reads it by itself: this file would harm.
    assert (tmp_path / "harmed").exists()
