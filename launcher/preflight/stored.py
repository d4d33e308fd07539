"""Compares saved weights and checkpoints with the model before submission: missing tensors and wrong shapes.

Only headers are read (``launcher.saved.headers``). A family lists the names of its tensors in a Hugging Face folder,
which are those that its worker reads; a family that lists none is not compared.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.estimate.rank.family import CheckpointNames
from launcher.estimate.rank.tensors import Weight
from launcher.saved import headers
from launcher.saved.headers import Shapes
from launcher.spec import ModelSpec, RunSpec, edit

_SHOWN = 3
_IN_NETWORK = "model.network."  # The prefix of a tensor's name in the checkpoints of the worker.


def weights(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of ``model.weights``, if this machine has the folder."""
    folder, wanted = Path(spec.model.weights or ""), expected(spec.model)
    if spec.model.weights is None or not folder.is_dir() or wanted is None:
        return
    try:
        found = _with_stacked(headers.safetensors(folder))
    except headers.Unreadable as error:
        from launcher.config.hub import repository as hub  # Late, because few runs need it.

        if hub.command(folder) is None:  # Weights not yet downloaded from the Hub have a message of their own.
            yield ConfigError("model.weights", spec.model.weights, str(error), ["model.weights=null"])
        return
    if scales := [f"{name}{end}" for name in found for end in headers.SCALES if f"{name}{end}" in found]:
        rule = f"its weights are quantised ({_some(scales)}), and launch reads weights in 16 or 32 bits only"
        yield ConfigError("model.weights", spec.model.weights, rule, ["model.weights=null"])
        return
    prefix = f"{next(iter(wanted)).partition('.')[0]}."
    # GPT-2's names lack the prefix.
    there = {name: found.get(name, found.get(name.removeprefix(prefix))) for name in wanted}
    names = families.of(spec.model).traits.names
    # TRL loads the vocabulary of the folder.
    if names is not None and spec.data.special_tokens and spec.task.name == "pretrain":
        for name in (names.embedding, names.head):
            shape = there.get(name)
            if shape is not None and shape[0] < wanted[name][0] and shape[1:] == wanted[name][1:]:
                there[name] = wanted[name]
    yield from _compared(spec, spec.model.weights, "model.weights", wanted, there, found)


_ONE = re.compile(r"(.+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w[123])\.weight")
"""The name of one expert's tensor in Mixtral's files (``w1`` is gate, ``w3`` is up) and in those of other models."""


def _with_stacked(found: Shapes) -> Shapes:
    """The shapes under the model's names, which stack a layer's experts into one tensor, gate above up."""
    rest, stacked = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for name, shape in found.items():
        match = _ONE.fullmatch(name)
        if match is None or len(shape) != 2:
            rest[name.replace(".block_sparse_moe.", ".mlp.")] = shape
            continue
        down = match[3] in ("down_proj", "w2")
        whole = f"{match[1]}.mlp.experts.{'down_proj' if down else 'gate_up_proj'}"
        count = max(int(match[2]) + 1, stacked.get(whole, (0,))[0])
        stacked[whole] = (count, shape[0] if down else 2 * shape[0], shape[1])
    return rest | stacked


def checkpoint(spec: RunSpec, folder: Path) -> Iterator[ConfigError]:
    """Errors of a ``torch.distributed.checkpoint`` folder: missing files, missing or wrong tensors."""
    try:
        found = headers.distributed(folder)
    except headers.Unreadable as error:
        yield ConfigError("save.load", str(folder), str(error), ["save.load=null"])
        return
    if found is None:
        return
    missing = sorted(name for name in found.files if not (folder / name).is_file())
    if missing:
        rule = f"{len(missing)} of the checkpoint's {len(found.files)} files are missing: {_some(missing)}"
        yield ConfigError("save.load", str(folder), rule, ["save.load=null"])
    wanted, names = expected(spec.model), [name for name in found.shapes if name.startswith(_IN_NETWORK)]
    if wanted is None or not names or spec.adapter.name != "none":
        return
    there = {name.removeprefix(_IN_NETWORK): found.shapes[name] for name in names}
    yield from _compared(spec, str(folder), "save.load", wanted, {name: there.get(name) for name in wanted}, there)


