"""FLOPs that a model needs for one sequence, however it is computed: the numerator of MFU."""

from __future__ import annotations

from functools import lru_cache

from launcher.estimate.rank.counts import kinds_of
from launcher.estimate.rank.family import Family
from launcher.estimate.speed.block import head_sizes
from launcher.estimate.speed.products import products
from launcher.spec import AdapterSpec, ModelSpec


@lru_cache(maxsize=1024)
def model_flops(family: Family, model: ModelSpec, adapter: AdapterSpec, sequence: int) -> float:
    """FLOPs of both passes over one sequence (arXiv:2204.02311, appendix B, with what a causal mask leaves).

    Two for each element of a matrix and token forward, as many for the gradient of the input, and again for that of the
    matrix where it is trained; attention's two products over the pairs that a token sees, twice that backward. Left
    out: what is computed again, doubled or masked.
    """
    total = 0.0
    for _, layer, count in kinds_of(family, model, tuple(range(model.num_hidden_layers)), first_apart=False):
        own = products(family, model, adapter, layer, joined=False)
        matrices = sum(
            2.0 * one.outputs * one.inputs * (model.num_experts_per_tok if one.experts else 1) * (2 + one.trained)
            for one in own
        )
        window = min(family.traits.window(model, layer) or sequence, sequence)
        pairs = sequence * window - window**2 / 2
        total += count * (sequence * matrices + 3 * 2.0 * model.num_attention_heads * pairs * sum(head_sizes(model)))
    return total + sequence * 2.0 * model.vocab_size * model.hidden_size * (2 + (adapter.name == "none"))
