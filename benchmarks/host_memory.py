"""Host memory of a run's processes without its tensors: ``python -m benchmarks.host_memory``.

Each engine trains a model of a tenth of a million parameters on two CPU ranks, once without and once with processes
that read the data ahead. Meanwhile the kernel's counts of every process of the run are read (``proc(5)``):
private bytes are ``Pss_Anon`` and ``Pss_Shmem`` of ``smaps_rollup``, which nothing but swap can take away; file bytes
are ``RssFile`` of ``status``, pages of libraries, which all processes of a node share, so that those of the rank with
most of them count, once. The fullest moment of a run counts. Writes ``launcher/estimate/memory/processes.json``.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from benchmarks.reporting import machine, takes_no_option
from launcher.estimate.memory.host import MEASURED
from launcher.rundir.provenance import versions

RUNS = {
    "fsdp": ("parallel=fsdp",),
    "deepspeed": ("parallel=zero1",),
    "megatron": ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false"),
}
COMMON = (
    "model=tiny",
    "model.num_hidden_layers=2",
    "model.hidden_size=64",
    "model.intermediate_size=96",
    "model.num_attention_heads=4",
    "model.num_key_value_heads=2",
    "precision=fp32",
    "data=synthetic",
    "hardware=cpu",
    "train.sequence_length=32",
    "train.micro_batch_size=4",
    "train.steps=20",
)
RANKS = 2
READERS = 2
"""Processes on each rank that read the data ahead, in the runs that have any."""

_LOOK_S = 0.3

type Kind = Literal["rank", "reader", "helper", "node"]
"""A rank, a process that reads for it, another of its own, or what a node has once: launcher, submitit and torchrun."""

type Counts = dict[Kind, list[tuple[int, int]]]
"""Private and file bytes of each process."""


def main() -> None:
    """Run, look, and keep."""
    content = {
        "what": "host bytes of a run's processes beside its tensors, on CPU ranks at the fullest moment",
        "command": "python -m benchmarks.host_memory",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions()["packages"],
        "measured": {engine: _measured(words) for engine, words in RUNS.items()},
    }
    MEASURED.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["measured"], indent=1))


def _measured(words: tuple[str, ...]) -> dict[str, int]:
    without, reading = _fullest(words, 0), _fullest(words, READERS)
    ranks = [private for private, _ in without["rank"]]
    all_ranks = sum(private for kind in ("rank", "reader") for private, _ in reading[kind])
    helpers = sum(private for private, _ in without["helper"])
    assert len(ranks) == RANKS, without
    assert len(reading["reader"]) >= RANKS * READERS, reading
    return {
        "rank_bytes": max(ranks) + helpers // RANKS,
        "reader_bytes": max(0, all_ranks - sum(ranks)) // (RANKS * READERS),
        "node_bytes": sum(private for private, _ in without["node"]),
        "library_bytes": max(file for _, file in without["rank"]),
    }


def _fullest(words: tuple[str, ...], readers: int) -> Counts:
    """The counts of a run at the moment at which its processes have most private bytes."""
    launch = str(Path(sys.executable).with_name("launch"))
    best: Counts = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        command = [launch, *COMMON, *words, f"cluster.gpus_per_node={RANKS}", f"data.workers={readers}"]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        while process.poll() is None:
            now = _counts(process.pid)
            if _private(now) > _private(best):
                best = now
            time.sleep(_LOOK_S)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {log.read()}")
    return best


def _private(counts: Counts) -> int:
    return sum(private for kind in counts.values() for private, _ in kind)


def _counts(root: int) -> Counts:
    """The processes below one, by what they are."""
    found: Counts = defaultdict(list)
    for pid, above in _below(root):
        with contextlib.suppress(OSError):
            kind = _kind(pid, above)
            text = "".join(Path(f"/proc/{pid}/{name}").read_text() for name in ("smaps_rollup", "status"))
            sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE))
            private = int(sizes["Pss_Anon"]) + int(sizes["Pss_Shmem"])
            found[kind].append((1024 * private, 1024 * int(sizes["RssFile"])))
    return found


def _below(root: int, above: int = 0) -> Iterator[tuple[int, int]]:
    """A process and all that it has started, each with the one that started it."""
    yield root, above
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{root}/task").iterdir():
            for pid in (task / "children").read_text().split():
                yield from _below(int(pid), root)


def _kind(pid: int, above: int) -> Kind:
    if _is_rank(above):
        return "reader" if _is_rank(pid) else "helper"
    return "rank" if _is_rank(pid) else "node"


def _is_rank(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if pid else []
    return any(word.startswith(b"launcher.worker.") for word in words) and b"torch.distributed.run" not in words


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
