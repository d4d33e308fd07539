"""The words of torch about memory that ended, for runs that left no more."""

from __future__ import annotations

import pytest

from launcher.why.out_of_memory import phase_of, told

ERROR = {"rank": "3", "node": "gpu07", "type": "OutOfMemoryError", "traceback": ""}
MIB, GIB = 2**20, 2**30


def test_the_words_of_a_gpu_are_read() -> None:
    message = (
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.00 GiB of which 0 bytes is "
        "free. Process 8 has 4.00 GiB memory in use. Including non-PyTorch memory, this process has 75.00 GiB memory "
        "in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 4.00 GiB is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting ..."
    )
    found = told({**ERROR, "message": message})
    assert found is not None
    assert (found.place, found.rank, found.requested_bytes, found.free_bytes) == ("device", 3, 512 * MIB, 0)
    assert (found.capacity_bytes, found.allocated_bytes, found.reserved_bytes) == (79 * GIB, 70 * GIB, 74 * GIB)
    assert (found.others_bytes, found.others) == (4 * GIB, ({"pid": 8, "name": "", "bytes": 4 * GIB},))


def test_the_words_of_a_cpu_and_of_an_older_torch_are_read() -> None:
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes. Error code 12"
    message = f"[enforce fail at alloc_cpu.cpp:1] {words}"
    found = told({**ERROR, "type": "RuntimeError", "message": f"RuntimeError: out of memory: {message}"})
    assert found is not None
    assert (found.place, found.kind, found.requested_bytes) == ("host", "allocator", 99)
    found = told({**ERROR, "message": "CUDA error: out of memory"})
    assert found is not None
    assert found.requested_bytes is None


def test_another_error_is_none() -> None:
    assert told({**ERROR, "type": "ValueError", "message": "ValueError: no"}) is None


@pytest.mark.parametrize(
    ("functions", "phase"),
    [
        (["train_step", "backward", "_engine_run_backward"], "backward"),
        (["train_step", "forward", "linear"], "forward"),
        (["train_step", "step", "_update"], "optimizer"),
        (["evaluate", "forward"], "evaluation"),
        (["_save", "save"], "checkpoint_save"),
        (["build"], "load"),
        (["main"], None),
    ],
)
def test_the_functions_of_a_traceback_tell_the_phase(functions: list[str], phase: str | None) -> None:
    lines = [f'  File "/x/a.py", line {number}, in {name}' for number, name in enumerate(functions, 1)]
    assert phase_of("\n".join(lines)) == phase
