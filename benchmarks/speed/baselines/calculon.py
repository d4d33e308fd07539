"""Calculon's model of a training step (Isaev et al., SC23), re-implemented."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from benchmarks.speed.baselines import _run
from benchmarks.speed.baselines._calculon_block import Shape, block
from benchmarks.speed.baselines._calculon_system import CARDS, System, system_with
from benchmarks.speed.row import Row
from launcher import backends
from launcher.spec import RunSpec

SOURCE = (
    "re-implemented from the published description of Calculon (calculon-ai/calculon@caa4b11f; Isaev et al., SC23),"
    " without its files: the block's layers by FLOPs and bytes, not overlapped, tensor parallel traffic, recomputation,"
    " interleaved pipeline, data parallel traffic and optimizer, NVLink at 65% with 15% of the processor, network at"
    " 90% with 2%; its table of matrix efficiencies is replaced by the medians of aiconfigurator's measured GEMMs by"
    " FLOPs; as in Calculon no embedding, head or loss, and scores always in memory; left out are its efficiencies of"
    " the vector engine, tensor parallel overlap, offloading and its check of memory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A run's layout as Calculon's execution file.

    Attributes:
        tensor: Tensor parallel ranks.
        pipeline: Stages.
        data: Data parallel ranks.
        interleaving: Chunks of a stage.
        micro_batches: Micro-batches of a step on one data parallel rank.
        blocks: Blocks of the model.
        recompute: ``none``, ``attn_only`` or ``full``.
        optimizer_sharding: True if each data parallel rank steps its share.
        data_overlap: True if gradients are reduced while the last micro-batch's backward pass runs.
    """

    tensor: int
    pipeline: int
    data: int
    interleaving: int
    micro_batches: int
    blocks: int
    recompute: str
    optimizer_sharding: bool
    data_overlap: bool


def predict(row: Row) -> float | None:
    """Tokens per second of one GPU; None for settings that Calculon cannot express."""
    if row.spec is None or not _covers(row.spec):
        return None
    spec, system = row.spec, system_of(row.spec)
    if system is None:
        return None
    engine = (row.backend or backends.of(spec)).execution(spec)
    execution = execution_of(spec, data_overlap=engine is not None and engine.gradient_overlap)
    return _run.speed(spec, step(shape_of(spec), execution, system))


def _covers(spec: RunSpec) -> bool:
    """A dense model, tensor, pipeline and data parallel, its weights not sharded by ZeRO, in 16 bits."""
    model, parallel = spec.model, spec.parallel
    dense = not model.num_experts and not model.kv_lora_rank
    grid = parallel.context == parallel.ulysses == parallel.replicate == 1 and _run.zero_stage(spec) <= 2
    known = spec.checkpointing.mode != "selective" or spec.backend.name == "megatron"
    return dense and grid and known and _run.trains_everything(spec) and spec.precision.compute in {"bf16", "fp16"}


def system_of(spec: RunSpec) -> System | None:
    """The system, its rates as ``conf/hardware`` has them; None for cards that Calculon's files do not describe."""
    hardware, peak = spec.hardware, _run.peak(spec)
    card = CARDS.get(hardware.compute_capability or 0.0)
    memory, link = hardware.memory_bandwidth, hardware.link_bandwidth
    network = spec.cluster.network_bandwidth or hardware.network_bandwidth
    if card is None or peak is None or memory is None or link is None or network is None:
        return None
    domain = hardware.link_gpus or 1
    return system_with(card, peak=peak, memory_bandwidth=memory, link=link, link_gpus=domain, network=network)


def shape_of(spec: RunSpec) -> Shape:
    """One block; grouped heads are asked as one key and value head a query head, and a gated MLP by its weights.

    Calculon knows multi-head and multi-query attention and an MLP of two products: one of three is given as two of half
    as many columns more, which are the same FLOPs.
    """
    model, parallel = spec.model, spec.parallel
    return Shape(
        batch=spec.micro_batch_size,
        length=spec.sequence_length,
        hidden=model.hidden_size,
        heads=model.num_attention_heads,
        head_size=model.head_size,
        feed_forward=model.intermediate_size * (1.5 if model.gated else 1),
        tensor=parallel.tensor,
        sequence_ranks=parallel.tensor if parallel.sequence else 1,
    )


