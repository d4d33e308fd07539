"""A free pipeline layout holds every layer of the model once, in its order, in as many chunks as the pipeline has."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.estimate.rank import free_layout
from launcher.spec import RunSpec, edit

PATH = "parallel.layout"


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """What Megatron-core demands of it (``PipelineParallelLayerLayout.validate_layer_layout``)."""
    parts, parallel = spec.parallel.layout, spec.parallel
    if not parts or parallel.pipeline == 1:
        return
    text = "|".join(parts)
    chunks = parallel.pipeline * parallel.virtual_pipeline
    even = free_layout.even(spec.model.num_hidden_layers, spec.model.mtp_layers, chunks)
    ways = [edit.override(PATH, even), f"{PATH}=[]"]
    for name in ("first_stage_layers", "last_stage_layers"):
        if getattr(parallel, name) is not None:
            rule = "the layout says the layers of every stage (parallel.layout)"
            yield ConfigError(f"parallel.{name}", getattr(parallel, name), rule, [f"parallel.{name}=null"])
    try:
        layout = free_layout.read(text)
    except ValueError as error:
        yield ConfigError(PATH, text, str(error), ways)
        return
    found = len(layout.sizes)
    if found != chunks:
        if found % parallel.pipeline == 0:
            ways = [f"parallel.virtual_pipeline={found // parallel.pipeline}", *ways]
        rule = f"it has {found} model chunks, and pipeline {parallel.pipeline} x virtual_pipeline"
        yield ConfigError(PATH, text, f"{rule} {parallel.virtual_pipeline} are {chunks}", ways)
    elif (broken := _broken(spec, layout)) is not None:
        yield ConfigError(PATH, text, broken, ways)


def _broken(spec: RunSpec, layout: free_layout.Layout) -> str | None:
    letters, model = layout.letters, spec.model
    if not (letters.startswith("E") and letters.endswith("L") and letters.count("E") == letters.count("L") == 1):
        return "it begins with the one embedding (E) and ends with the one loss (L)"
    if letters.count("t") != model.num_hidden_layers:
        return f"it has {letters.count('t')} layers (t), and the model {model.num_hidden_layers}"
    if letters.count("m") != model.mtp_layers:
        found = letters.count("m")
        return f"it has {found} layers of multi-token prediction (m), and model.mtp_layers is {model.mtp_layers}"
    if "t" in letters[letters.find("m") :] and "m" in letters:
        return "layers of multi-token prediction (m) follow all others"
    holders = [place for place, count in enumerate(layout.predicted) if count]
    stages, chunks = spec.parallel.pipeline, spec.parallel.virtual_pipeline
    if len(holders) > 1 or any(place < stages * (chunks - 1) for place in holders):
        return "layers of multi-token prediction (m) are all in one chunk, the last of its stage"
    if stages > 1 and any(place % stages == 0 for place in holders):
        return "layers of multi-token prediction (m) are not on the first stage, where Megatron-LM waits for ever"
    return None
