"""Time of offloading: weights and gradients over PCIe (or Grace's C2C), and the optimizer's step on the host."""

from collections.abc import Iterator

from launcher.estimate.rank.engine import Execution
from launcher.estimate.rank.formats import moment_bytes
from launcher.estimate.rank.model import RankModel
from launcher.estimate.speed.card import Card
from launcher.estimate.speed.result import StageTime
from launcher.estimate.speed.terms import SpeedTerm, term
from launcher.spec import RunSpec

PCIE_SHARE = 0.8
"""Share of ``hardware.pcie_bandwidth`` that copies of pinned memory reach: between the 0.90 left by packet headers
(PCI Express Base Specification 4.0) and the 0.75 that ZeRO-Infinity reports (arXiv:2104.07857). Not measured."""

HOST_ADAM, HOST_ADAM_UNFUSED = 0.24e-9, 1.4e-9
"""Seconds per parameter on all processors of a node: DeepSpeed's CPU-Adam, and torch's Adam without a fused kernel
(ZeRO-Offload, arXiv:2101.06840, table 4, on a DGX-2 with two Xeon Platinum 8168). Newer hosts are faster."""

HIDDEN = 0.9
"""Share of the passes that can hide copies; the first block's weights and the last one's gradients stay exposed."""

_ACTIVATIONS = (
    "torch/autograd/graph.py, save_on_cpu; megatron/core/pipeline_parallel/fine_grained_activation_offload.py"
)
_SOURCE = "ZeRO-Offload, arXiv:2101.06840; deepspeed/runtime/zero (0.19), CPUOffloadPolicy of FSDP2"
_SWAPPING = "DeepSpeed 0.19.8 runtime/swap_tensor; ZeRO-Infinity, arXiv:2104.07857"


def unknown(spec: RunSpec) -> str | None:
    """The reason why the time of a run's offloading cannot be predicted; None where it can."""
    for part in ("parameters", "optimizer"):
        if getattr(spec.zero, f"offload_{part}") == "nvme" and spec.hardware.nvme_bandwidth is None:
            disks = "the bandwidth of the nodes' NVMe disks is not known"
            return f"{disks}: set hardware.nvme_bandwidth to a node's bytes/s (zero.offload_{part}=nvme)"
    return None


def updates_on_host(rank: RankModel) -> bool:
    """True if the optimizer's step runs on the host: where its states are, or the weights that it updates."""
    zero = rank.spec.zero
    return zero.offload_optimizer != "none" or (zero.offload_parameters != "none" and rank.dtypes.master is None)


def offload(
    rank: RankModel, execution: Execution, card: Card, compute: StageTime, steps: int, waited: float
) -> Iterator[SpeedTerm]:
    """Copies between host and device, and the step on the host, over one step.

    The network and both directions of PCIe work at once, so that the step waits only for the one that exceeds the
    passes most. ``waited`` are the seconds that the step waits for data parallel communication.
    """
    rate, zero = PCIE_SHARE * card.pcie_bandwidth, rank.spec.zero
    if zero.offload_parameters != "none":
        slowest = min(rate, _disk(rank)) if zero.offload_parameters == "nvme" else rate
        weights = _weights_in(rank, execution, slowest, compute, steps, waited)
        waited += weights.exposed_seconds
        yield weights
    if updates_on_host(rank):
        yield _gradients_out(rank, execution, rate, compute, steps, waited)
        yield from _step(rank, execution, rate)
    elif zero.offload_parameters != "none":
        # The device has stepped the rank's shard.
        size, shard = rank.dtypes.size("parameters"), rank.elements.optimizer
        yield _copied("updated weights to the host", size, shard, rate)
    yield from _swapped(rank)


def _disk(rank: RankModel) -> float:
    """Bytes/s of a rank's share of its node's NVMe disks."""
    return float(rank.spec.hardware.nvme_bandwidth or 0) / min(rank.spec.gpus, rank.spec.cluster.gpus_per_node)


def _swapped(rank: RankModel) -> Iterator[SpeedTerm]:
    """States moved to the NVMe disk and back, all exposed, and updated weights.

    Gradients are written and read in fp32, weights and moments read and written, one sub-group after another between
    two steps (``swap_in_optimizer_state``, ``swap_out_optimizer_state``; ZeRO-Infinity, arXiv:2104.07857, section 4.1).
    """
    zero, dtypes, shard = rank.spec.zero, rank.dtypes, rank.elements.optimizer
    if zero.offload_optimizer == "nvme":
        each = 2 * (4 + 4 + moment_bytes(rank.spec.optimizer.name, 1, 0, 4))
        yield term(
            "offload", "gradients, weights and moments to NVMe and back", "k * P / rate", _SWAPPING,
            k=each, P=shard, rate=_disk(rank),
        )  # fmt: skip
    if zero.offload_parameters == "nvme":
        yield _copied("updated weights to NVMe", dtypes.size("parameters"), shard, _disk(rank), _SWAPPING)


