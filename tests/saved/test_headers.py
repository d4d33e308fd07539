"""Headers of saved tensors are read, and nothing that a file names is run."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import pytest

from launcher.preflight import stored
from launcher.saved import headers
from tests.support.helpers import make_spec


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("harmed",)


@pytest.mark.parametrize(
    "content", [pickle.dumps(Harmful()), pickle.dumps({"state_dict_metadata": 1}), b"", b"\x80\x04"]
)
def test_a_pickle_that_describes_no_tensors_is_refused_and_not_run(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / headers.METADATA).write_bytes(content)
    with pytest.raises(headers.Unreadable, match=r"\.metadata cannot be read: "):
        headers.distributed(tmp_path)
    assert not Path("harmed").exists()
    (error,) = stored.checkpoint(make_spec("model=tiny"), tmp_path)
    assert (error.path, error.way_out) == ("save.load", ("save.load=null",))


def test_the_name_of_what_a_pickle_would_call_is_said(tmp_path: Path) -> None:
    (tmp_path / headers.METADATA).write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(headers.Unreadable, match=r"it names posix\.mkdir, which describes no tensor"):
        headers.distributed(tmp_path)


def test_a_checkpoint_may_hold_numbers_and_what_each_rank_wrote(tmp_path: Path) -> None:
    """bitsandbytes counts steps in a number, which torch describes by an object without a state; Megatron-LM adds
    the ranks' plans.
    """
    metadata = pytest.importorskip("torch.distributed.checkpoint.metadata")
    planner = pytest.importorskip("torch.distributed.checkpoint.planner")
    content = metadata.Metadata({"optimizer.step": metadata.BytesStorageMetadata()}, storage_data={})
    item = planner.WriteItem(metadata.MetadataIndex("optimizer.step"), planner.WriteItemType.BYTE_IO)
    content.all_local_plans = [planner.SavePlan([item])]
    (tmp_path / headers.METADATA).write_bytes(pickle.dumps(content))
    assert headers.distributed(tmp_path) == headers.Distributed({}, frozenset())


def test_files_that_an_index_names_and_that_are_missing_or_cut_off_are_said(tmp_path: Path) -> None:
    with pytest.raises(headers.Unreadable, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        headers.safetensors(tmp_path)
    (tmp_path / headers.INDEX).write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "1.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(headers.Unreadable, match=r"1 of the 2 files that its index names are missing: 2\.safetensors"):
        headers.safetensors(tmp_path)
    (tmp_path / "2.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(7))
    with pytest.raises(headers.Unreadable, match=r"2\.safetensors is truncated: it is shorter than its header says"):
        headers.safetensors(tmp_path)
    (tmp_path / headers.INDEX).write_text("[]")
    with pytest.raises(headers.Unreadable, match="is not an index of safetensors files"):
        headers.safetensors(tmp_path)


def test_weights_in_8_bits_are_refused_before_the_queue(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    places = {name: [0, 8], f"{name}_scale_inv": [8, 16]}
    tensors = {each: {"dtype": "F32", "shape": [2], "data_offsets": place} for each, place in places.items()}
    header = json.dumps(tensors).encode()
    (tmp_path / headers.SINGLE).write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    [error] = stored.weights(make_spec("model=tiny", f"model.weights={tmp_path}"))
    assert error.rule == f"its weights are quantised ({name}_scale_inv), and launch reads weights in 16 or 32 bits only"
