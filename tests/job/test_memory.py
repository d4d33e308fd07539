"""Measured memory as files is read as it was written; what is not whole, or of another version, is passed over."""

import json
from pathlib import Path

from launcher.job import memory
from launcher.job.memory import Held, HostMemory, MemoryRecord, OutOfMemory, PhaseMemory

_RECORD = MemoryRecord(
    step=7,
    rank=1,
    node="gpu07",
    time=12.5,
    tokens=4096,
    phases={"forward": PhaseMemory(allocated_bytes=30, piles={"parameters": 10, "activations": 20})},
    static={"parameters": 10},
    device_bytes=100,
    host=HostMemory(rank_bytes=5, node_used_bytes=50, node_bytes=60),
)


def test_lines_are_read_as_they_were_written_and_others_are_passed_over(tmp_path: Path) -> None:
    lines = [json.dumps(_RECORD.as_dict()), '{"step": 8}', "[]", json.dumps({**_RECORD.as_dict(), "later": 1})]
    (tmp_path / memory.RECORDS).write_text("\n".join([*lines, json.dumps(_RECORD.as_dict())[:40]]))
    assert list(memory.records(tmp_path)) == [_RECORD, _RECORD]


def test_a_run_without_the_files_has_neither_lines_nor_an_end(tmp_path: Path) -> None:
    assert list(memory.records(tmp_path)) == []
    assert memory.ran_out(tmp_path) is None


def test_the_end_of_memory_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = OutOfMemory(
        kind="budget",
        place="device",
        time=13.0,
        rank=1,
        node="gpu07",
        step=8,
        phase="backward",
        layer=17,
        requested_bytes=14,
        free_bytes=9,
        piles={"activations": 70},
        largest=(Held(bytes=40, pile="activations", operation="aten.mm.default", shape=(4, 5), layer=3),),
        last=_RECORD,
    )
    (tmp_path / memory.OUT_OF_MEMORY).write_text(json.dumps(found.as_dict()))
    assert memory.ran_out(tmp_path) == found
    (tmp_path / memory.OUT_OF_MEMORY).write_text('{"schema": 2, "kind": "device"}')
    assert memory.ran_out(tmp_path) is None
