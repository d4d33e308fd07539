"""The device of a rehearsal: this machine's first GPU, or its processor, which can also stand in for a GPU.

As a stand-in, the processor measures the allocated memory of the same model, sharding and schedule with other kernels,
and compares it with the estimate for those. It measures no reserved memory, context, flash attention or speed, so it
gives no verdict.
"""

import os
from dataclasses import replace

from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.preflight import findings
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at
from launcher.spec.hardware import HardwareSpec
from launcher.spec.training import ALONE, SYNTHETIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that a rehearsal runs on."""

    kind: str  # ``cpu`` or ``cuda``.
    name: str  # The name shown to users.
    memory_bytes: int  # Memory of it that a process can use.
    host_memory_bytes: int  # Memory of the machine.
    cpus: int  # Processors that may be used.

    def stands_in(self, spec: RunSpec) -> bool:
        """True if it is a processor that stands in for the run's GPU."""
        return self.kind == "cpu" and spec.hardware.device == "cuda"


def here() -> Device:
    """The first GPU visible to CUDA on this machine, else its processor."""
    facts = machine.facts()
    host, cpus = facts.host_memory_bytes, facts.cpus
    if facts.gpus:
        gpu = facts.gpus[0]
        memory = gpu.memory_bytes - (gpu.reserved_bytes or 0)
        return Device(kind="cuda", name=gpu.name, memory_bytes=memory, host_memory_bytes=host, cpus=cpus)
    in_use = machine.memory_in_use()
    return Device(
        kind="cpu",
        name=machine.processor() or os.uname().machine,
        memory_bytes=host if in_use is None else min(host, in_use[1] - in_use[0]),
        host_memory_bytes=host,
        cpus=cpus,
    )


def fitted(spec: RunSpec, device: Device) -> RunSpec:
    """The run as it is rehearsed on a device: without its own data, names and checkpoints.

    On a GPU the run keeps the requested hardware, whose estimate is compared. A GPU run on the processor becomes one of
    as many CPU ranks, with attention that a processor supports and only as many micro-batches as affect memory, since
    its speed is not measured. Raises ConfigErrors if a CPU run would be rehearsed on a GPU, or if the processor does
    not support the run.
    """
    if device.kind == "cuda" and spec.hardware.device == "cpu":
        rule = "this machine has a GPU, but the run uses CPU ranks: hide the GPU from the rehearsal"
        raise ConfigErrors([ConfigError("hardware.device", "cpu", rule, ["CUDA_VISIBLE_DEVICES="])])
    alone = changed_at(spec, {**SYNTHETIC, **ALONE, "data.preview": 0, "data.template": None, "save.load": None})
    return _on_cpu(alone, device) if device.stands_in(spec) else alone


def _on_cpu(spec: RunSpec, device: Device) -> RunSpec:
    hardware = HardwareSpec(
        name="cpu",
        title="CPU",
        device="cpu",
        memory_bytes=None,
        host_memory_bytes=device.host_memory_bytes,
        disk_bytes=None,
        dtypes=("fp32", "bf16"),
        source="conf/hardware/cpu.yaml",
    )
    attention = "sdpa" if spec.model.attention == "flash" else spec.model.attention
    optimizer = replace(spec.optimizer, fused=None)
    found = replace(spec, hardware=hardware, model=replace(spec.model, attention=attention), optimizer=optimizer)
    found = changed_at(found, {"train.allocator": "default"})
    if errors := findings.errors(found):
        rule = f"the run is for {spec.hardware.title}, and this machine's processor cannot stand in for it"
        reasons = "; ".join(f"{error.where}: {error.rule}" for error in errors)
        ways = [way for error in errors for way in error.way_out][:4]
        raise ConfigErrors([ConfigError("hardware.name", spec.hardware.name, f"{rule}: {reasons}", ways)])
    return found


def environment(spec: RunSpec, device: Device) -> dict[str, str]:
    """Extra environment variables of the rehearsed rank: a processor that stands in for a GPU may use all cores."""
    return {"OMP_NUM_THREADS": str(device.cpus)} if device.stands_in(spec) else {}
