"""Values that composition leaves open: this machine's hardware, the ranks per node, the precision, and the length."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.machine import Machine, another_disk, disk_free
from launcher.base.package import shipped
from launcher.base.units import GIB
from launcher.config import safe_yaml
from launcher.spec.training import DEFAULT_STEPS

CPU_RANKS = 2  # Ranks of a local run without a GPU (docs/contract/commands.md).


ON_A_CPU = {"name": "fp32", "compute": "fp32"}
"""The default precision of CPU ranks, ``conf/precision/fp32.yaml``. The demo's model in bf16 took 9 times as long as in
fp32 with only AVX2 instructions, equally long with AVX-512, and two thirds of the time with AMX (a Xeon with all three,
oneDNN limited to each by ONEDNN_MAX_CPU_ISA)."""

SPEED = (
    *("flops_fp32", "flops_fp16", "flops_bf16", "flops_fp8", "flops_fp4", "memory_bandwidth", "cores"),
    *("link_bandwidth", "link_gpus", "network_bandwidth", "pcie_bandwidth"),
)
"""Keys of ``hardware`` that no driver reports: a GPU of this machine gets those of the card with its name."""

THIS_MACHINE = " (this machine)"  # Suffix of the product's name in the title of a GPU that NVML named.
SLURM_GPUS = 8  # Default number of GPUs of a Slurm node (docs/contract/commands.md).
_LENGTHS = ("train.steps", "train.tokens", "train.epochs")


def with_machine(config: JsonObject, machine: Machine, typed: Collection[str] = ()) -> JsonObject:
    """Return the configuration with this machine's facts for ``hardware=auto``, unset ranks and open precision.

    A memory size among the keys ``typed`` by the user or a recipe is entirely for the rank: none of it is reserved. A
    CPU rank without one, typed or in the option, gets its share of the host. ``hardware.name`` stays ``auto``.
    """
    hardware, cluster = dict(config["hardware"]), dict(config["cluster"])
    if hardware["name"] == "auto":
        disk = _disk(config.get("run", {}).get("directory"), machine)
        hardware = _this_machine(hardware, replace(machine, disk_free_bytes=disk), elsewhere=cluster["kind"] == "slurm")
    if "hardware.memory_bytes" in typed:
        hardware["reserved_bytes"] = hardware["reserved_bytes"] if "hardware.reserved_bytes" in typed else 0
    elif hardware["device"] == "cpu":
        # A card's memory is not that of the CPU that the user chose instead with hardware.device=cpu.
        is_card = "hardware.device" in typed or hardware["memory_bytes"] is None
        hardware |= {"memory_bytes": None} if is_card else {"reserved_bytes": hardware["reserved_bytes"] or 0}
    if cluster["gpus_per_node"] is None:
        local = len(machine.gpus) if hardware["device"] == "cuda" else 0
        cluster["gpus_per_node"] = SLURM_GPUS if cluster["kind"] == "slurm" else local or CPU_RANKS
    precision = dict(config["precision"]) | (ON_A_CPU if leaves_precision(hardware["device"], typed) else {})
    return {**config, "hardware": hardware, "cluster": cluster, "precision": precision}


def leaves_precision(device: object, typed: Collection[str]) -> bool:
    """True if the ranks are on CPUs and neither the user nor a recipe set a key of the precision."""
    return device == "cpu" and not any(key.partition(".")[0] == "precision" for key in typed)


def _disk(directory: object, machine: Machine) -> int | None:
    """Free bytes where checkpoints are written: the run's folder may be on another disk than the working folder."""
    folder = Path(directory) if isinstance(directory, str) else Path("runs")
    return disk_free(folder.absolute()) if another_disk(folder.absolute()) else machine.disk_free_bytes


def _this_machine(hardware: JsonObject, machine: Machine, *, elsewhere: bool) -> JsonObject:
    device = hardware["device"] or ("cuda" if machine.gpus or elsewhere else "cpu")
    host = {"host_memory_bytes": machine.host_memory_bytes, "disk_bytes": machine.disk_free_bytes}
    found = {"device": device, **host, **(_gpu(machine) if device == "cuda" else _cpu(machine))}
    as_set = {key: value for key, value in hardware.items() if key in found and value not in (None, [])}
    return {**hardware, **found, **as_set, "title": found["title"], "source": found["source"]}