def _copied(what: str, size: int, elements: int, rate: float, source: str = _SOURCE) -> SpeedTerm:
    return term("offload", what, "z * P / rate", source, z=size, P=elements, rate=rate)


def activations(rank: RankModel, card: Card, compute: StageTime, steps: int) -> Iterator[SpeedTerm]:
    """Activations to the host and back: torch waits for the copies (``save_on_cpu``), Megatron-core does not."""
    size = float(sum(kind.count * rank.token_bytes(kind.offloaded) for kind in rank.blocks) * rank.tokens)
    if not size:
        return
    rate = PCIE_SHARE * card.pcie_bandwidth
    hidden = (
        HIDDEN * steps * min(compute.forward_seconds, compute.backward_seconds)
        if rank.engine.library == "megatron"
        else 0.0
    )
    yield term(
        "offload", "activations to the host and back", "2 * m * S / rate", _ACTIVATIONS,
        exposed=max(0.0, 2 * (steps * size / rate - hidden)), m=steps, S=size, rate=rate,
    )  # fmt: skip


def saved(rank: RankModel, card: Card) -> Iterator[SpeedTerm]:
    """Copying a rank's part of a checkpoint to the host, averaged over the steps between two checkpoints.

    Writing it is not counted: the storage's bandwidth is not known.
    """
    spec, dtypes = rank.spec, rank.dtypes
    if spec.save_every is None:
        return
    each = dtypes.size("master") + moment_bytes(spec.optimizer.name, 1, 0, dtypes.size("optimizer_states"))
    yield term(
        "checkpoint", "checkpoints copied to the host, not written", "(z * P + k * P_opt) / (rate * steps)",
        "launcher/estimate/speed/offload.py", z=dtypes.size("parameters"), P=rank.elements.parameters, k=each,
        P_opt=rank.elements.optimizer, rate=PCIE_SHARE * card.pcie_bandwidth, steps=spec.save_every,
    )  # fmt: skip


def _weights_in(
    rank: RankModel, execution: Execution, rate: float, compute: StageTime, steps: int, waited: float
) -> SpeedTerm:
    """Copies of the rank's weight shard to the device for each pass of each micro-batch, before it is gathered.

    The copy of the first block stays exposed.
    """
    size, shard = rank.dtypes.size("parameters"), rank.elements.parameters
    seconds = 2 * steps * size * shard / rate
    hidden = HIDDEN * steps * compute.seconds + waited if execution.parameter_overlap else 0.0
    first = seconds / max(1, rank.layers)
    return term(
        "offload", "weights from the host, for both passes", "2 * m * z * P / rate", _SOURCE,
        exposed=max(first, seconds - hidden), m=steps, z=size, P=shard, rate=rate,
    )  # fmt: skip


def _gradients_out(
    rank: RankModel, execution: Execution, rate: float, compute: StageTime, steps: int, waited: float
) -> SpeedTerm:
    """Copies of the gradients of the rank's shard to the host after each micro-batch.

    With a master copy (DeepSpeed) the sum so far returns to the device to be added to, ``2 m - 1`` copies in the
    gradients' format, and the last is written in fp32; without one (FSDP2) the host accumulates.
    """
    shard = rank.elements.optimizer
    if rank.dtypes.master is None:
        each = rank.dtypes.size("accumulate") * steps
    else:
        each = rank.dtypes.size("gradients") * (2 * steps - 1 if steps > 1 else 0) + 4
    seconds = each * shard / rate
    hidden = HIDDEN * steps * compute.backward_seconds + waited if execution.gradient_overlap else 0.0
    return term(
        "offload", "gradients to the host", "k * P / rate", _SOURCE,
        exposed=max(0.0, seconds - hidden), k=each, P=shard, rate=rate,
    )  # fmt: skip


def _step(rank: RankModel, execution: Execution, rate: float) -> Iterator[SpeedTerm]:
    """The optimizer's step on the host, whose processors a node's ranks share, and the copy of the new weights back."""
    spec, shard = rank.spec, rank.elements.optimizer
    ranks = min(spec.gpus, spec.cluster.gpus_per_node)
    each = HOST_ADAM if execution.fused_optimizer else HOST_ADAM_UNFUSED
    yield term(
        "offload", "the optimizer's step on the host", "n * t * P", _SOURCE, n=ranks, t=each, P=shard,
    )  # fmt: skip
    if spec.zero.offload_parameters == "none":
        yield _copied("updated weights to the device", rank.engine.size, shard, rate)
