"""Llama 4's experts: each token is copied to every expert and multiplied by its score, and all copies are computed.

An expert that the router did not choose has the score 0 (``Llama4TextMoe.forward`` in transformers 5.23).
"""

from launcher.estimate.families._decoders.kinds import Part, experts
from launcher.estimate.families._transformers import _read
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor

MODULE: Module = "experts"
_FP32 = 4
_INDEX = 8  # An expert choice is an int64.
weights = experts.weights
readers = experts.readers


def saved(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Copies before and after scoring, fused gate and up, activation and product of each expert, and the scores.

    The products of all experts are one ``torch.bmm``, in the compute format.
    """
    model, size, number = part.model, engine.size, part.model.num_experts
    one = size * number * model.moe_intermediate_size
    copies = engine.residual_size * number * model.hidden_size
    router = (_FP32 + engine.residual_size) * number + _INDEX * model.num_experts_per_tok
    return [
        SavedTensor("scores", router, "token", "moe"),
        SavedTensor("copies of tokens", copies, "token", "moe", in_forward_peak=False),
        _read("expert inputs", size * number * model.hidden_size, "token", "moe", ("experts",)),
        SavedTensor("gate and up of the experts", 2 * one, "token", "moe"),
        SavedTensor("activation of the experts", one, "token", "moe"),
        _read("expert products", one, "token", "moe", ("experts",)),
        *experts.beside(part, engine),
    ]


def gradients(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients of the product, of up and of the activation, once the product itself is freed."""
    model = part.model
    inside = 2 * engine.size * model.num_experts * model.moe_intermediate_size
    return [SavedTensor("gradients of the experts", inside, "token", "mlp")]
