"""Communication and memory passes of the model states: gathered parameters, reduced gradients, the optimizer's step.

What data parallel ranks exchange follows from what they shard (arXiv:1910.02054, section 7).
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from launcher.estimate.rank.engine import Execution
from launcher.estimate.rank.formats import moment_bytes
from launcher.estimate.rank.model import RankModel
from launcher.estimate.speed import collectives
from launcher.estimate.speed.card import MEMORY_SHARE, Card
from launcher.estimate.speed.collectives import Group, group_of
from launcher.estimate.speed.network import Network
from launcher.estimate.speed.result import StageTime
from launcher.estimate.speed.terms import SpeedTerm, StepPart, term
from launcher.spec import ParallelSpec

SLOWED = 1.13
"""Measured slowdown of a kernel and a collective that overlap, each relative to its time alone
(PKU-DAIR/Hetu-Galvatron@cea12ffb, Apache-2.0, ``overlap_coefficient.json``). A collective takes 16 to 24 of 132
multiprocessors, 12 to 18% (NVIDIA-NeMo/Megatron-Bridge@067f987d, performance guide; deepseek-ai/DeepEP@dd758caf)."""

_USABLE = 0.75
"""Share of the last backward pass that can hide the gradient reduction, which starts after its first bucket and ends
after its last."""

_HIDING = 0.9  # Share of a block's compute that can hide the next block's all-gather.
_SPREAD = 0.02  # Standard deviation of the speed of GPUs of one kind.
_ZERO = "arXiv:1910.02054, section 7; launcher/estimate/speed/collectives.py"


def data_parallel(
    rank: RankModel, execution: Execution, network: Network, compute: StageTime, steps: int
) -> Iterator[SpeedTerm]:
    """Communication among the ranks that share model states, over one step."""
    parts = list(_parts(rank, network))
    times = steps if execution.reduces_each else 1
    if rank.view.states.parameters < 1:
        yield from _gathered_each_pass(rank, execution, network, parts, compute, steps)
        yield from _gathered_beside(rank, execution, network, parts, compute, steps)
        return
    sharded = rank.view.states.optimizer < 1
    reduced = [one for part in parts for one in _reductions(part, rank, execution, network, sharded=sharded)]
    longer = chunk_by_chunk(rank.spec.parallel, steps)
    window = _USABLE * longer * compute.backward_seconds if execution.gradient_overlap else 0.0
    yield from _hidden("gradients reduced", reduced, times, window)
    if sharded:
        gathered = [
            _Traffic(part.words, part.group, size, _in_buckets("all_gather", size, part.group, network, execution))
            for part in parts
            if (size := part.trained * rank.engine.size) and part.group.ranks > 1
        ]
        window = _USABLE * longer * compute.forward_seconds if execution.parameter_overlap else 0.0
        yield from _hidden("parameters gathered", gathered, 1, window)


def chunk_by_chunk(parallel: ParallelSpec, steps: int) -> float:
    """Micro-batch passes that can hide the communication of a stage's model chunks, ``(v - 1) / v * p + 1 / v``.

    Interleaved, ``p`` micro-batches pass one chunk before any passes the next, so that all but one of the ``v`` chunks
    communicate while these pass the others (``forward_backward_pipelining_with_interleaving`` of Megatron-core).
    """
    chunks = parallel.virtual_pipeline
    return ((chunks - 1) * min(steps, parallel.pipeline) + 1) / chunks


class _Part(NamedTuple):
    """Parameters of a rank that the same group shards: the dense ones, or the routed experts."""

    words: str  # The ranks, in words.
    elements: float  # Parameters before sharding.
    trained: float  # Those of them that receive gradients.
    group: Group  # The ranks that share their states.
    copies: Group  # The ranks that hold the same shard (HSDP).


class _Traffic(NamedTuple):
    """One collective of a step, all its buckets together: the ranks in words, their group, bytes and seconds."""

    words: str
    group: Group
    size: float
    seconds: float


def _parts(rank: RankModel, network: Network) -> Iterator[_Part]:
    """The dense parameters, and the routed experts, of which fewer ranks hold copies."""
    parallel, elements = rank.spec.parallel, rank.elements
    share = elements.trained / max(1, elements.whole)
    shards, copies = rank.spec.shard_degree, parallel.replicate
    if elements.dense:
        group = group_of(shards, parallel.tensor, network)
        replicas = group_of(copies, parallel.tensor * shards, network)
        yield _Part("data parallel", elements.dense, elements.dense * share, group, replicas)
    if elements.expert:
        inside = parallel.expert * (parallel.expert_tensor or parallel.tensor)
        ranks = max(1, rank.spec.gpus // (parallel.pipeline * inside) // copies)
        group = group_of(ranks, inside, network)
        replicas = group_of(copies, inside * ranks, network)
        yield _Part("data parallel, experts", elements.expert, elements.expert * share, group, replicas)


def _reductions(
    part: _Part, rank: RankModel, execution: Execution, network: Network, *, sharded: bool
) -> Iterator[_Traffic]:
    """Gradients averaged over the ranks that shard a part, then each rank's shard over the replicas."""
    size = part.trained * rank.dtypes.size("reduce")
    if execution.exchanged_size is not None and part.group.domains > 1:
        yield from _exchanges(part, execution.exchanged_size, network)
        return
    kind: collectives.Kind = "reduce_scatter" if sharded and not execution.reduces_whole else "all_reduce"
    if part.group.ranks > 1 and size:
        yield _Traffic(part.words, part.group, size, _in_buckets(kind, size, part.group, network, execution))
    if part.copies.ranks > 1 and size:
        kept = size / part.group.ranks if sharded else size
        seconds = _in_buckets("all_reduce", kept, part.copies, network, execution)
        yield _Traffic(f"{part.words}, replicas", part.copies, kept, seconds)


