"""Rules about the world size and the parallel degrees in it, and about a free layout of pipeline stages."""

from collections.abc import Iterator
from itertools import chain
from math import gcd

from launcher.base.errors import ConfigError
from launcher.estimate.rank.stages import Layout, even_layout, read_layout
from launcher.spec import RunSpec, edit

_LAYOUT = "parallel.layout"
_DEGREES = ("tensor", "pipeline", "context", "ulysses")
_LARGEST_NODE = 8
"""GPUs of the usual node (HGX boards carry 8): past it a way out adds nodes instead of GPUs per node."""


def ranks(spec: RunSpec) -> str:
    """The world size in words: ``"8 GPUs"``, or ``"2 CPU ranks"``."""
    noun = "GPU" if spec.hardware.device == "cuda" else "CPU rank"
    return f"{spec.gpus} {noun}{'s' if spec.gpus != 1 else ''}"


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors if the ranks of one model copy do not divide the world, and of a free layout."""
    if not _divides(spec):
        yield _indivisible(spec)
    yield from _layout(spec)


def _divides(spec: RunSpec) -> bool:
    return spec.gpus % spec.model_parallel == 0


def _indivisible(spec: RunSpec) -> ConfigError:
    used = [name for name in _DEGREES if getattr(spec.parallel, name) > 1]
    largest = max(used, key=lambda name: int(getattr(spec.parallel, name)))
    product = " x ".join(f"{name} {getattr(spec.parallel, name)}" for name in used)
    equals = f" = {spec.model_parallel}" if len(used) > 1 else ""
    return ConfigError(
        f"parallel.{largest}",
        getattr(spec.parallel, largest),
        f"the ranks of one model copy ({product}{equals}) must divide the {ranks(spec)}",
        chain(_smaller_degrees(spec, used), _larger_worlds(spec)),
    )


def _smaller_degrees(spec: RunSpec, used: list[str]) -> Iterator[str]:
    for name in sorted(used, key=lambda name: -int(getattr(spec.parallel, name))):
        yield from edit.nearest(spec, f"parallel.{name}", edit.divisors(spec.gpus), _divides, limit=3)


def _larger_worlds(spec: RunSpec) -> Iterator[str]:
    per_node, nodes = spec.cluster.gpus_per_node, spec.cluster.nodes
    larger_nodes = range(per_node + 1, _LARGEST_NODE + 1)
    step = spec.model_parallel // gcd(spec.model_parallel, per_node)
    yield from edit.nearest(spec, "cluster.gpus_per_node", larger_nodes, _divides, limit=1)
    yield from edit.nearest(spec, "cluster.nodes", [(nodes // step + 1) * step], _divides, limit=1)


def _layout(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of a layout that Megatron-core refuses (``PipelineParallelLayerLayout.validate_layer_layout``)."""
    parts, parallel = spec.parallel.layout, spec.parallel
    if not parts or parallel.pipeline == 1:
        return
    text = "|".join(parts)
    chunks = parallel.pipeline * parallel.virtual_pipeline
    even = even_layout(spec.model.num_hidden_layers, spec.model.mtp_layers, chunks)
    ways = [edit.override(_LAYOUT, even), f"{_LAYOUT}=[]"]
    rule = "parallel.layout already sets the layers of every stage"
    yield from edit.refused(spec, "parallel.first_stage_layers parallel.last_stage_layers", rule)
    try:
        layout = read_layout(text)
    except ValueError as error:
        yield ConfigError(_LAYOUT, text, str(error), ways)
        return
    found = len(layout.sizes)
    if found != chunks:
        if found % parallel.pipeline == 0:
            ways = [f"parallel.virtual_pipeline={found // parallel.pipeline}", *ways]
        rule = f"it has {found} model chunks, but pipeline {parallel.pipeline} x virtual_pipeline"
        yield ConfigError(_LAYOUT, text, f"{rule} {parallel.virtual_pipeline} = {chunks}", ways)
    elif (broken := _broken(spec, layout)) is not None:
        yield ConfigError(_LAYOUT, text, broken, ways)


def _broken(spec: RunSpec, layout: Layout) -> str | None:
    letters, model = layout.letters, spec.model
    if not (letters.startswith("E") and letters.endswith("L") and letters.count("E") == letters.count("L") == 1):
        return "it must start with the one embedding (E) and end with the one loss (L)"
    if letters.count("t") != model.num_hidden_layers:
        return f"it has {letters.count('t')} layers (t), but the model has {model.num_hidden_layers}"
    if letters.count("m") != model.mtp_layers:
        found = letters.count("m")
        return f"it has {found} multi-token prediction layers (m), but model.mtp_layers is {model.mtp_layers}"
    if "t" in letters[letters.find("m") :] and "m" in letters:
        return "multi-token prediction layers (m) must follow all others"
    holders = [place for place, count in enumerate(layout.predicted) if count]
    stages, chunks = spec.parallel.pipeline, spec.parallel.virtual_pipeline
    if len(holders) > 1 or any(place < stages * (chunks - 1) for place in holders):
        return "multi-token prediction layers (m) must all be in one chunk, the last of its stage"
    if stages > 1 and any(place % stages == 0 for place in holders):
        return "multi-token prediction layers (m) must not be on the first stage, where Megatron-LM hangs"
    return None
