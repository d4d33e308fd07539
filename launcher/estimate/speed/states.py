"""Traffic and memory passes of the model states: gathered parameters, reduced gradients, the optimizer's step.

What ranks that see different samples exchange follows from what they share: with nothing sharded an all-reduce of the
gradients, with sharded optimizer states a reduce-scatter of these and an all-gather of the parameters, with sharded
parameters an all-gather for each pass (arXiv:1910.02054, section 7).
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
from launcher.estimate.speed.terms import SpeedTerm, term
from launcher.spec import ParallelSpec

SLOWED = 1.13
"""Time of a kernel beside a collective, and of the collective, over that of each alone.

PKU-DAIR/Hetu-Galvatron@cea12ffb (Apache-2.0), ``overlap_coefficient.json``, measured. It is what a collective takes of
the card: 16 to 24 of 132 multiprocessors, 12 to 18% (NVIDIA-NeMo/Megatron-Bridge@067f987d, performance guide;
deepseek-ai/DeepEP@dd758caf), for which Calculon charges 15% on NVLink.
"""

_USABLE = 0.75
"""Share of the last backward pass that hides the reduction of gradients, which begins with its first bucket and ends
after its last."""

_HIDING = 0.9  # Share of a block's compute behind which the next one's gathering hides.
_SPREAD = 0.02  # Standard deviation of the speed of GPUs of one kind.
_ZERO = "arXiv:1910.02054, section 7; launcher/estimate/speed/collectives.py"


class Compute(NamedTuple):
    """Seconds of one micro-batch on a stage: forward, and backward with recomputation."""

    forward: float
    backward: float


def data_parallel(
    rank: RankModel, execution: Execution, network: Network, compute: Compute, steps: int
) -> Iterator[SpeedTerm]:
    """Traffic among the ranks that share model states, over one step."""
    parts = list(_parts(rank, network))
    times = steps if execution.reduces_each else 1
    if rank.view.states.parameters < 1:
        yield from _gathered_each_pass(rank, execution, network, parts, compute, steps, times)
        yield from _gathered_beside(rank, execution, network, parts, compute, steps)
        return
    sharded = rank.view.states.optimizer < 1
    reduced = [one for part in parts for one in _reductions(part, rank, execution, network, sharded=sharded)]
    longer = chunk_by_chunk(rank.spec.parallel, steps)
    window = _USABLE * longer * compute.backward if execution.gradient_overlap else 0.0
    yield from _hidden("gradients reduced", reduced, times, window)
    if sharded:
        gathered = [
            _Traffic(part.words, part.group, size, _in_buckets("all_gather", size, part.group, network, execution))
            for part in parts
            if (size := part.trained * rank.engine.size) and part.group.ranks > 1
        ]
        window = _USABLE * longer * compute.forward if execution.parameter_overlap else 0.0
        yield from _hidden("parameters gathered", gathered, 1, window)


def chunk_by_chunk(parallel: ParallelSpec, steps: int) -> float:
    """Passes of a micro-batch beside which the states of a stage's model chunks travel, ``(v - 1) / v * p + 1 / v``.

    Interleaved, ``p`` micro-batches pass one chunk before any passes the next, so that all but one of the ``v`` chunks
    travel while these pass the others (``forward_backward_pipelining_with_interleaving`` of Megatron-core, which lets
    gradients go after the last micro-batch of each chunk). Otherwise it is the last pass alone.
    """
    chunks = parallel.virtual_pipeline
    return ((chunks - 1) * min(steps, parallel.pipeline) + 1) / chunks


class _Part(NamedTuple):
    """Parameters of a rank that the same ranks share: the dense ones, or the routed experts."""

    words: str  # The ranks, in words.
    elements: float  # Before sharding.
    trained: float  # Those of them that get gradients.
    group: Group  # The ranks that share their states.
    copies: Group  # The ranks that hold the same shard (HSDP).


class _Traffic(NamedTuple):
    """One collective of a step, or its buckets together: ranks in words, the group, bytes and seconds."""

    words: str
    group: Group
    size: float
    seconds: float


def _parts(rank: RankModel, network: Network) -> Iterator[_Part]:
    """The dense parameters and the routed experts, which fewer ranks have copies of."""
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
    """Gradients averaged over the ranks that share a part, and what each keeps of them over the replicas."""
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
    """Quantized gradients, all to all within each node and then, reduced to its share, between the nodes (qgZ).

    ``all_to_all_quant_reduce``, ``runtime/comm/coalesced_collectives.py``; the kernels between are not counted.
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
    """Terms of collectives that run one after the other, the first ones hidden behind a window of compute."""
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
    rank: RankModel,
    execution: Execution,
    network: Network,
    parts: Sequence[_Part],
    compute: Compute,
    steps: int,
    times: int,
) -> Iterator[SpeedTerm]:
    """Parameters gathered for both passes of every micro-batch, a block at a time, gradients scattered after it.

    With ZeRO++ the backward pass gathers them from a second copy of the shards within ``zero.hpz`` ranks
    (arXiv:2306.10209), and may gather what it quantizes before, whose kernels are not counted; with FSDP2 from what
    ``backend.reshard_after_forward`` ranks have kept. Weights in 4 bits are gathered as they are; torchao's fp8
    all-gathers save half, and their one all-reduce of scales a step is not counted.
    """
    layers = max(1, rank.layers)
    gathered = rank.compute_parameters(rank.root) + rank.gathered_blocks(rank.all_blocks)
    packed = float(gathered) / max(1, rank.elements.whole)
    inner = max(rank.spec.zero.hpz, rank.spec.backend.kept_over)
    near = group_of(inner, rank.spec.parallel.tensor, network) if inner > 1 else None
    gather = again = scatter = moved = 0.0
    for part in parts:
        size = part.elements / layers * (execution.gathered_size or rank.engine.size * packed)
        gather += collectives.seconds("all_gather", size, part.group, network)
        again += collectives.seconds("all_gather", size, near or part.group, network) * execution.regathers
        reduced = list(
            _reductions(part._replace(trained=part.trained / layers), rank, execution, network, sharded=True)
        )
        scatter += sum(one.seconds for one in reduced)
        moved += (steps * (1 + execution.regathers) * size * (part.group.ranks > 1)) + times * sum(
            r.size for r in reduced
        )
    if not gather + scatter:
        return
    ahead, behind, last = layers * gather, layers * again, layers * scatter
    exposed = steps * (ahead + behind) + times * last
    if execution.parameter_overlap:
        exposed = steps * max(gather, exposed_seconds(ahead, _HIDING * compute.forward))
        exposed += times * max(again + scatter, exposed_seconds(behind + last, _HIDING * compute.backward))
        exposed += (steps - times) * max(again, exposed_seconds(behind, _HIDING * compute.backward))
    yield term(
        "data", "parameters gathered, gradients scattered", "L * (m * (t_gather + t_again) + n * t_scatter)", _ZERO,
        exposed=exposed, moved=layers * moved, group="data parallel",
        m=steps, L=layers, n=times, t_gather=gather, t_again=again, t_scatter=scatter,
    )  # fmt: skip