def _exchanges(part: _Part, each: float, network: Network) -> Iterator[_Traffic]:
    """Quantized gradients (qgZ): all to all within each node, then each rank's reduced share between the nodes.

    ``all_to_all_quant_reduce``, ``runtime/comm/coalesced_collectives.py``; the kernels in between are not counted.
    """
    inside = Group(part.group.inside, part.group.inside)
    between = Group(part.group.domains, 1)
    for words, group, size in (
        ("in the node", inside, part.trained * each),
        ("between nodes", between, part.trained * each / part.group.inside),
    ):
        if group.ranks > 1:
            seconds = collectives.seconds("all_to_all", size, group, network)
            yield _Traffic(f"{part.words}, {words}", group, size, seconds)


def _hidden(what: str, traffic: Sequence[_Traffic], times: int, window: float) -> Iterator[SpeedTerm]:
    """Terms of collectives that run one after the other, hidden as far as a window of compute allows."""
    total = sum(one.seconds for one in traffic)
    share = exposed_seconds(total, window) / total if total else 0.0
    for one in traffic:
        yield term(
            "data", what, "n * k / reached", _ZERO, exposed=times * one.seconds * share, moved=times * one.size,
            group=one.words, n=times, k=one.size, reached=one.size / one.seconds,
        )  # fmt: skip


def _in_buckets(kind: collectives.Kind, size: float, group: Group, network: Network, execution: Execution) -> float:
    count = max(1.0, size / execution.bucket_bytes)
    return count * collectives.seconds(kind, size / count, group, network)


def _gathered_each_pass(
    rank: RankModel, execution: Execution, network: Network, parts: Sequence[_Part], compute: StageTime, steps: int
) -> Iterator[SpeedTerm]:
    """Parameters gathered block by block for both passes of every micro-batch, and gradients scattered after them.

    For backward ZeRO++ gathers them from a copy within ``zero.hpz`` ranks (arXiv:2306.10209), FSDP2 from the shards
    that ``backend.reshard_after_forward`` ranks kept. 4-bit weights are gathered as they are, fp8 weights as half the
    bytes; quantization kernels are not counted.
    """
    layers, times = max(1, rank.layers), steps if execution.reduces_each else 1
    gathered = rank.compute_parameters(rank.root) + rank.gathered_blocks(rank.all_blocks)
    packed = float(gathered) / max(1, rank.elements.whole)
    inner = max(rank.spec.zero.hpz, rank.spec.backend.kept_over)
    near = group_of(inner, rank.spec.parallel.tensor, network) if inner > 1 else None
    gather = again = scatter = moved = 0.0
    for part in parts:
        size = part.elements / layers * (execution.gathered_size or rank.engine.size * packed)
        gather += collectives.seconds("all_gather", size, part.group, network)
        again += collectives.seconds("all_gather", size, near or part.group, network) * execution.regathers
        share = part._replace(trained=part.trained / layers)
        reduced = list(_reductions(share, rank, execution, network, sharded=True))
        scatter += sum(one.seconds for one in reduced)
        moved += (steps * (1 + execution.regathers) * size * (part.group.ranks > 1)) + times * sum(
            r.size for r in reduced
        )
    if not gather + scatter:
        return
    ahead, behind, last = layers * gather, layers * again, layers * scatter
    exposed = steps * (ahead + behind) + times * last
    if execution.parameter_overlap:
        exposed = steps * max(gather, exposed_seconds(ahead, _HIDING * compute.forward_seconds))
        exposed += times * max(again + scatter, exposed_seconds(behind + last, _HIDING * compute.backward_seconds))
        exposed += (steps - times) * max(again, exposed_seconds(behind, _HIDING * compute.backward_seconds))
    yield term(
        "data", "parameters gathered, gradients scattered", "L * (m * (t_gather + t_again) + n * t_scatter)", _ZERO,
        exposed=exposed, moved=layers * moved, group="data parallel",
        m=steps, L=layers, n=times, t_gather=gather, t_again=again, t_scatter=scatter,
    )  # fmt: skip


