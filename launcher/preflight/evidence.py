"""Rehearsals as evidence: a rank of a run measured before the run is started.

``launch rehearse`` keeps its answers in the user's state folder, by what decides a run's memory (:func:`key`): neither
its name nor its length, its data, its learning rate or the place where it is submitted. ``check`` and ``run`` name the
answer to a run of theirs, and ``run --rehearsed`` takes its verdict in place of the estimate's for the device; host
memory and disk stay the estimate's.
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
"""A verdict by measurement; unknown where nothing was measured that could decide."""

FOLDER = "rehearsals"
RESULT, SUBMITTED = "rehearsal.json", "submitted.json"

_DECIDING = {
    "hardware": ("device", "compute_capability"),
    "cluster": ("nodes", "gpus_per_node", "environment"),
    "optimizer": ("name", "fused", "foreach"),
}
"""Of these groups, the keys on which the memory of a rank depends; the capacity is compared when it is read."""

_OTHERS = {
    "model": ("name", "source", "weights", "trust_remote_code"),
    "parallel": ("name",),
    "precision": ("name",),
    "train": (
        *("steps", "tokens", "seed", "eval_every", "eval_steps", "log_every", "log_memory_every", "enforce_memory"),
        *("profile", "timeout_s", "hang_factor", "on_hang", "on_spike", "spike_deviations", "rollbacks", "patience"),
        *("micro_batch_size", "global_batch_size", "gradient_accumulation", "sequence_length"),
    ),
}
"""Of these, the keys on which it does not depend. The batch counts by its three numbers, however they were typed."""

_WHOLE = ("backend", "zero", "checkpointing", "adapter")


def key(spec: RunSpec) -> str:
    """Twelve hexadecimal digits of all that decides what a rank of the run holds."""
    content: JsonObject = {group: asdict(getattr(spec, group)) for group in _WHOLE}
    for group, names in _DECIDING.items():
        content[group] = {name: getattr(getattr(spec, group), name) for name in names}
    for group, names in _OTHERS.items():
        content[group] = {name: value for name, value in asdict(getattr(spec, group)).items() if name not in names}
    content["weights"] = spec.model.weights is not None
    content["clips"] = spec.optimizer.clip > 0
    content["batch"] = [spec.micro_batch_size, spec.gradient_accumulation, spec.sequence_length]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=dict).encode()).hexdigest()[:12]


def place(spec: RunSpec) -> Path:
    """The folder of a run's rehearsal, which need not be there."""
    return cache.folder("state") / FOLDER / key(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The answer of one rehearsal, as far as a later check or run needs it."""

    time: float  # Of day, in seconds.
    node: str  # The machine.
    device: str  # ``cpu`` or ``cuda``.
    device_name: str  # The GPU's name, or the processor's.
    device_bytes: int | None  # That a process can have of that device; None is unknown.
    rank: int  # The rank that needed the most.
    stage: int  # Its pipeline stage.
    predicted_bytes: int  # Its allocated peak by the estimate.
    measured_bytes: int | None  # The same measured, or extrapolated; None where memory ended first.
    least_bytes: int | None  # What it needs at least: allocated, with what lies outside of the allocator.
    used_bytes: int | None  # What it has taken: reserved, with what lies outside.
    ran_out: bool  # True where memory ended first.
    # Layers of the models that were built, where these were less deep; empty of the whole model.
    depths: tuple[int, ...]
    partial: bool  # True where too little was measured for a verdict.
    versions: Mapping[str, str]  # Of the packages that took part.
    directory: str  # Where all of the answer lies.

    @property
    def is_whole(self) -> bool:
        """True if it decides for a device of any size."""
        return not (self.ran_out or self.partial or self.least_bytes is None or self.used_bytes is None)

    def verdict(self, capacity: int | None) -> Measured:
        """The verdict for a device of this capacity; unknown where the measurement cannot decide."""
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
        """One sentence."""
        day = time.strftime("%Y-%m-%d", time.localtime(self.time))
        rank = f"rank {self.rank} of {spec.gpus}" + (f", stage {self.stage}" if spec.parallel.pipeline > 1 else "")
        start = f"rehearsed {day} on {self.device_name} ({rank})"
        if self.measured_bytes is None:
            of = "memory" if self.device_bytes is None else gib(self.device_bytes)
            return f"{start}: it ran out of {of}; {gib(self.predicted_bytes)} were predicted"
        how = f", from {' and '.join(map(str, self.depths))} layers" if self.depths else ""
        error = self.predicted_bytes / self.measured_bytes - 1 if self.measured_bytes else 0.0
        figures = (
            f"{gib(self.measured_bytes)} measured{how} beside {gib(self.predicted_bytes)} predicted ({error:+.1%})"
        )
        return f"{start}: {figures}; measured, it {_SAID[self.verdict(spec.rank_memory_bytes)]}"


_SAID: dict[Measured, str] = {
    "fits": "fits",
    "tight": "fits, but the allocator has to free what it keeps",
    "does_not_fit": "does not fit",
    "unknown": "decides nothing",
}


def read(spec: RunSpec) -> Evidence | None:
    """The kept rehearsal of a run; None where there is none, or one of another version of the file.

    A script has none: the engines' own workers are rehearsed, and whatever it builds, it is other code.
    """
    # Whoever has rehearsed nothing pays for nothing.
    if spec.script is not None or not (cache.folder("state") / FOLDER).is_dir():
        return None
    folder = place(spec)
    found = _read(folder / RESULT)
    elsewhere = submitted(folder)
    there = None if elsewhere is None else _read(elsewhere / RESULT)
    return there if found is None or (there is not None and there.time > found.time) else found


def submitted(folder: Path) -> Path | None:
    """The run directory of the rehearsal that was submitted last; None where none was."""
    content = files.read_json(folder / SUBMITTED)
    return None if content is None or not isinstance(content.get("directory"), str) else Path(content["directory"])


def _read(path: Path) -> Evidence | None:
    content = files.read_json(path) or {}
    try:
        return typed.read(Evidence, content.get("evidence"))
    except typed.Unfit:
        return None


def not_rehearsed(spec: RunSpec) -> tuple[ConfigError, ...]:
    """The refusal to rehearse what trains by itself: a script of the user's own, and TRL's trainers."""
    rule = "trains by itself: only runs of the engines' own workers are rehearsed"
    if spec.script is not None:
        return (ConfigError("script", spec.script, f"a script of your own {rule}", ["script=null"]),)
    if not backends.of(spec).profile.rehearsed:
        rule = f"its trainer {rule}; the first steps of a run measure it"
        return (ConfigError("backend.name", spec.backend.name, rule, ["launch train.steps=2"]),)
    return ()
