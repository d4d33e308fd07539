"""Routed experts of one layer: their products, the dispatch of tokens to their ranks and back, and the sorting.

NCCL's all-to-all sends a copy of a token to each of its ``k`` of ``E`` experts; DeepEP and HybridEP send one to each
rank that has any of them, and over the network one to each domain (deepseek-ai/DeepEP README). With even routing, a
rank with ``e`` of the experts receives ``1 - C(E - e, k) / C(E, k)`` of the tokens.
"""

from math import comb

from launcher.estimate.rank.engine import Execution
from launcher.estimate.speed import collectives, gemm, grouped
from launcher.estimate.speed.card import MEMORY_SHARE
from launcher.estimate.speed.passes import NOTHING, Pass
from launcher.estimate.speed.products import Product
from launcher.estimate.speed.shape import Shape
from launcher.spec import ModelSpec, RunSpec

USABLE = 0.9
"""Share of a NIC's bandwidth that DeepEP's kernels reach: with NICs of 50 GB/s, EP16 on two nodes of H100 moves 90 GB/s
of which half leaves the node, and EP32 on four nodes 61 GB/s of which three quarters do (DeepEP V2)."""

SCATTERED = 0.19
"""Share of the memory bandwidth that indexed gathers and scatters of tokens reach (MooreThreads/SimuMax@4dcaae51,
``a100_pcie.json``, permute)."""


def routed(model: ModelSpec, shape: Shape) -> float:
    """Copies of tokens that the experts of a rank receive with even routing."""
    return shape.tokens * model.num_experts_per_tok * shape.expert_tensor / shape.tensor


def product(one: Product, model: ModelSpec, shape: Shape) -> tuple[float, float, float]:
    """Seconds of one product over all experts of a rank, forward and backward, and its FLOPs.

    Each expert has an even share of the tokens; ``Execution.uneven_experts`` is the busiest rank's factor on that.
    """
    n, k = one.local(shape.expert_tensor)
    local = -(-one.experts // shape.expert)
    copies = routed(model, shape)
    forward, backward = _of_all(copies / local, local, n, k, shape), _of_all(copies / local, local, k, n, shape)
    uneven = shape.execution.uneven_experts if shape.expert > 1 else 1.0
    return uneven * forward, uneven * (backward + forward * one.trained), 2.0 * copies * n * k


def _of_all(tokens: float, local: int, n: int, k: int, shape: Shape) -> float:
    """Seconds of one product of each expert: in one grouped product, or one after the other.

    Autocast leaves grouped products in the weights' fp32 (``transformers/integrations/moe.py``, ``_grouped_mm``).
    """
    wide = shape.autocast and not shape.megatron
    if wide or shape.execution.blockwise_experts:
        return local * gemm.seconds(max(1, round(tokens)), n, k, "fp32" if wide else shape.dtype, shape.card)
    return grouped.seconds(tokens, local, n, k, shape.dtype, shape.card)


def words(spec: RunSpec, execution: Execution) -> str:
    """The clause of the products' term that states the factor for uneven routing; empty without one."""
    if not spec.model.num_experts or spec.parallel.expert == 1 or execution.uneven_experts == 1:
        return ""
    return f", those of experts times {execution.uneven_experts:g} for uneven routing"


def met(model: ModelSpec, groups: int) -> float:
    """Expected number of rank groups that have any of a token's experts, where ``groups`` share all experts."""
    experts, top = model.num_experts, model.num_experts_per_tok
    own = max(1, experts // groups)
    found = groups * (1 - comb(experts - own, top) / comb(experts, top))
    return min(found, float(model.topk_group)) if model.topk_group and groups > 1 else found


def sorting(model: ModelSpec, shape: Shape) -> Pass:
    """The copies of tokens into expert order, and the sum of their outputs; the backward pass does the reverse.

    An all-to-all sorts them twice each way; DeepEP copies them from one token per rank, and HybridEP during the
    exchange itself (Megatron-Core ``token_dispatcher.py``, ``fused_a2a.py``).
    """
    each = routed(model, shape) * model.hidden_size * shape.size
    if shape.expert == 1 or shape.execution.dispatcher == "all_gather":
        passes, kernels = 4.0, 4.0
    elif shape.execution.dispatcher == "all_to_all":
        passes, kernels = 8.0, 8.0
    elif shape.execution.dispatcher == "deepep":
        passes, kernels = 2.0 + 2.0 * met(model, shape.expert) / model.num_experts_per_tok, 4.0
    else:
        passes, kernels = 2.0, 2.0
    moved = passes * each
    share = MEMORY_SHARE if shape.execution.fused_permutation else SCATTERED
    # The router's own kernels: its softmax, the top-k, and the counts per expert.
    return Pass(moved=moved, memory=moved / (share * shape.card.memory_bandwidth), launches=kernels + 6)


def exchange(model: ModelSpec, shape: Shape) -> Pass:
    """The exchange of tokens with the ranks of their experts, there and back, without the part that is hidden."""
    if shape.expert == 1:
        return NOTHING
    ways = {"all_to_all": _copied, "all_gather": _gathered}
    one, size = ways.get(shape.execution.dispatcher, _forwarded)(model, shape)
    left = 1 - shape.execution.expert_overlap
    return Pass(expert=2 * one * left, expert_bytes=2 * size, launches=8)


def _copied(model: ModelSpec, shape: Shape) -> tuple[float, float]:
    size = routed(model, shape) * model.hidden_size * shape.size
    group = shape.group(shape.expert, shape.expert_tensor)
    return collectives.seconds("all_to_all", size, group, shape.network), size


def _gathered(model: ModelSpec, shape: Shape) -> tuple[float, float]:
    """Seconds and bytes of gathering all tokens on every rank; the reduce-scatter back takes as long."""
    group = shape.group(shape.expert, shape.expert_tensor)
    size = routed(model, shape) / model.num_experts_per_tok * model.hidden_size * shape.size * shape.expert
    return collectives.seconds("all_gather", size, group, shape.network), size


def _forwarded(model: ModelSpec, shape: Shape) -> tuple[float, float]:
    """Seconds and bytes of sending one copy per rank, of which only one per other domain leaves the domain."""
    group = shape.group(shape.expert, shape.expert_tensor)
    token = routed(model, shape) / model.num_experts_per_tok * model.hidden_size * shape.size
    size = token * met(model, shape.expert)
    inside = collectives.Group(group.inside, group.inside)
    within = collectives.seconds("all_to_all", size, inside, shape.network) if group.inside > 1 else 0.0
    if group.domains == 1:
        return within, size
    leaves = token * met(model, group.domains) * (group.domains - 1) / group.domains
    return max(within, collectives.forwarded(leaves, group.domains, USABLE, shape.network)), size
