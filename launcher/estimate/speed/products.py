"""The matrix products of a block, from its weights, and the FLOPs that a model needs for one sequence.

There is one product per matrix; products that read the same input are fused where engines do so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

from launcher.estimate.rank import adapters
from launcher.estimate.rank.counts import block_weights, kinds_of
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.tensors import Weight
from launcher.spec import AdapterSpec, ModelSpec

_ANY_SIZE = 2  # Bytes of an element; FLOPs do not depend on them.

type Part = Literal["attention", "up_projection", "mlp", "experts"]


class Product(NamedTuple):
    """One matrix product of a block, before tensor parallelism splits it."""

    outputs: int  # Columns of its result.
    inputs: int  # Rows of its weight.
    split: int | None  # The side that tensor parallel ranks split: 0 the outputs, 1 the inputs, None neither.
    experts: int  # Routed experts of the layer, each of which has one; 0 for a product of all tokens.
    trained: bool  # True if its weight gets a gradient.
    activated: bool  # True if it reads the MLP's activation.
    part: Part  # The module that it belongs to, for selective recomputation.

    def local(self, ranks: int) -> tuple[int, int]:
        """Its outputs and inputs on one of the ranks that split it."""
        n = -(-self.outputs // ranks) if self.split == 0 else self.outputs
        k = -(-self.inputs // ranks) if self.split == 1 else self.inputs
        return n, k


@lru_cache(maxsize=1024)
def products(
    family: Family, model: ModelSpec, adapter: AdapterSpec, layer: int, *, joined: bool
) -> tuple[Product, ...]:
    """The products of one block.

    An adapter's matrices are separate products; ``joined`` fuses the projections of one input into one product.
    """
    block = block_weights(family, model, layer)
    names = {weight.name for weight in adapters.folded(block, adapter)}  # They get gradients as if they were trained.
    rows = adapters.weights(block, replace(adapter, parameters=()))
    weights = [replace(w, frozen=w.frozen and w.name not in names) for w in rows if len(w.shape) == 2]
    output = family.traits.attention_output
    own = [(_product(weight, output), weight.name.removesuffix(".weight").rpartition(".")[0]) for weight in weights]
    return tuple(_joined(own)) if joined else tuple(product for product, _ in own)


def _product(weight: Weight, attention_output: str) -> Product:
    split = None if weight.split == "replicated" else weight.dimension
    if split == 1 and ".lora_" in weight.name:
        split = None  # Its sum over the ranks has the size of the adapter's rank, not the hidden size.
    experts = weight.copies if weight.split == "expert" else 0
    activated = split == 1 and weight.name != attention_output and weight.module in (None, "mlp", "experts")
    return Product(weight.shape[0], weight.shape[1], split, experts, not weight.frozen, activated, _part(weight))


def _part(weight: Weight) -> Part:
    """The module of a weight; latent attention's up-projections are a separate part."""
    if weight.split == "expert":
        return "experts"
    module = adapters.module(weight)
    if weight.module is not None:
        return "attention" if weight.module in ("attention", "mixer") else "mlp"
    if "mlp" in weight.name.split("."):
        return "mlp"
    return "up_projection" if module.endswith("_b_proj") else "attention"


def _joined(own: Sequence[tuple[Product, str]]) -> Iterator[Product]:
    """Fuse neighbours of one module and input whose outputs are split alike: queries, keys and values; gate and up."""
    last, place = own[0]
    for one, here in own[1:]:
        if here == place and one.split == 0 and one._replace(outputs=last.outputs) == last:
            last = last._replace(outputs=last.outputs + one.outputs)
        else:
            yield last
            last, place = one, here
    yield last


@lru_cache(maxsize=1024)
def model_flops(family: Family, model: ModelSpec, adapter: AdapterSpec, sequence: int) -> float:
    """FLOPs of both passes over one sequence (arXiv:2204.02311, appendix B, without what a causal mask excludes).

    A matrix's gradient counts only where it is trained. Left out: whatever is recomputed, duplicated or masked.
    """
    total, layers = (
        0.0,
        tuple(range(model.num_hidden_layers)) + (family.traits.predicted_layer(model),) * model.mtp_layers,
    )
    for _, layer, count in kinds_of(family, model, layers, first_apart=False):
        own = products(family, model, adapter, layer, joined=False)
        matrices = sum(
            2.0 * one.outputs * one.inputs * (model.num_experts_per_tok if one.experts else 1) * (2 + one.trained)
            for one in own
        )
        window = min(family.traits.window(model, layer) or sequence, sequence)
        pairs = (sequence * window - window**2 / 2) * family.traits.attends(model, layer)
        scans = sum(one.flops for one in family.traits.scans(model, layer, _ANY_SIZE).forward)
        total += count * 3 * sequence * scans
        total += count * (sequence * matrices + 3 * 2.0 * model.num_attention_heads * pairs * sum(head_sizes(model)))
    further, trained = model.mtp_layers, 2 + adapters.trains(family.head(model, model.vocab_size), adapter)
    total += further * sequence * 2.0 * 2 * model.hidden_size**2 * trained
    return total + (1 + further) * sequence * 2.0 * model.vocab_size * model.hidden_size * trained


def head_sizes(model: ModelSpec) -> tuple[int, int]:
    """Elements of a query head and of a value head."""
    if model.kv_lora_rank:
        return model.qk_nope_head_dim + model.qk_rope_head_dim, model.v_head_dim
    value = model.extra.get("v_head_dim")
    return model.head_size, value if type(value) is int else model.head_size