def _compared(
    spec: RunSpec, place: str, path: str, wanted: Shapes, found: dict[str, tuple[int, ...] | None], everything: Shapes
) -> Iterator[ConfigError]:
    """One error that counts and names missing, unknown and wrong-shaped tensors; unknown ones alone are no error."""
    lacking = [name for name, shape in found.items() if shape is None]
    otherwise = [
        f"{name}: {_shape(shape)} found, {_shape(wanted[name])} expected"
        for name, shape in found.items()
        if shape is not None and shape != wanted[name]
    ]
    if not lacking and not otherwise:
        return
    prefix = f"{next(iter(wanted)).partition('.')[0]}."
    unknown = [name for name in everything if name not in wanted and f"{prefix}{name}" not in wanted]
    counts = [
        ("lacks", "tensors of this model", lacking),
        ("has", "unknown to it", unknown),
        ("has", "of another shape", otherwise),
    ]
    rule = "; ".join(f"{verb} {len(names)} {what} ({_some(names)})" for verb, what, names in counts if names)
    yield ConfigError(path, place, rule, _ways(spec, path, place, everything))


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _ways(spec: RunSpec, path: str, place: str, found: Shapes) -> Iterator[str]:
    """Ways out: the model in the folder's own configuration, the sizes that its shapes imply, or not loading it."""
    if (Path(place) / "config.json").is_file():
        yield f"launch import hf {place}/config.json"
    sizes = _sizes(spec.model, found)
    if sizes:
        yield " ".join(edit.override(f"model.{key}", value) for key, value in sizes.items())
    yield f"{path}=null"


def _sizes(model: ModelSpec, found: Shapes) -> dict[str, int]:
    names = families.of(model).traits.names
    if names is None:
        return {}
    sizes: dict[str, int] = {}
    if len(table := found.get(names.embedding, ())) == 2:
        sizes |= {"vocab_size": table[0], "hidden_size": table[1]}
    pattern = re.compile(re.escape(names.block).replace(re.escape("{}"), r"(\d+)"))
    layers = {int(match[1]) for name in found if (match := pattern.match(name))}
    if layers:
        sizes["num_hidden_layers"] = len(layers)
    first = found.get(f"{names.block.format(0)}.{names.mlp_inputs[0]}.weight", ())
    if len(first) == 2:
        sizes["intermediate_size"] = first[1 if families.of(model).traits.transposed else 0]
    return {key: size for key, size in sizes.items() if getattr(model, key) != size}


def expected(model: ModelSpec) -> Shapes | None:
    """Names and shapes of a model's tensors in a Hugging Face folder; None if its family does not list them."""
    family = families.of(model)
    names = family.traits.names
    if names is None or family.transformers_config(model) is None:
        return None
    found = {_outer(each, names): each.shape for each in family.embedding(model, model.vocab_size)}
    for layer in range(model.num_hidden_layers):
        block = names.block.format(layer)
        for each in family.block(model, layer):
            found[f"{block}.{each.name}"] = _stored(each, transposed=family.traits.transposed)
    return found | {_outer(each, names): each.shape for each in family.head(model, model.vocab_size)}


def _outer(weight: Weight, names: CheckpointNames) -> str:
    kind = weight.name.rpartition(".")[2]
    if weight.name.startswith("norm."):
        return f"{names.norm}.{kind}"
    outer = {"embed_tokens.weight": names.embedding, "embed_positions.weight": names.positions}
    return outer.get(weight.name, names.head)


def _stored(weight: Weight, *, transposed: bool) -> tuple[int, ...]:
    """The shape in the file: tensors of equal experts are stacked, and ``Conv1D`` stores the transposed matrix."""
    shape = weight.shape[::-1] if transposed and len(weight.shape) == 2 else weight.shape
    return (weight.copies, *shape) if weight.copies > 1 else shape