def _gathered_beside(
    rank: RankModel, execution: Execution, network: Network, parts: Sequence[_Part], compute: Compute, steps: int
) -> Iterator[SpeedTerm]:
    """Parameters gathered for forward passes without gradients, of the model and of what it is compared with.

    A reference model that FSDP2 shards is one group, whole before it computes (``prepare_fsdp``, trl/models/utils.py).
    """
    own, others = rank.spec.task.other_passes
    if not own + others:
        return
    size = {part: float(part.elements) * rank.engine.size for part in parts}
    whole = sum(collectives.seconds("all_gather", size[part], part.group, network) for part in parts)
    one_group = rank.spec.parallel.shard and rank.spec.adapter.name == "none"
    hidden = exposed_seconds(whole, _HIDING * compute.forward) if execution.parameter_overlap else whole
    exposed = steps * (own * hidden + others * (whole if one_group else hidden))
    moved = steps * (own + others) * sum(size[part] for part in parts if part.group.ranks > 1)
    yield term(
        "data", "parameters gathered for passes without gradients", "n * m * t_gather", _ZERO,
        exposed=exposed, moved=moved, group="data parallel", n=own + others, m=steps, t_gather=whole,
    )  # fmt: skip


def waiting(gpus: int, seconds: float) -> SpeedTerm:
    """Each step waits for the slowest GPU: the expected largest of so many normal deviations.

    Blom's approximation of the largest of ``n``: the quantile ``(n - 3/8) / (n + 1/4)``. One GPU differs from another
    by 2% (standard deviation), of equal parts at equal power (arXiv:2510.15596 gives a spread of up to 14%).
    """
    slowest = _slowest(gpus) if gpus > 1 else 0.0
    return term("waiting", "the slowest GPU", "t_step * slowest", "arXiv:2510.15596", t_step=seconds, slowest=slowest)


@cache
def _slowest(gpus: int) -> float:
    from statistics import NormalDist  # Late, because it takes a while to import.

    return _SPREAD * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))


def optimizer(rank: RankModel, execution: Execution, card: Card) -> Iterator[SpeedTerm]:
    """Memory passes of the optimizer's step over this rank's shard.

    Master weights, both moments and the gradient are read, the first three and the parameters written; a norm of the
    gradients reads them once more, and they are zeroed. A step of torch's lists reads and writes each of some ten
    operations' results; Adafactor's is one, over whole matrices on every rank.
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
    yield term(
        "optimizer", "memory passes of the optimizer", "n * k * P / (share * bandwidth)", "torch.optim, fused kernels",
        n=passes, k=once, P=stepped, share=MEMORY_SHARE, bandwidth=card.memory_bandwidth,
    )  # fmt: skip


def accumulation(rank: RankModel, execution: Execution, card: Card, steps: int) -> Iterator[SpeedTerm]:
    """Gradients of a micro-batch added to the step's sum so far: they are read, and the sum is read and written.

    What is reduced after each micro-batch is added to the rank's shard alone.
    """
    wide, narrow = rank.dtypes.size("accumulate"), rank.dtypes.size("gradients")
    each = 2 * wide if execution.fused_accumulation else 2 * wide + 2 * narrow
    if steps == 1 and not rank.engine.gradients_stay:
        return
    added = rank.elements.gradients if execution.reduces_each else rank.elements.trained
    yield term(
        "memory_bound", "gradients added up", "m * k * P / (share * bandwidth)", "torch AccumulateGrad",
        m=steps, k=each, P=added, share=MEMORY_SHARE, bandwidth=card.memory_bandwidth,
    )  # fmt: skip


def exposed_seconds(communication: float, window: float) -> float:
    """Seconds that a collective of ``c`` seconds adds to compute that it runs beside for at most ``w`` seconds.

    While both run, each goes at ``1 / SLOWED`` of its speed: ``c - (2 - s) * min(c, w)``. Hidden whole it costs
    ``(s - 1) c``; what is left when the window closes runs alone.
    """
    return communication - (2 - SLOWED) * min(communication, max(0.0, window))