def _gathered_beside(
    rank: RankModel, execution: Execution, network: Network, parts: Sequence[_Part], compute: StageTime, steps: int
) -> Iterator[SpeedTerm]:
    """Parameters gathered for forward passes without gradients, of the model and of its reference model.

    FSDP2 gathers a reference model whole, as one group, before it computes (``prepare_fsdp``, trl/models/utils.py).
    """
    own, others = rank.spec.task.other_passes
    if not own + others:
        return
    size = {part: float(part.elements) * rank.engine.size for part in parts}
    whole = sum(collectives.seconds("all_gather", size[part], part.group, network) for part in parts)
    one_group = rank.spec.parallel.shard and rank.spec.adapter.name == "none"
    hidden = exposed_seconds(whole, _HIDING * compute.forward_seconds) if execution.parameter_overlap else whole
    exposed = steps * (own * hidden + others * (whole if one_group else hidden))
    moved = steps * (own + others) * sum(size[part] for part in parts if part.group.ranks > 1)
    yield term(
        "data", "parameters gathered for passes without gradients", "n * m * t_gather", _ZERO,
        exposed=exposed, moved=moved, group="data parallel", n=own + others, m=steps, t_gather=whole,
    )  # fmt: skip


def waiting(gpus: int, seconds: float) -> SpeedTerm:
    """Each step's wait for the slowest GPU: Blom's largest of normal deviations of 2% (arXiv:2510.15596 has 14%)."""
    slowest = _slowest(gpus) if gpus > 1 else 0.0
    return term("waiting", "the slowest GPU", "t_step * slowest", "arXiv:2510.15596", t_step=seconds, slowest=slowest)


@cache
def _slowest(gpus: int) -> float:
    from statistics import NormalDist  # Late, because it takes a while to import.

    return _SPREAD * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def optimizer(rank: RankModel, execution: Execution, card: Card) -> Iterator[SpeedTerm]:
    """Memory passes of the optimizer's step over this rank's shard.

    Master weights, both moments and the gradient are read; the first three and the parameters are written. The gradient
    norm reads the gradients once more, and they are zeroed. Torch's foreach AdamW has eight operations in place of one
    kernel (``_multi_tensor_adamw``). ZeRO takes the norm of an fp64 copy, flattens, casts and scales the gradients, and
    copies the new weights (``step`` of ``stage_1_and_2.py`` and ``stage3.py``, ``get_norm_dtype``).
    """
    whole = rank.spec.optimizer.name == "adafactor"
    stepped = rank.elements.trained if whole else rank.elements.optimizer
    sizes = rank.dtypes
    moments = moment_bytes(rank.spec.optimizer.name, 1, 0, sizes.size("optimizer_states"))
    master = sizes.size("master") or sizes.size("parameters")
    gradient = sizes.size("accumulate")
    parameters = rank.engine.size if sizes.master else 0
    once = 2 * moments + 2 * master + 3 * gradient + parameters
    passes = 1 if execution.fused_optimizer and not whole else 3
    if passes > 1 and rank.spec.optimizer.name == "adamw":
        once, passes = once + 2 * master + 5 * moments + gradient, 1
    if execution.copies in ("zero_1_2", "zero_3"):
        scaled = 2 * 4 if rank.spec.optimizer.clip or sizes.compute == "fp16" else 0
        once = 2 * moments + 2 * master + 4 + (gradient + 16) + 2 * gradient + (gradient + 4) + scaled + 4 + parameters
    words = "memory passes of the optimizer"
    yield _moved(words, card, "torch.optim, fused kernels", passes, once, stepped, part="optimizer")


def accumulation(rank: RankModel, execution: Execution, card: Card, steps: int) -> Iterator[SpeedTerm]:
    """Memory passes that add a micro-batch's gradients to the step's sum: they are read, the sum is read and written.

    Gradients reduced after each micro-batch are added to the rank's shard only; torch's own sum starts as the first.
    """
    wide, narrow = rank.dtypes.size("accumulate"), rank.dtypes.size("gradients")
    each = 2 * wide if execution.fused_accumulation else 2 * wide + 2 * narrow
    times = steps if steps > 1 or rank.engine.gradients_stay else 0
    if rank.engine.library == "transformers" and (execution.copies == "groups" or not execution.reduces_each):
        each, times = 2 * wide + narrow, times - (not rank.engine.gradients_stay and steps > 1)
    if not times:
        return
    added = rank.elements.gradients if execution.reduces_each else rank.elements.trained
    yield _moved("gradients accumulated", card, "torch AccumulateGrad", times, each, added)


