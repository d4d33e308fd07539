"""The layers of a model: the kind of each, its steps, and facts that follow from the kinds of its steps."""

from dataclasses import replace
from functools import lru_cache

from launcher.estimate.families._decoders import kinds, values
from launcher.estimate.families._decoders.description import Step
from launcher.estimate.families._decoders.kinds import Kind, Mixer, Part
from launcher.estimate.rank.tensors import NO_SCANS, Scans
from launcher.spec import ModelSpec

words = values.named  # The kind of each layer; empty for a model whose layers are all attention and an MLP or experts.


def word(model: ModelSpec, layer: int) -> str:
    """The kind of one layer; beyond the last named layer that one's kind, since rules refuse such a model."""
    named = words(model)
    return named[min(layer, len(named) - 1)] if named else ""


def steps(model: ModelSpec, layer: int) -> tuple[Step, ...]:
    """The steps of one layer; empty for an unknown kind, since rules refuse such a model."""
    return values.decoder(model).steps.get(word(model, layer), ())


def parts(model: ModelSpec, layer: int) -> list[tuple[Kind, Part]]:
    """The parts of a layer with the kind of each, in order."""
    part = Part(model, values.decoder(model), layer)
    if part.found.layers is None:
        return [
            (kind, part)
            for kind in kinds.all_of(("attention", part.found.experts.kind if part.found.experts else "mlp"))
        ]
    return [(kind, of_step(part, step)) for step in steps(model, layer) for kind in kinds.all_of(step.kinds)]


def of_step(part: Part, step: Step) -> Part:
    """The part of a layer for one step, with the step's own changes to the description."""
    return part._replace(found=replace(part.found, **step.own)) if step.own else part


def width(part: Part, step: Step) -> int:
    """The width of a step's norm; attention's may cover the embeddings beside the residual stream."""
    return part.model.hidden_size * (part.found.joined if step.kinds[0] == "attention" else 1)


@lru_cache(maxsize=256)
def packages(model: ModelSpec) -> tuple[str, ...]:
    """The packages with the GPU kernels of the model's layers."""
    return tuple(dict.fromkeys(name for kind in _mixers(model) for name in kind.PACKAGES))


def unwrapped(model: ModelSpec) -> tuple[str, ...]:
    """The linear layers that no adapter may wrap."""
    return (*values.decoder(model).unwrapped, *(name for kind in _mixers(model) for name in kind.UNWRAPPED))


def _mixers(model: ModelSpec) -> list[Mixer]:
    """All mixers of a model's layers."""
    named = [step for word in dict.fromkeys(words(model)) for step in values.decoder(model).steps.get(word, ())]
    return [kind for step in named for kind in kinds.all_of(step.kinds) if isinstance(kind, Mixer)]


def computed(model: ModelSpec) -> ModelSpec:
    """The model, with all experts chosen if all of them compute every token."""
    experts = values.decoder(model).experts
    return replace(model, num_experts_per_tok=model.num_experts) if experts and experts.every else model


def attends(model: ModelSpec, layer: int) -> bool:
    """True if a layer has attention."""
    return any(kind.MODULE == "attention" for kind, _ in parts(model, layer))


def users(model: ModelSpec, layer: int) -> list[int]:
    """The layers that use the same shared block as a layer; empty if it uses none."""
    if not values.decoder(model).shared or word(model, layer) != "hybrid":
        return []
    every = [number for number, each in enumerate(words(model)) if each == "hybrid"]
    blocks = max(values.size(model, values.decoder(model), "blocks"), 1)
    return every[every.index(layer) % blocks :: blocks]


def sums(model: ModelSpec, layer: int) -> int:
    """Number of sums with the residual stream in a layer."""
    return sum(step.summed for step in steps(model, layer)) if words(model) else 2


@lru_cache(maxsize=256)
def scans(model: ModelSpec, layer: int, size: int) -> Scans:
    """The scan kernels of a layer, which multiply no weight and are not attention's, per token."""
    found = NO_SCANS
    for kind, part in parts(model, layer):
        if isinstance(kind, Mixer):
            ahead, back = kind.scans(part, size)
            found = Scans((*found.forward, *ahead), (*found.backward, *back))
    return found
