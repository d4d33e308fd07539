"""DBRX's experts, whose rows are stacked in one matrix and which a loop computes one after the other.

``DbrxExperts`` of ``modeling_dbrx.py`` in transformers 5.23; what one expert saves is counted for even routing. The
matrices of each expert's gradient are counted in ``estimate.memory.scores``.
"""

from dataclasses import replace

from launcher.estimate.families import _transformers
from launcher.estimate.families._decoders import values
from launcher.estimate.families._decoders.kinds import Part, experts
from launcher.estimate.families._transformers import _read
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor, Weight

MODULE: Module = "experts"
_INDEX = 8  # An expert choice and a place are int64.


def weights(part: Part) -> list[Weight]:
    """Weights of the router, and gate, up and down of the experts, each with the input width last."""
    model, name = part.model, experts.described(part).name
    router = f"{name}.{experts.described(part).router}"
    rows = linear(router, model.num_experts, model.hidden_size, bias=False, split=False)
    one = Weight(name="", shape=(model.moe_intermediate_size, model.hidden_size), split="expert", whole=True)
    one = replace(one, copies=model.num_experts, stacked=True)
    return rows + [replace(one, name=f"{name}.experts.mlp.{each}") for each in ("w1", "v1", "w2")]


def readers(part: Part) -> tuple[str, ...]:
    """Only the router, since an expert takes copies of its tokens."""
    return (experts.described(part).router.rpartition(".")[2],)


def saved(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """The router's softmax, weights and their norm; for each choice its index, input, activations, output and weight.

    While one expert is computed, its own tensors exist, the weighted output of the previous one, the sum and an int64
    mask of the choices. The sum over experts keeps its operands (``index_add``, tools/autograd/derivatives.yaml).
    Under autocast gate and up each cast their input.
    """
    model, size, whole = part.model, engine.size, engine.residual_size
    hidden, width, choices = model.hidden_size, model.moe_intermediate_size, model.num_experts_per_tok
    e = model.num_experts
    router = size * e + (_INDEX + size + whole) * choices + whole
    jitter = whole * hidden if values.value(model, "ffn_config.moe_jitter_eps") else 0
    read = (2 if engine.autocast else 1) * size * hidden
    made = -(-(size * (3 * width + 2 * hidden) + whole * hidden) // e) + whole * hidden // choices + _INDEX * (e + 1)
    output = (size + whole) * hidden + 2 * _INDEX + whole
    rows = [
        _read("expert inputs", read, "routed", "moe", ("experts",)),
        SavedTensor("outputs of experts", output, "routed", "moe", made=made),
        SavedTensor("expert activations", 3 * size * width, "routed_tensor", "moe"),
        _read("expert products", size * width, "routed_tensor", "moe", ("experts",)),
    ]
    return [
        SavedTensor("router and its noise", router + jitter, "token", "moe"),
        *(replace(row, in_forward_peak=False) for row in rows),
        *_transformers.dropout(model, engine),
    ]


def gradients(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients inside one expert: of its output, or of product, gate and up once product and output are freed."""
    model, size, whole = part.model, engine.size, engine.residual_size
    width, hidden = model.moe_intermediate_size, model.hidden_size
    one = max((whole + 2 * size) * hidden, 2 * size * width - (size + whole) * hidden)
    inside = -(-model.num_experts_per_tok * one // model.num_experts)
    return [SavedTensor("gradients inside one expert", inside, "token", "mlp")]
