"""Routed experts in place of the MLP, and the shared experts' MLP beside them."""

from dataclasses import replace

from launcher.estimate.families import _transformers
from launcher.estimate.families._decoders import values
from launcher.estimate.families._decoders.description import Experts
from launcher.estimate.families._decoders.kinds import Part
from launcher.estimate.families._transformers import _read
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor, Weight
from launcher.spec import ModelSpec

MODULE: Module = "experts"
_FP32 = 4


def weights(part: Part) -> list[Weight]:
    """Weights of the router, the routed experts, stored in one tensor, and the shared experts' MLP."""
    model, experts = part.model, described(part)
    hidden, width, number, name = _token(model, experts), model.moe_intermediate_size, model.num_experts, experts.name
    rows = linear(f"{name}.{experts.router}", number, model.hidden_size, bias=experts.router_bias, split=False)
    first = {"gate_up_proj": (2 * width, hidden)} if experts.gated else {"up_proj": (width, hidden)}
    for each, (outputs, inputs) in {**first, "down_proj": (hidden, width)}.items():
        shape = (inputs, outputs) if experts.transposed else (outputs, inputs)
        rows.append(Weight(name=f"{name}.experts.{each}", shape=shape, split="expert", copies=number))
        if experts.bias:
            rows.append(Weight(name=f"{name}.experts.{each}_bias", shape=(outputs,), split="expert", copies=number))
    if (shared := values.count(model, experts.shared_width)) or experts.shared_gate:
        rows += _shared(part, experts, shared)
    return rows + (_latent(part, experts, hidden) if hidden != model.hidden_size else [])


def readers(part: Part) -> tuple[str, ...]:
    """The router, the experts, and the shared MLP if there is one."""
    experts = described(part)
    shared = ("gate_proj", "up_proj") if experts.gated else ("up_proj",)
    return (experts.router, "experts", *(shared if _beside(part) else ()))


def saved(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the router, a token's routed experts, and the shared experts' MLP."""
    model, experts = part.model, described(part)
    groups = (values.count(model, "n_group"), values.count(model, "topk_group"))
    hidden = _token(model, experts)
    router: _transformers.Router = "sigmoid" if experts.wide else "narrow"
    weighted = _FP32 if experts.wide else engine.residual_size
    rows = _transformers.routed(model, engine, router=router, groups=groups, hidden=hidden, weighted=weighted)
    if experts.bias:  # gpt-oss clamps gate and up and adds one: twice as many tensors as another gate.
        rows = [replace(row, bytes=2 * row.bytes) if row.name == "expert activations" else row for row in rows]
    if hidden != model.hidden_size:
        rows.append(SavedTensor("latent outputs", engine.size * hidden, "token", "moe"))
    return rows + beside(part, engine)


def gradients(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients inside a token's experts, all at once, or before that of their outputs, whichever are larger.

    The weighted outputs, in fp32 with a wide router, are restored to token order (transformers ``integrations/moe.py``,
    ``weighted_out[inv_perm]``): backward holds their gradient, zeros and the gradient scattered into them, and for
    narrower outputs also theirs. The shared experts' MLP has run its backward pass before if the class runs it last.
    """
    model, experts, size = part.model, described(part), engine.size
    hidden, choices = _token(model, experts), model.num_experts_per_tok
    each, own = (_FP32, size) if experts.wide else (engine.residual_size, 0)
    outputs = (3 * each + (own if engine.residual_size < _FP32 else 0)) * choices * hidden
    inside = (2 if experts.gated else 3) * size * choices * model.moe_intermediate_size
    freed = 0
    if not experts.shared_first and (shared := beside(part, engine)):
        freed = sum(row.bytes for row in shared) - engine.size * model.hidden_size
    return [SavedTensor("gradients of the experts", max(inside, outputs) - max(freed, 0), "token", "mlp")]


def described(part: Part) -> Experts:
    """The description of a type's experts."""
    assert part.found.experts is not None
    return part.found.experts


def _token(model: ModelSpec, experts: Experts) -> int:
    """Width of a token inside the experts."""
    return values.count(model, experts.latent) or model.hidden_size


def _latent(part: Part, experts: Experts, hidden: int) -> list[Weight]:
    """Weights of the linear layers before and after the experts, if tokens are narrower inside them."""
    bias, wide = values.flag(part.model, part.found.mlp_bias), part.model.hidden_size
    rows = linear(f"{experts.name}.fc1_latent_proj", hidden, wide, bias=bias, split=False)
    return rows + linear(f"{experts.name}.fc2_latent_proj", wide, hidden, bias=bias, split=False)


def _shared(part: Part, experts: Experts, width: int) -> list[Weight]:
    hidden, name, bias = part.model.hidden_size, experts.shared, values.flag(part.model, part.found.mlp_bias)
    if experts.shared_joined:
        rows = linear(f"{name}.input_linear", 2 * width, hidden, bias=False)
        rows += linear(f"{name}.output_linear", hidden, width, bias=False, rows=False)
    else:
        rows = linear(f"{name}.gate_proj", width, hidden, bias=bias) if experts.gated else []
        rows += linear(f"{name}.up_proj", width, hidden, bias=bias)
        rows += linear(f"{name}.down_proj", hidden, width, bias=bias, rows=False)
    return rows + (linear(experts.shared_gate, 1, hidden, bias=False, split=False) if experts.shared_gate else [])


def _beside(part: Part) -> int:
    """Width of the shared experts' MLP; 0 without one."""
    return values.count(part.model, described(part).shared_width)


def beside(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors that the shared experts' MLP saves."""
    experts = described(part)
    if not (width := _beside(part)):
        return []
    one = engine.size * width
    rows = [
        SavedTensor("activation", one, "tensor", "activation"),
        _read("product", one, "tensor", "activation", _DOWN),
    ]
    if experts.gated:
        gate = SavedTensor("gate", one, "tensor", "mlp", in_forward_peak=False)
        rows = [gate, SavedTensor("up", one, "tensor", "mlp"), *rows]
    if experts.shared_gate:
        rows.append(SavedTensor("weighed output", engine.size * (part.model.hidden_size + 1), "token", "mlp"))
    return rows


_DOWN = ("down_proj",)
