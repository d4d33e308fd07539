"""A dozen ways to run out of memory, each a real run of the real worker on the CPU.

A run is recorded as by ``launch run --force`` and trained in forked ranks; this module does what its node does at the
end. Budgets (``hardware.memory_bytes`` with ``train.enforce_memory``) lie between what a run needs before the phase in
which it must fail and what it needs there. :func:`main`, which the ranks run instead of the worker's own entry,
injects faults that no setting causes (a leak, a batch longer than the checked one).
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launcher.job.memory import OUT_OF_MEMORY
from launcher.preflight import plan
from launcher.preflight.assess import assess
from launcher.rundir import record
from launcher.submission import ending
from tests.support import cgroups, ranks, train_many
from tests.support.helpers import ROOT, make_spec
from tests.support.training import SMALL, environment, free_ports

LONG = ("model.max_position_embeddings=1024",)
WIDE = ("model.hidden_size=256", "model.intermediate_size=1024")
DDP, FSDP, ZERO3 = ("parallel=ddp",), ("parallel=fsdp",), ("parallel=zero3", "zero.reduce_bucket_size=100000")
MEGATRON = ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to run out of memory.

    Attributes:
        words: Words of the run, beyond a small model.
        pile: The pile that outgrew the budget; None if no pile of a device did.
        phase: The phase of the failure; None if the rank could not tell.
        budget: ``hardware.memory_bytes``; None for a run without one.
        ranks: CPU processes.
        fault: Name of a function of this module that the ranks call first.
    """

    words: tuple[str, ...]
    pile: str | None
    phase: str | None
    budget: int | None = None
    ranks: int = 1
    fault: str = "nothing"


CASES: dict[str, Case] = {
    "logits": Case(words=(*DDP, "model.vocab_size=8192"), budget=20_000_000, pile="logits", phase="backward"),
    "activations": Case(
        words=(*MEGATRON, "train.sequence_length=64"), budget=3_000_000, pile="activations", phase="forward"
    ),
    "optimizer": Case(
        words=(*DDP, *WIDE, "train.sequence_length=16", "train.micro_batch_size=1"),
        budget=24_000_000,
        pile="optimizer_states",
        phase="optimizer",
    ),
    "gather": Case(words=(*FSDP, *WIDE), budget=7_000_000, ranks=2, pile="gather_buffers", phase="forward"),
    "save": Case(words=(*MEGATRON, "save.every=2"), budget=4_000_000, pile="temporary", phase="checkpoint_save"),
    "load": Case(words=("parallel=zero3",), budget=1_000_000_000, pile="reduce_buffers", phase="load"),
    "eval": Case(
        words=(*FSDP, "train.eval_every=2", "train.eval_steps=1"),
        budget=6_000_000,
        fault="longer_evaluation",
        pile="temporary",
        phase="evaluation",
    ),
    "longer batch": Case(words=ZERO3, budget=6_000_000, fault="longer_batch", pile="activations", phase="forward"),
    "leak": Case(words=FSDP, budget=6_000_000, fault="leak", pile="activations", phase="forward"),
    "host": Case(
        words=(*DDP, "model.vocab_size=65536", "train.sequence_length=1024", *LONG),
        fault="little_address_space",
        pile="logits",
        phase="forward",
    ),
    "disk": Case(words=(*FSDP, "save.last=true", "train.steps=2"), pile=None, phase="checkpoint_save"),
    "disk in the background": Case(
        words=(*FSDP, "save.last=true", "train.steps=2", "save.async=true"), pile=None, phase="checkpoint_save"
    ),
    "other process": Case(words=(*DDP, "model.vocab_size=65536", "train.sequence_length=256"), pile=None, phase=None),
}
"""The cases by name."""


def nothing() -> None:
    """Inject nothing: the settings alone need too much."""


def leak() -> None:
    """Leak memory in every step from the third on, like a list of losses with their graphs."""
    from launcher.worker.fsdp.engine import FsdpEngine

    original, kept = FsdpEngine.train_step, []

    def leaking(self: FsdpEngine, step: int, micro_batches: Any) -> Any:
        if step > 2:
            kept.append([tokens.new_zeros(200_000, dtype=int) for tokens in micro_batches[:1]])
        return original(self, step, micro_batches)

    FsdpEngine.train_step = leaking  # type: ignore[method-assign]


