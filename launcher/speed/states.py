"""Traffic and memory passes of the model states: gathered parameters, reduced gradients, the optimizer's step.

What ranks that see different samples exchange follows from what they share: with nothing sharded an all-reduce of the
gradients, with sharded optimizer states a reduce-scatter of these and an all-gather of the parameters, with sharded
parameters an all-gather for each pass (arXiv:1910.02054, section 7).
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

from launcher.rank.execution import Execution
from launcher.rank.model import RankModel
from launcher.rank.optimizer_moments import moment_bytes
from launcher.speed import collectives, overlap
from launcher.speed.block import MEMORY_SHARE
from launcher.speed.card import Card
from launcher.speed.collectives import Group, group_of
from launcher.speed.network import Network
from launcher.speed.terms import SpeedTerm, term

_USABLE = 0.75
"""Share of the last backward pass that hides the reduction of gradients, which begins with its first bucket and ends
after its last."""

_HIDING = 0.9
"""Share of a block's compute behind which the next one's gathering hides."""

_SPREAD = 0.02
"""Standard deviation of the speed of GPUs of one kind."""

_ZERO = "arXiv:1910.02054, section 7; launcher/speed/collectives.py"


class Compute(NamedTuple):
    """Seconds of one micro-batch on a stage: forward, and backward with what is computed again."""

    forward: float
    backward: float


def data_parallel(
    rank: RankModel, execution: Execution, network: Network, compute: Compute, steps: int
) -> Iterator[SpeedTerm]:
    """Traffic among the ranks that share model states, over one step.

    Args:
        rank: The rank.
        execution: How the engine executes it.
        network: The links.
        compute: Of one micro-batch.
        steps: Micro-batches of a step.
    """
    spec = rank.spec
    ranks = spec.shard_degree
    shards = group_of(ranks, spec.parallel.tensor, network)
    copies = group_of(spec.parallel.replicate, spec.parallel.tensor * ranks, network)
    if rank.view.states.parameters < 1:
        yield from _gathered_each_pass(rank, execution, network, compute, steps, shards)
        yield from _replicas(rank, network, copies, rank.elements.trained / ranks)
        return
    dense, expert = rank.elements.dense, rank.elements.expert
    trained = rank.elements.trained / max(1, rank.elements.whole)
    of_experts = _expert_group(rank, network)
    for elements, group, words in ((dense, shards, "data parallel"), (expert, of_experts, "data parallel, experts")):
        if elements and group.ranks > 1:
            yield from _once_a_step(rank, execution, network, compute, elements * trained, group, words)
    share = ranks if rank.view.states.optimizer < 1 else 1
    yield from _replicas(rank, network, copies, dense * trained / share)


def _expert_group(rank: RankModel, network: Network) -> Group:
    """Ranks that hold the same experts."""
    parallel = rank.spec.parallel
    inside = parallel.expert * (parallel.expert_tensor or parallel.tensor)
    return group_of(max(1, rank.spec.gpus // (parallel.pipeline * inside)), inside, network)


def _once_a_step(
    rank: RankModel,
    execution: Execution,
    network: Network,
    compute: Compute,
    elements: float,
    group: Group,
    words: str,
) -> Iterator[SpeedTerm]:
    """Gradients reduced behind the last backward pass; with sharded optimizer states, parameters gathered again."""
    size, times = (
        elements * rank.dtypes.size("reduce"),
        rank.spec.gradient_accumulation if execution.reduces_each else 1,
    )
    sharded = rank.view.states.optimizer < 1
    kind: collectives.Kind = "reduce_scatter" if sharded else "all_reduce"
    seconds = _in_buckets(kind, size, group, network, execution)
    exposed = overlap.exposed(seconds, _USABLE * compute.backward)
    yield term(
        "data", "gradients reduced", "n * k / reached", _ZERO,
        exposed=times * exposed if execution.gradient_overlap else None,
        moved=times * size, group=words, n=times, k=size, reached=size / seconds,
    )  # fmt: skip
    if sharded:
        size = elements * rank.engine.size
        seconds = _in_buckets("all_gather", size, group, network, execution)
        exposed = overlap.exposed(seconds, _USABLE * compute.forward)
        yield term(
            "data", "parameters gathered", "k / reached", _ZERO,
            exposed=exposed if execution.parameter_overlap else None,
            moved=size, group=words, k=size, reached=size / seconds,
        )  # fmt: skip


def _in_buckets(kind: collectives.Kind, size: float, group: Group, network: Network, execution: Execution) -> float:
    """Seconds of a collective that is cut into buckets."""
    count = max(1.0, size / execution.bucket_bytes)
    return count * collectives.seconds(kind, size / count, group, network)


def _gathered_each_pass(
    rank: RankModel, execution: Execution, network: Network, compute: Compute, steps: int, group: Group
) -> Iterator[SpeedTerm]:
    """Parameters gathered for both passes of every micro-batch, gradients scattered after it."""
    if group.ranks == 1:
        return
    layers = max(1, rank.layers)
    block = rank.elements.whole / layers
    parameters, gradients = block * rank.engine.size, block * rank.dtypes.size("reduce")
    gather = collectives.seconds("all_gather", parameters, group, network)
    scatter = collectives.seconds("reduce_scatter", gradients, group, network)
    trained = rank.elements.trained / max(1, rank.elements.whole)
    again, scatters = int(execution.regathers), steps if execution.reduces_each else 1
    scatter *= trained
    ahead, behind, last = layers * gather, layers * again * gather, layers * scatter
    if execution.parameter_overlap:
        exposed = steps * max(gather, overlap.exposed(ahead, _HIDING * compute.forward))
        exposed += scatters * max(again * gather + scatter, overlap.exposed(behind + last, _HIDING * compute.backward))
        exposed += (steps - scatters) * max(again * gather, overlap.exposed(behind, _HIDING * compute.backward))
    else:
        exposed = steps * (ahead + behind) + scatters * last
    yield term(
        "data", "parameters gathered, gradients scattered", "L * (m * g * t_gather + n * t_scatter)", _ZERO,
        exposed=exposed, moved=layers * (steps * (1 + again) * parameters + scatters * gradients * trained),
        group="data parallel", m=steps, L=layers, g=1 + again, n=scatters, t_gather=gather, t_scatter=scatter,
    )  # fmt: skip


def _replicas(rank: RankModel, network: Network, group: Group, elements: float) -> Iterator[SpeedTerm]:
    """Gradients of each shard averaged over the replicas (HSDP)."""
    if group.ranks > 1:
        size = elements * rank.dtypes.size("reduce")
        seconds = collectives.seconds("all_reduce", size, group, network)
        yield term(
            "data", "gradients averaged over replicas", "k / reached", _ZERO, exposed=0.5 * seconds, moved=size,
            group="replicas", k=size, reached=size / seconds,
        )  # fmt: skip


def waiting(gpus: int, seconds: float) -> SpeedTerm:
    """Each step waits for the slowest GPU: the expected largest of so many normal deviations.

    Blom's approximation of the largest of ``n``: the quantile ``(n - 3/8) / (n + 1/4)``. One GPU differs from another
    by 2% (standard deviation), of equal parts at equal power (arXiv:2510.15596 gives a spread of up to 14%).
    """
    slowest = _SPREAD * NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25)) if gpus > 1 else 0.0
    return term("waiting", "the slowest GPU", "t_step * slowest", "arXiv:2510.15596", t_step=seconds, slowest=slowest)


def optimizer(rank: RankModel, execution: Execution, card: Card) -> Iterator[SpeedTerm]:
    """The optimizer's step over this rank's shard: what it reads and writes of memory.

    Master weights, both moments and the gradient are read, the first three and the parameters written; a norm of the
    gradients reads them once more, and they are zeroed. A step of torch's lists reads and writes each of some ten
    operations' results.
    """
    sizes = rank.dtypes
    moments = moment_bytes(rank.spec.optimizer.name, 1, 0, sizes.size("optimizer_states"))
    master = sizes.size("master") or sizes.size("parameters")
    gradient = sizes.size("accumulate")
    parameters = rank.engine.size if sizes.master else 0
    once = 2 * moments + 2 * master + 3 * gradient + parameters
    passes = 1 if execution.fused_optimizer else 3
    yield term(
        "optimizer", "memory passes of the optimizer", "n * k * P / (share * bandwidth)", "torch.optim, fused kernels",
        n=passes, k=once, P=rank.elements.optimizer, share=MEMORY_SHARE, bandwidth=card.memory_bandwidth,
    )  # fmt: skip


def accumulation(rank: RankModel, execution: Execution, card: Card, steps: int) -> Iterator[SpeedTerm]:
    """Gradients of a micro-batch added to those of the step so far: read, and read and written where they add up.

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