def copies(rank: RankModel, execution: Execution, card: Card, compute: StageTime, steps: int) -> Iterator[SpeedTerm]:
    """Memory passes of the copies that the engine makes around its collectives."""
    if execution.copies == "groups":
        return _of_fsdp(rank, execution, card, compute, steps)
    return _of_zero(rank, execution, card, steps) if execution.copies != "none" else iter(())


_FSDP = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"
_ZERO_COPIES = "deepspeed/runtime/zero (0.19)"


def _of_fsdp(rank: RankModel, execution: Execution, card: Card, compute: StageTime, steps: int) -> Iterator[SpeedTerm]:
    """FSDP2's copies: shards cast and concatenated for an all-gather, its output copied out, gradients concatenated.

    A block's shards are copied while the previous block computes; the root is gathered once per micro-batch and nothing
    hides it. With a single rank, a copy beside the passes replaces the reduce-scatter (``foreach_reduce``).
    """
    held, sent = rank.dtypes.size("parameters"), execution.gathered_size or rank.engine.size
    blocks, root = float(rank.gathered_blocks(rank.all_blocks)), float(rank.compute_parameters(rank.root))
    passes = steps * (1 + execution.regathers)
    whole = blocks + root * steps / passes
    shard = whole * rank.elements.parameters / max(1, rank.elements.whole)
    yield _moved("gathered parameters copied out", card, _FSDP, passes, 2 * sent, whole)
    each = 2 * sent + (held != sent) * (held + sent)
    into = _moved("shards cast and concatenated", card, _FSDP, passes, each, shard)
    yield _beside(into, blocks / max(1.0, whole), steps * compute.seconds)
    trained, times = rank.elements.trained, steps if execution.reduces_each else 1
    gradient, reduced = rank.dtypes.size("gradients"), rank.dtypes.size("reduce")
    yield _moved("gradients concatenated", card, _FSDP, times, gradient + reduced, trained)
    if rank.spec.shard_degree == 1:
        alone = _moved("gradients of the only rank copied", card, _FSDP, times, 2 * reduced, trained)
        yield _beside(alone, rank.all_blocks.trained / max(1, trained), times * compute.backward_seconds)


def _of_zero(rank: RankModel, execution: Execution, card: Card, steps: int) -> Iterator[SpeedTerm]:
    """DeepSpeed's copies: gradients into buckets, averaged, flattened where several ranks share a bucket, and back.

    Each rank copies its own part once more (``average_tensor``, ``allreduce_bucket``, ``copy_grads_in_partition``).
    Stage 3 concatenates them by rank (``reduce_scatter_coalesced``) and joins the parts of gathered parameters.
    """
    several, gradient = rank.spec.shard_degree > 1, rank.dtypes.size("gradients")
    times, trained = steps if execution.reduces_each else 1, rank.elements.trained
    each = (6 if several or execution.copies == "zero_3" else 4) * gradient
    yield _moved("gradients through buckets", card, _ZERO_COPIES, times, each, trained)
    if execution.copies == "zero_1_2":
        own = rank.elements.optimizer
        yield _moved("own gradients copied back", card, _ZERO_COPIES, times, 4 * gradient, own)
    elif several:
        joined, passes = float(rank.compute_parameters(rank.elements)), steps * (1 + execution.regathers)
        yield _moved("gathered parameters joined", card, _ZERO_COPIES, passes, 2 * rank.engine.size, joined)


def _moved(
    what: str, card: Card, source: str, times: float, each: float, elements: float, part: StepPart = "memory_bound"
) -> SpeedTerm:
    return term(
        part, what, "n * k * P / (share * bandwidth)", source,
        n=times, k=each, P=elements, share=MEMORY_SHARE, bandwidth=card.memory_bandwidth,
    )  # fmt: skip


def _beside(one: SpeedTerm, share: float, window: float) -> SpeedTerm:
    """The term with a share of it hidden behind a window of compute."""
    hidden = share * one.seconds
    return one._replace(exposed_seconds=one.seconds - hidden + exposed_seconds(hidden, _HIDING * window))


def exposed_seconds(communication: float, window: float) -> float:
    """Seconds that a collective of ``c`` seconds adds to compute that it overlaps for at most ``w`` seconds.

    While both run, each runs at ``1 / SLOWED`` of its speed: ``c - (2 - s) * min(c, w)``. Fully hidden it still costs
    ``(s - 1) c``; what is left when the window closes runs alone.
    """
    return communication - (2 - SLOWED) * min(communication, max(0.0, window))
