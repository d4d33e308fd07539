"""The keys of ``save``, ``tracking``, ``run`` and ``sweep``: checkpoints, metrics, names and points of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from launcher.spec.values import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSpec:
    """Checkpoints: every how many steps, how many to keep, where to start from; ``async`` is a Python keyword."""

    every: Count | None
    keep: Count
    load: str | None
    asynchronous: bool
    last: bool
    export: Literal["none", "safetensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSpec:
    """An experiment tracker beside ``metrics.jsonl``; keys travel by the tracker's own environment variables."""

    kind: Literal["none", "tensorboard", "wandb", "mlflow"]
    project: str | None
    uri: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """The run's name and directory, what its lock holds of tracked files, and of its model's file what it may lack.

    Without a name and a directory it is ``runs/<time>-<model>-<preset>-<hash>``.
    """

    name: str | None
    directory: str | None
    record_diff: bool = False  # Runs that were recorded without this and the next are read, too.
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """Settings of ``launch -m``; no part of one run's identity."""

    sampler: Literal["grid", "random", "tpe"]
    budget: Count | None
    parallelism: Count | None