def longer_batch() -> None:
    """Make samples four times as long as the checked ones from the third step on."""
    from launcher.worker.data import Batches

    original = Batches.training

    def longer(self: Batches, start: Any, *, last: int) -> Iterator[Any]:
        for step, micro_batches in original(self, start, last=last):
            yield step, [tokens.repeat(1, 4) for tokens in micro_batches] if step > 2 else micro_batches

    Batches.training = longer  # type: ignore[method-assign]


def longer_evaluation() -> None:
    """Make held-out samples twenty times as long as training samples."""
    from launcher.worker.data import Batches

    original = Batches.held_out
    Batches.held_out = lambda self, name: (tokens.repeat(1, 20) for tokens in original(self, name))  # type: ignore[method-assign]


def little_address_space() -> None:
    """Limit the C library to 1 GiB more; threads alone reserve most of that."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(backend: str, place: str, fault: str) -> None:
    """Run one rank of one run."""
    faulty: Callable[[], None] = globals()[fault]
    faulty()
    train_many.main(backend, place)


@cache
def ended(name: str, folder: Path) -> Path:
    """The directory of a run that ended in the named way; created once per folder.

    Args:
        name: Of :data:`CASES`.
        folder: Where the run is created.
    """
    case, directory = CASES[name], folder / name.replace(" ", "_")
    words = _words(case)
    spec = make_spec(*words)
    planned = plan.plan(assess(spec), python=sys.executable)
    record.record(planned, directory, overrides=words, forced=True)
    if name == "other process":
        _beside_another(directory)
        return directory
    around = _small_disk(directory) if name.startswith("disk") else contextlib.nullcontext()
    with around, contextlib.suppress(AssertionError):  # Its ranks fail; the way they fail is asserted below.
        ranks.run(
            main,
            [spec.backend.name, f"{directory}:{free_ports(1)[0]}", case.fault],
            imports=train_many.IMPORTS[spec.backend.name],
            count=case.ranks,
            environment=environment(),
            log=directory / "logs" / "ranks.log",
        )
    assert (directory / OUT_OF_MEMORY).exists(), (directory / "logs" / "ranks.log").read_text()[-2000:]
    ending.conclude(directory, 1, None)
    return directory


def _words(case: Case) -> tuple[str, ...]:
    kept = () if case.budget is None else (f"hardware.memory_bytes={case.budget}", "train.enforce_memory=true")
    return (*SMALL, f"cluster.gpus_per_node={case.ranks}", "train.micro_batch_size=4", *case.words, *kept)


@contextlib.contextmanager
def _small_disk(directory: Path) -> Iterator[None]:
    """A disk of half a MiB for checkpoints; root can mount one."""
    place = directory / "checkpoints"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


_NODE = "import sys; from pathlib import Path; from launcher.submission import node; node.run(Path(sys.argv[1]))"
_HOG = "import sys, time; held = bytearray(500_000_000); print(flush=True); time.sleep(600)"


def _beside_another(directory: Path) -> None:
    """Run the node's whole part, including torchrun, in a cgroup mostly used by another program."""
    with cgroups.limited(1_500_000_000) as group:
        assert group is not None, "this machine lets nobody make cgroups"
        hog = cgroups.start(group, [sys.executable, "-c", _HOG], stdout=subprocess.PIPE)
        try:
            assert hog.stdout is not None
            hog.stdout.readline()
            node = cgroups.start(
                group,
                [sys.executable, "-c", _NODE, str(directory)],
                rather=True,
                cwd=ROOT,
                env=environment(),
                stderr=subprocess.DEVNULL,
            )
            node.wait(timeout=240)
        finally:
            hog.kill()
            hog.communicate()


def can_make(name: str) -> bool:
    """True if this user can create what the named case needs on this machine."""
    if name == "other process":
        with cgroups.limited(2**30) as group:
            return group is not None
    return not name.startswith("disk") or os.geteuid() == 0


def names(backends: Sequence[str] = ("fsdp", "deepspeed", "megatron")) -> list[str]:
    """Names of the cases of these backends."""
    presets = {"zero3": "deepspeed", "tp": "megatron"}
    found = {name: presets.get(case.words[0].partition("=")[2], "fsdp") for name, case in CASES.items()}
    return [name for name, backend in found.items() if backend in backends]
