"""The group ``cluster``: this machine, or a Slurm site's profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launcher.spec.values import Count, Natural, NonNegative, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The place where the job runs: this machine or a Slurm cluster."""

    kind: Literal["local", "slurm"]
    nodes: Count
    gpus_per_node: Count
    cpus_per_node: Count | None
    time_limit_min: Count | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    gpu_request: Literal["gpus_per_node", "gres", "none"]
    gpu_type: str | None
    memory: str | None
    memory_request: Literal["mem", "mem_per_gpu", "mem_per_cpu"]
    exclusive: bool
    save_margin_s: Count
    requeues: Natural
    probe: bool | None = None
    environment: Mapping[str, str]
    pass_environment: tuple[str, ...]
    modules: tuple[str, ...]
    setup: tuple[str, ...]
    python: str | None
    container: Literal["none", "pyxis", "apptainer"]
    container_image: str | None
    container_mounts: tuple[str, ...]
    interface: str | None
    network_bandwidth: Positive | None = None
    network_latency: Positive | None = None
    storage_bandwidth: Positive | None = None
    price_per_gpu_hour: NonNegative | None = None
    measurements: str | None = None
    shared_folder: str | None
    extra: Mapping[str, Any]
    nodelist: str | None = None
    dependency: str | None = None
    licenses: str | None = None
    mail: str | None = None


UNHASHED_WHEN_UNSET = ("nodelist", "dependency", "licenses", "mail")
"""Keys that are younger than many recorded runs: unset they do not count in a run's hash, which so stays as it was."""
