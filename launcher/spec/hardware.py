"""The keys of ``hardware`` and ``cluster``: one device and its node, and the place where the job runs."""

from collections.abc import Mapping
from typing import Any, Literal

from launcher.base.frozen import dataclass
from launcher.spec.values import Count, Device, Hashed, Natural, NonNegative, Positive

AMPERE, HOPPER, BLACKWELL = 8.0, 9.0, 10.0
"""Compute capabilities at which engines switch to other kernels, workspaces and arguments."""

_KEPT, _OF = 1103, 97871
"""MiB that driver and firmware reserve on a GH200 (``conf/hardware/gh200.yaml``), the largest share of those measured.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec(Hashed):
    """One device and its node. Sizes are in bytes, bandwidths in bytes/s in one direction, ``flops_*`` in dense FLOP/s.

    ``None`` is unknown, and no rule refuses an unknown value. ``link_bandwidth`` is from one GPU to the others in its
    NVLink or xGMI domain of ``link_gpus``; ``network_bandwidth`` is one GPU's share of the node's network in the
    machine that usually holds the card.
    """

    name: str
    title: str
    device: Device
    memory_bytes: Count | None
    host_memory_bytes: Count | None
    disk_bytes: Natural | None
    # Records without the following keys are read, too.
    reserved_bytes: Natural | None = None
    compute_capability: Positive | None = None
    flops_fp32: Positive | None = None
    flops_fp16: Positive | None = None
    flops_bf16: Positive | None = None
    flops_fp8: Positive | None = None
    flops_fp4: Positive | None = None
    memory_bandwidth: Positive | None = None
    cores: Count | None = None
    card: str | None = None
    link_bandwidth: Positive | None = None
    link_gpus: Count | None = None
    network_bandwidth: Positive | None = None
    pcie_bandwidth: Positive | None = None
    nvme_bandwidth: Positive | None = None
    dtypes: tuple[str, ...]
    source: str

    @property
    def usable_bytes(self) -> int | None:
        """Bytes of one device that torch can use; None is unknown.

        Driver and firmware reserve the rest of what NVML reports as the total. For a GPU that has not been measured
        this is a conservative assumption: the largest share of any GPU that has.
        """
        if self.memory_bytes is None:
            return None
        assumed = -(-self.memory_bytes * _KEPT // _OF)
        return max(0, self.memory_bytes - (assumed if self.reserved_bytes is None else self.reserved_bytes))

    @property
    def effective_capability(self) -> float:
        """The compute capability; if unknown, the first with the GPU's formats, and the backend reports that.

        fp4 came with 10.0, fp8 with 8.9, bf16 with 8.0 and fp16 with 7.0 (CUDA C++ Programming Guide, "Compute
        Capabilities"). What needs less than Blackwell also runs on it, so an unknown GPU with fp8 counts as Hopper.
        """
        if self.compute_capability is not None:
            return self.compute_capability
        since = (("fp4", BLACKWELL), ("fp8", HOPPER), ("bf16", AMPERE))
        return next((first for name, first in since if name in self.dtypes), 7.0)


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
"""Keys newer than many recorded runs: while unset they are left out of the hash, so that it does not change."""
