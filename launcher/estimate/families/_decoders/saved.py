"""Tensors that a decoder's blocks save for their backward pass, in bytes per token.

Counted as in ``families._transformers``, by reading the tensors that autograd saves for each class's own modules; a
test repeats it. Parameters, rotary tables, masks and token ids are left out.
"""

from dataclasses import replace

from launcher.estimate.families import _transformers
from launcher.estimate.families._decoders import kinds, layers, values
from launcher.estimate.families._decoders.description import Decoder, Step
from launcher.estimate.families._decoders.kinds import Kind, Part
from launcher.estimate.families._transformers import OUTPUT, STREAM, _read, behind, inside
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor
from launcher.spec import ModelSpec

_FP32 = 4


def block(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by a layer's norms and by each of its parts."""
    found = values.decoder(model)
    if found.layers is not None:
        return [row for step in layers.steps(model, layer) for row in _step(model, found, layer, step, engine)]
    (one, part), (other, _) = layers.parts(model, layer)
    attention, mlp = one.readers(part), _plain_readers(other, part)
    core, inner, word = one.saved(part, engine), other.saved(part, engine), other.MODULE
    if found.parallel and not found.second:
        return _side_by_side(model, found, engine, word, (attention, core), (mlp, inner))
    rows = behind(_before(model, found, engine, found.first, attention), "attention", core)
    rows += inside("norm", _after(model, found, engine, found.after_attention), "output of attention")
    between = _before(model, found, engine, found.second, mlp)
    # If both norms read the same residual stream, the kernels share one saved tensor.
    rows += behind(between[1:] if found.parallel and found.norm_code == "kernel" else between, word, inner)
    return rows + inside("norm", _after(model, found, engine, found.after_mlp), f"output of {word}")


def _plain_readers(kind: Kind, part: Part) -> tuple[str, ...]:
    """The readers of the norm's output without a shared MLP, which reads the same tensor as the router."""
    found = kind.readers(part)
    return found[:2] if kind.MODULE == "experts" else found


def _keeping(kind: Kind, part: Part, engine: EngineTraits) -> tuple[str, ...]:
    """The readers that keep the norm's output: an fp32 router has its own copy, and experts take copies of tokens."""
    copied = kind.MODULE == "experts" and part.found.experts and part.found.experts.wide
    return kind.readers(part)[2 if copied and engine.residual_size < _FP32 else 0 :]


def _step(model: ModelSpec, found: Decoder, layer: int, step: Step, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by a step: its norm, and the parts of the block that read the norm's output."""
    part, every = layers.of_step(Part(model, found, layer), step), kinds.all_of(step.kinds)
    together = every[:1] if found.scaled else every
    readers = tuple(name for kind in together for name in _keeping(kind, part, engine))
    first, *others = every
    width = layers.width(part, step)
    rows = behind(_before(model, found, engine, step.norm, readers, width), first.MODULE, first.saved(part, engine))
    for kind in others:
        own = _output(model.hidden_size, engine, kind.readers(part)) if found.scaled else []
        rows += inside(kind.MODULE, [*own, *kind.saved(part, engine)], f"input of {first.MODULE}")
    return rows


type _Rows = tuple[tuple[str, ...], list[SavedTensor]]


def _side_by_side(
    model: ModelSpec, found: Decoder, engine: EngineTraits, word: Module, attention: _Rows, inner: _Rows
) -> list[SavedTensor]:
    """Tensors of attention and an MLP that share one norm's output, unless each linear layer saves its own cast.

    ``attention`` and ``inner`` are their readers and their saved tensors.
    """
    read = OUTPUT if engine.autocast else ""
    rows: list[SavedTensor] = []
    for row in _before(model, found, engine, found.first, (*attention[0], *inner[0])):
        if row.name not in (OUTPUT, STREAM):
            rows += inside("norm", [row], "input of the norm")
        elif engine.autocast:
            rows += inside("attention" if row.readers[0] in found.inputs else word, [row], read)
        else:
            rows.append(row)
    return rows + inside("attention", attention[1], read) + inside(word, inner[1], read)


def saves_input(model: ModelSpec, engine: EngineTraits) -> bool:
    """True if the first norm, or without one the linear layers, keep the block's input as it is."""
    found = values.decoder(model)
    if not found.first:
        return not engine.autocast
    if found.norm_code in ("llama", "gemma", "wide kernel"):
        return engine.residual_size == _FP32 or (engine.fused_norm and found.norm_code == "llama")
    return found.norm_code == "kernel"


def after_blocks(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the last norm, whose output the output projection reads."""
    found = values.decoder(model)
    return _before(model, found, engine, found.last or "norm", ("lm_head",))


def backward_extra(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients at the peak of a block's backward pass: inside one of its parts, and that of the residual stream.

    The last step runs first, beside all saved tensors; each earlier one runs after what followed it has been freed.
    """
    found = values.decoder(model)
    if found.layers is None:
        if found.experts and found.experts.kind == "experts":
            return _transformers.backward_extra(model, engine, model.moe_intermediate_size * model.num_experts_per_tok)
        inside_mlp = layers.parts(model, layer)[-1]
        return [*inside_mlp[0].gradients(inside_mlp[1], engine), _of_stream(model, engine)]
    fullest: list[SavedTensor] = []
    freed = 0
    for step in reversed(layers.steps(model, layer)):
        part, behind_kinds = layers.of_step(Part(model, found, layer), step), 0
        for kind in reversed(kinds.all_of(step.kinds)):
            rows = kind.gradients(part, engine)
            beyond = sum(row.bytes for row in rows) - freed - behind_kinds
            if beyond > sum(row.bytes for row in fullest):
                fullest = [replace(rows[0], bytes=beyond)]
            behind_kinds += _bytes(kind.saved(part, engine), model)
        freed += _bytes(_step(model, found, layer, step, engine), model)
    return [*fullest, _of_stream(model, engine)]


def _bytes(rows: list[SavedTensor], model: ModelSpec) -> int:
    """Bytes of rows per token without any split among ranks."""
    return sum(row.bytes * (model.num_experts_per_tok if row.share.startswith("routed") else 1) for row in rows)


def _of_stream(model: ModelSpec, engine: EngineTraits) -> SavedTensor:
    return SavedTensor("gradient of the residual stream", engine.residual_size * model.hidden_size, "residual", "mlp")


def first_norm_backward(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors of the first norm's backward pass: those that it saved, and its gradients."""
    found = values.decoder(model)
    if not found.first:
        size = 2 * engine.residual_size * model.hidden_size
        return [*_stream(model, engine, found.inputs), SavedTensor("gradients", size, "residual", "norm")]
    products = {"llama": 16, "gemma": 16, "cohere": 16, "wide kernel": 8}.get(found.norm_code, engine.residual_size)
    size = (products + engine.residual_size) * model.hidden_size
    rows = _before(model, found, engine, found.first, ("",))
    return [*rows, SavedTensor("gradients of a norm", size, "residual", "norm")]


def _before(
    model: ModelSpec, found: Decoder, engine: EngineTraits, name: str, readers: tuple[str, ...], width: int = 0
) -> list[SavedTensor]:
    """A norm and what the linear layers after it save; without a norm they save the residual stream."""
    if not name:
        return _stream(model, engine, readers)
    width = width or model.hidden_size
    return [*_norm(width, found, engine), *_output(width, engine, readers)]


def _stream(model: ModelSpec, engine: EngineTraits, readers: tuple[str, ...]) -> list[SavedTensor]:
    return [replace(row, name=STREAM) for row in _output(model.hidden_size, engine, readers)]


def _after(model: ModelSpec, found: Decoder, engine: EngineTraits, name: str) -> list[SavedTensor]:
    return _norm(model.hidden_size, found, engine) if name else []


def _output(size: int, engine: EngineTraits, readers: tuple[str, ...]) -> list[SavedTensor]:
    """Inputs that linear layers save: one for all of them, or under autocast a cast copy for each."""
    if engine.autocast:
        return [_read(OUTPUT, engine.size * size, "token", "norm", (reader,)) for reader in readers]
    return [_read(OUTPUT, engine.residual_size * size, "token", "norm", readers)] if readers else []


def _norm(size: int, found: Decoder, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors that a norm itself saves.

    Gemma's multiplies by its weight in fp32; Cohere's LayerNorm is Python code that saves the centred values twice.
    """
    whole = engine.residual_size
    if found.norm_code == "kernel":
        return [SavedTensor("LayerNorm", whole * size + 2 * (whole if engine.cpu else _FP32), "residual", "norm")]
    if found.norm_code == "wide kernel":
        return [SavedTensor("LayerNorm in fp32", _FP32 * size + 2 * _FP32, "residual", "norm")]
    wide = found.norm_code in ("gemma", "cohere")
    scaled = _read("normalized values", (_FP32 if wide else whole) * size, "residual", "norm", ("norm",))
    if found.norm_code == "cohere":
        return [SavedTensor("centred values", 2 * _FP32 * size + _FP32, "residual", "norm"), scaled]
    if engine.fused_norm and found.norm_code == "llama":
        return [SavedTensor("RMSNorm", whole * size + _FP32, "residual", "norm")]
    return [SavedTensor("RMSNorm", _FP32 * size + _FP32, "residual", "norm"), scaled]
