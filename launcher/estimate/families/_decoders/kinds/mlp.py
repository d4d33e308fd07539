"""The MLP: up and down, with or without a gate, and the activation in between."""

from launcher.estimate.families import _transformers
from launcher.estimate.families._decoders import values
from launcher.estimate.families._decoders.description import Decoder
from launcher.estimate.families._decoders.kinds import Part
from launcher.estimate.families._hugging_face import ACTIVATIONS
from launcher.estimate.families._transformers import _read
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor, Weight
from launcher.spec import ModelSpec

MODULE: Module = "mlp"
_INSIDE = {"relu": 0, "gelu_new": 4, "xielu": 4}
"""Number of tensors that an activation saves besides its output, where it is not just its input."""

_GRADIENTS = {"gelu": 1, "gelu_pytorch_tanh": 1, "relu": 1, "relu2": 3}
"""Gradients of the MLP's width that the backward pass holds at once without a gate, where these are not two."""


def weights(part: Part) -> list[Weight]:
    """Weights of its linear layers, and the learned parameters of its activation."""
    model, found = part.model, part.found
    hidden, width, bias = model.hidden_size, width_of(model, found), values.flag(model, found.mlp_bias)
    inside = f"{found.mlp}." if found.mlp else ""
    rows = linear(f"{inside}{found.gate}", width, hidden, bias=bias) if found.gate else []
    inner = 2 * width if found.gated and not found.gate else width
    rows += linear(f"{inside}{found.up}", inner, hidden, bias=bias)
    rows += part.pairs(found.mlp, hidden, {found.up: inner})
    rows += linear(f"{inside}{found.down}", hidden, width, bias=bias, rows=False)
    rows += linear(found.behind, hidden, hidden, bias=False) if found.behind else []
    return rows + [Weight(name=f"{inside}{name}", shape=(1,)) for name in found.activation_weights]


def readers(part: Part) -> tuple[str, ...]:
    """The gate and up projections."""
    found = part.found
    return (found.gate, found.up) if found.gate else (found.up, *found.beside.values())


def saved(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Gate, up, activation and product; without a gate, the tensors that the activation saves, and its output."""
    model, found = part.model, part.found
    one, name = engine.size * width_of(model, found), activation(model)
    if found.gated:
        rows = [
            SavedTensor("gate", one, "tensor", "mlp", output_of=found.gate, in_forward_peak=False),
            SavedTensor("up", one, "tensor", "mlp", output_of=found.up),
            SavedTensor("activation", one, "tensor", "activation"),
            _read("product", one, "tensor", "activation", (found.down,)),
        ]
    else:
        inside = 1 if found.config == "BloomConfig" else _INSIDE.get(name, 1)
        first = SavedTensor("up", min(inside, 1) * one, "tensor", "mlp", output_of=found.up)
        output = SavedTensor(
            "activation",
            one,
            "tensor",
            "activation",
            readers=(found.down,),
            in_forward_peak=inside < 2,
            only_readers=name != "relu",
        )
        more = [SavedTensor("inside the activation", (inside - 1) * one, "tensor", "mlp")] if inside > 1 else []
        rows = [first, *more, output]
    if found.behind:
        rows.append(_read("output of the MLP", engine.size * model.hidden_size, "token", "mlp", (found.behind,)))
    return [*part.between_pairs(engine), *rows, *_transformers.dropout(model, engine)]


def gradients(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients of its width: two, one if the activation's gradient needs only its input, three for a square."""
    model = part.model
    count = 2 if part.found.gated else _GRADIENTS.get(activation(model), 2)
    return [SavedTensor("gradients of the MLP", count * engine.size * width_of(model, part.found), "tensor", "mlp")]


def width_of(model: ModelSpec, found: Decoder) -> int:
    """The width of the MLP."""
    return values.count(model, found.mlp_width) or model.intermediate_size


def activation(model: ModelSpec) -> str:
    """The activation by the name that transformers has for it."""
    key = values.their_key(model.model_type, "hidden_act")
    ours = ACTIVATIONS.get(model.hidden_act, model.hidden_act)
    return str(model.extra.get(key, ours)) if key else ours
