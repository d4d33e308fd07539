"""Rehearsals as evidence: one rank of a run measured before the run starts.

``launch rehearse`` stores its results in the user's state folder, keyed by the settings that determine memory
(:func:`key`); name, length, data, learning rate and cluster are not among them. ``check`` and ``run`` report the stored
result of a run, and ``run --rehearsed`` uses its verdict on the device instead of the estimate's; the verdict on host
memory and disk stays the estimate's.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from launcher import backends
from launcher.base import cache, files, typed
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import gib
from launcher.spec import RunSpec

type Measured = Literal["fits", "tight", "does_not_fit", "unknown"]
"""A verdict by measurement; unknown if the measurement is inconclusive."""

FOLDER = "rehearsals"
RESULT, SUBMITTED = "rehearsal.json", "submitted.json"

_DECIDING = {
    "hardware": ("device", "compute_capability"),
    "cluster": ("nodes", "gpus_per_node", "environment"),
    "optimizer": ("name", "fused", "foreach"),
}
"""Keys of these groups that affect a rank's memory; the capacity is compared when a result is read."""

_NOT_DECIDING = {
    "model": ("name", "source", "weights", "trust_remote_code"),
    "parallel": ("name",),
    "precision": ("name",),
    "train": (
        *("steps", "tokens", "seed", "eval_every", "eval_steps", "log_every", "log_memory_every", "enforce_memory"),
        *("profile", "timeout_s", "hang_factor", "on_hang", "on_spike", "spike_deviations", "rollbacks", "patience"),
        *("micro_batch_size", "global_batch_size", "gradient_accumulation", "sequence_length"),
    ),
}
"""Keys of these groups that do not affect it. The batch enters by its three numbers, however they were typed."""

_WHOLE = ("backend", "zero", "checkpointing", "adapter")


def key(spec: RunSpec) -> str:
    """Twelve hexadecimal digits that identify everything that determines a rank's memory."""
    content: JsonObject = {group: asdict(getattr(spec, group)) for group in _WHOLE}
    for group, names in _DECIDING.items():
        content[group] = {name: getattr(getattr(spec, group), name) for name in names}
    for group, names in _NOT_DECIDING.items():
        content[group] = {name: value for name, value in asdict(getattr(spec, group)).items() if name not in names}
    content["weights"] = spec.model.weights is not None
    content["clips"] = spec.optimizer.clip > 0
    content["batch"] = [spec.micro_batch_size, spec.gradient_accumulation, spec.sequence_length]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=dict).encode()).hexdigest()[:12]


def place(spec: RunSpec) -> Path:
    """The folder of a run's rehearsal, which may not exist."""
    return cache.folder("state") / FOLDER / key(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The result of one rehearsal, as far as a later check or run needs it."""

    time: float  # When it ended, in seconds since the epoch.
    node: str  # The machine.
    device: str  # ``cpu`` or ``cuda``.
    device_name: str  # The GPU's name, or the processor's.
    device_bytes: int | None  # Memory of that device that a process can use; None if unknown.
    rank: int  # The rank that needed the most.
    stage: int  # Its pipeline stage.
    predicted_bytes: int  # Its estimated allocated peak.
    measured_bytes: int | None  # The same measured, or extrapolated; None if it ran out of memory.
    least_bytes: int | None  # The least it needs: allocated bytes plus those outside the allocator.
    used_bytes: int | None  # What it used: reserved bytes plus those outside the allocator.
    ran_out: bool  # True if it ran out of memory.
    # Layers of the shallower models that were built instead of the whole one; empty if that was built.
    depths: tuple[int, ...]
    partial: bool  # True if too little was measured for a verdict.
    versions: Mapping[str, str]  # Versions of the packages involved.
    directory: str  # The folder with the full result.

    @property
    def is_whole(self) -> bool:
        """True if it gives a verdict for a device of any size."""
        return not (self.ran_out or self.partial or self.least_bytes is None or self.used_bytes is None)

    def verdict(self, capacity: int | None) -> Measured:
        """The verdict for a device of this capacity; unknown if the measurement is inconclusive."""
        if self.ran_out:
            smaller = capacity is not None and self.device_bytes is not None and capacity <= self.device_bytes
            return "does_not_fit" if smaller or capacity is None else "unknown"
        if self.partial or self.least_bytes is None or self.used_bytes is None:
            return "unknown"
        if capacity is None or self.used_bytes <= capacity:
            return "fits"
        return "tight" if self.least_bytes <= capacity else "does_not_fit"

    def as_dict(self, spec: RunSpec) -> JsonObject:
        """The part ``rehearsed`` of the document of ``check --json``."""
        return {**asdict(self), "verdict": self.verdict(spec.rank_memory_bytes)}

    def as_text(self, spec: RunSpec) -> str:
        """One sentence: when and where it was rehearsed, measured against predicted bytes, and the verdict."""
        day = time.strftime("%Y-%m-%d", time.localtime(self.time))
        rank = f"rank {self.rank} of {spec.gpus}" + (f", stage {self.stage}" if spec.parallel.pipeline > 1 else "")
        start = f"rehearsed {day} on {self.device_name} ({rank})"
        if self.measured_bytes is None:
            of = "memory" if self.device_bytes is None else gib(self.device_bytes)
            return f"{start}: it ran out of {of}; predicted {gib(self.predicted_bytes)}"
        how = f", from {' and '.join(map(str, self.depths))} layers" if self.depths else ""
        error = self.predicted_bytes / self.measured_bytes - 1 if self.measured_bytes else 0.0
        figures = f"{gib(self.measured_bytes)} measured{how}, {gib(self.predicted_bytes)} predicted ({error:+.1%})"
        return f"{start}: {figures}; by measurement it {_VERDICT_TEXT[self.verdict(spec.rank_memory_bytes)]}"


_VERDICT_TEXT: dict[Measured, str] = {
    "fits": "fits",
    "tight": "fits, but only if the allocator frees cached blocks",
    "does_not_fit": "does not fit",
    "unknown": "is undecided",
}


def read(spec: RunSpec) -> Evidence | None:
    """The stored rehearsal of a run; None if there is none, or if its file has another schema.

    A script has none: a rehearsal runs the engines' own workers, which are not the script's code.
    """
    # A user without rehearsals pays no more than this look-up.
    if spec.script is not None or not (cache.folder("state") / FOLDER).is_dir():
        return None
    folder = place(spec)
    found = _read(folder / RESULT)
    elsewhere = submitted(folder)
    there = None if elsewhere is None else _read(elsewhere / RESULT)
    return there if found is None or (there is not None and there.time > found.time) else found


def submitted(folder: Path) -> Path | None:
    """The run directory of the last submitted rehearsal; None if none was submitted."""
    content = files.read_json(folder / SUBMITTED)
    return None if content is None or not isinstance(content.get("directory"), str) else Path(content["directory"])


def _read(path: Path) -> Evidence | None:
    content = files.read_json(path) or {}
    try:
        return typed.read(Evidence, content.get("evidence"))
    except typed.Unfit:
        return None


def not_rehearsed(spec: RunSpec) -> tuple[ConfigError, ...]:
    """The refusal to rehearse runs with a training loop of their own: the user's scripts and TRL's trainers."""
    rule = "has its own training loop: launch rehearses only runs of its own workers"
    if spec.script is not None:
        return (ConfigError("script", spec.script, f"your script {rule}", ["script=null"]),)
    if not backends.of(spec).profile.rehearsed:
        rule = f"its trainer {rule}; measure it with the first steps of a run"
        return (ConfigError("backend.name", spec.backend.name, rule, ["launch train.steps=2"]),)
    return ()