def _gpu(machine: Machine) -> JsonObject:
    if not machine.gpus:
        title = "a GPU (this machine has none)"
        return {"dtypes": ["fp32", "fp16", "bf16"], "title": title, "source": "hardware.device"}
    names = " and ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
    capability = min(gpu.compute_capability for gpu in machine.gpus)
    smallest = min(machine.gpus, key=lambda gpu: gpu.memory_bytes)
    return {
        "memory_bytes": smallest.memory_bytes,
        "reserved_bytes": smallest.reserved_bytes,
        "compute_capability": capability,
        "dtypes": list(dtypes(capability)),
        "title": f"{names}{THIS_MACHINE}",
        "source": "NVML on this machine",
        **_speed(names),
    }


def _speed(name: str) -> JsonObject:
    option = option_of(name)
    card = None if option is None else safe_yaml.load(shipped("conf") / "hardware" / f"{option}.yaml")
    figures = {key: card[key] for key in SPEED if key in card} if isinstance(card, dict) else {}
    return {**figures, "card": option} if figures else {}


@cache
def option_of(name: str) -> str | None:
    """Return the option of ``hardware`` for a GPU of this name; None if the launcher has no such card.

    NVML's product name is the title of the card; older drivers prefix it with other vendor names.
    """
    product = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    titles = {f"title: {vendor}{product}" for vendor in ("NVIDIA ", "Tesla ", "")}
    for path in sorted((shipped("conf") / "hardware").glob("*.yaml")):
        if not titles.isdisjoint(files.read_text(path).splitlines()):
            return path.stem
    return None


def _cpu(machine: Machine) -> JsonObject:
    return {
        "dtypes": ["fp32", "fp16", "bf16", "fp8"],
        "title": f"this machine's CPU, {machine.host_memory_bytes / GIB:.1f} GiB",
        "source": "MemTotal and the cgroup's limit on this machine",
    }


def dtypes(compute_capability: float) -> tuple[str, ...]:
    """Return the number formats in which a CUDA device computes.

    fp16 arithmetic needs 5.3 and bf16 8.0 (CUDA C++ programming guide, table of arithmetic throughput); fp8 matrix
    units came with Ada, 8.9, and Hopper, 9.0, fp4 with Blackwell, 10.0 (Transformer Engine's own requirements).
    """
    since = {"fp32": 0.0, "fp16": 5.3, "bf16": 8.0, "fp8": 8.9, "fp4": 10.0}
    return tuple(name for name, first in since.items() if compute_capability >= first)


def displaced_lengths(words: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the length keys that a typed length removes from weaker sources, a recipe or the recorded run."""
    typed = any(key in _LENGTHS and value != "null" for key, value in words)
    return frozenset(_LENGTHS) if typed else frozenset()


def with_length(train: JsonObject, typed: Collection[str]) -> JsonObject:
    """Return ``train`` with only the typed length, or with the default if there is none.

    Keys of the command line and its recipe override files, keys of a resume override a recorded run. If two lengths
    are typed, both stay, which is an error (``launcher.rules.batch``); likewise for evaluations by steps or by epoch.
    """
    said = [key for key in _LENGTHS if train.get(key.partition(".")[2]) is not None]
    if not said:
        return {**train, "steps": DEFAULT_STEPS}
    return {**train, **_without_others(said, typed)}


def one_of(group: JsonObject, keys: Sequence[str], typed: Collection[str]) -> JsonObject:
    """Return a group in which, of alternative keys, only the typed one is set."""
    said = [key for key in keys if group.get(key.partition(".")[2]) is not None]
    return {**group, **_without_others(said, typed)}


def _without_others(said: Sequence[str], typed: Collection[str]) -> JsonObject:
    chosen = [key for key in said if key in typed]
    return {key.partition(".")[2]: None for key in said if key not in chosen} if len(chosen) == 1 else {}