def execution_of(spec: RunSpec, *, data_overlap: bool) -> Execution:
    """The layout, and whether the engine reduces gradients under the backward pass.

    ZeRO-2 moves the bytes of ZeRO-1, which is what Calculon's sharded optimizer is.
    """
    parallel = spec.parallel
    return Execution(
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        data=spec.data_degree,
        interleaving=parallel.virtual_pipeline,
        micro_batches=spec.gradient_accumulation,
        blocks=spec.model.num_hidden_layers,
        recompute={"none": "none", "selective": "attn_only", "full": "full"}[spec.checkpointing.mode],
        optimizer_sharding=_run.zero_stage(spec) >= 1,
        data_overlap=data_overlap,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds of one block and micro-batch: the passes with their tensor parallel traffic, and sending its output."""

    forward: float
    backward: float
    send: float


def step(shape: Shape, run: Execution, system: System) -> float:
    """``m x`` the blocks of a stage, what is sent between stages, the bubble, data parallel traffic, the optimizer.

    The bubble is ``p - 1`` chunks of forward and backward, a chunk the blocks of a stage over the interleaving.
    """
    block_time = block_seconds(shape, run, system)
    blocks = ceil(run.blocks / run.pipeline)
    sent = 2 * block_time.send if run.pipeline > 1 else 0.0
    chunk = blocks / run.interleaving * (block_time.forward + block_time.backward) + sent
    slots = run.micro_batches * run.interleaving + run.pipeline - 1
    return slots * chunk + blocks * (_data(shape, run, system, block_time.backward) + _optimizer(shape, run, system))


def block_seconds(shape: Shape, run: Execution, system: System) -> BlockSeconds:
    """One block; what is recomputed is part of the backward pass, with its tensor parallel traffic."""
    layers = block(shape)
    forward = sum(layer.forward_seconds(system) for layer in layers)
    again = sum(layer.forward_seconds(system) for layer in layers if layer.core or run.recompute == "full")
    traffic, gathered = _tensor(shape, system)
    backward = sum(layer.backward_seconds(system) for layer in layers) + traffic + gathered
    if run.recompute == "full":
        backward += traffic
    return BlockSeconds(
        forward=forward + traffic,
        backward=backward + (again if run.recompute != "none" else 0.0),
        send=system.network(run.tensor * run.pipeline).seconds("p2p", 2 * shape.split, 2),
    )


def _tensor(shape: Shape, system: System) -> tuple[float, float]:
    """Seconds of one pass, and of the gathers that the backward pass does again with sequence parallelism.

    A pass has two all-reduces, or two pairs of reduce-scatter and all-gather (``rs_ag``, ``seq_par_ag_redo``).
    """
    network, size, ranks = system.network(shape.tensor), 2 * shape.whole, shape.tensor
    if shape.sequence_ranks == 1:
        return 2 * network.seconds("all_reduce", size, ranks), 0.0
    scattered, gathered = (network.seconds(name, size, ranks) for name in ("reduce_scatter", "all_gather"))
    return 2 * (scattered + gathered), 2 * gathered


def _data(shape: Shape, run: Execution, system: System, backward: float) -> float:
    """Exposed seconds a block of reducing its 16-bit gradients and, with a sharded optimizer, gathering its weights.

    Overlapped, what exceeds a block's backward pass is exposed, and the pass itself loses the processor's share that
    the network takes while they run together.
    """
    ranks, size = run.data, 2 * weights(shape)
    network = system.network(run.tensor * run.pipeline * run.data)
    if run.optimizer_sharding:
        seconds = network.seconds("reduce_scatter", size, ranks) + network.seconds("all_gather", size, ranks)
    else:
        seconds = network.seconds("all_reduce", size, ranks)
    if not run.data_overlap:
        return seconds
    together = min(seconds, backward)
    return seconds - together + network.processor_usage * together


def _optimizer(shape: Shape, run: Execution, system: System) -> float:
    """Adam on one block: 11 FLOPs a weight, and its 28 bytes of gradient, weight, master and moments."""
    stepped = weights(shape) / (run.data if run.optimizer_sharding else 1)
    return system.vector_seconds(11 * stepped, 28 * stepped)


def weights(shape: Shape) -> float:
    """Weights of one block on one processor, norms and biases aside."""
    attention = 4 * shape.hidden * shape.heads * shape.head_size
    return (attention + 2 * shape.hidden * shape.feed_forward) / shape.tensor
