"""Megatron-LM argument lists: shell scripts, the YAML of its functional tests, JSON.

Every flag ends in one list of the ledger. Arguments without a setting of their own here on which the engine acts travel
in ``backend.extra``; those that raise memory or change the model beyond what is counted are left out, and matter.
"""

import re
from collections.abc import Mapping

from launcher.config.ledger import Settings, name_from
from launcher.importers import Imported
from launcher.importers.megatron import data_and_saves, layout, model_sizes, steps_and_optimizer
from launcher.importers.megatron.arguments import DEFAULTS, MEANINGS, Meaning, by_value
from launcher.importers.megatron.kinds import refuse
from launcher.importers.megatron.model_sizes import is_local, model
from launcher.importers.megatron.parse import parse
from launcher.importers.megatron.reader import ArgumentReader, ledger_of
from launcher.importers.megatron.vocabulary import multiple

HAS_VARIABLES = True  # A list may be a script, whose variables ``--set`` gives.
_SOURCE = "a Megatron-LM argument list"
_EXTRA_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_LOCAL = "backend.extra.transformer-impl"


def read(text: str, path: str, *, variables: Mapping[str, str] | None = None) -> Imported:
    """Read an argument list (:func:`parse`); another model, a missing size or a wrong value is in ``errors``."""
    parsed = parse(text, path, variables)
    reader = ArgumentReader(parsed, path, ledger_of(parsed), list(parsed.errors), list(parsed.not_understood))
    name = name_from(path.rpartition("/")[2].partition(".")[0])
    choose, settings = _run(reader)
    settings = {"model.name": name, **settings, "model.source": _SOURCE}
    refuse(reader, hybrid="model.extra" in settings)
    settings |= _rest(reader)
    return reader.ledger.imported(
        summary=f"The Megatron-LM run {name}",
        source=_SOURCE,
        choose=choose,
        settings={key: value for key, value in settings.items() if value is not None or key.startswith("model.")},
        not_understood=reader.not_understood,
        errors=reader.errors,
    )


def _run(reader: ArgumentReader) -> tuple[dict[str, str], Settings]:
    letters = model_sizes.pattern(reader)
    sizes = model(reader, letters)
    degrees = layout.parallel(reader, sizes, letters)
    compute, formats = layout.precision(reader)
    recompute, details = layout.checkpointing(reader)
    batches = steps_and_optimizer.batches(reader)
    stepped, optimizer = steps_and_optimizer.optimizer(reader, batches)
    source, data = data_and_saves.data(
        reader, evaluates=bool(batches.get("train.eval_every")), vocabulary=sizes["model.vocab_size"]
    )
    tracking, project = data_and_saves.tracker(reader)
    choose = {
        "parallel": layout.preset(degrees),
        "zero": layout.zero(reader),
        "precision": compute,
        "checkpointing": recompute,
        **source,
        **stepped,
        **tracking,
    }
    settings = {**sizes, **multiple(reader), **degrees, **formats, **details, **batches, **layout.graphs(reader)}
    settings |= steps_and_optimizer.steps(reader, batches) | optimizer | data | data_and_saves.saves(reader) | project
    settings |= _fused_step(reader, stepped["optimizer"])
    return choose, settings | data_and_saves.nodes(reader) | data_and_saves.others(reader)


def _fused_step(reader: ArgumentReader, optimizer: str) -> Settings:
    """The fused optimizer of Apex, which Megatron-core's own layers show to be there unless they do without it.

    Gradients that products accumulate need Apex' kernel (``tensor_parallel/layers.py``, ``ColumnParallelLinear``), and
    where Apex is, ``optimizer/__init__.py`` takes its FusedAdam and FusedSGD.
    """
    without = {"no-gradient-accumulation-fusion", "optimizer-cpu-offload"}
    apex = is_local(reader) and optimizer in ("adamw", "sgd") and not reader.arguments.keys() & without
    return {"optimizer.fused": True} if apex else {}


def _rest(reader: ArgumentReader) -> Settings:
    settings: Settings = {}
    values = {name: argument.value for name, argument in reader.arguments.items()}
    for name, argument in reader.arguments.items():
        if not reader.ledger.is_open(f"--{argument.spelling}"):
            continue
        if name == "spec":
            settings |= _layers(reader)
        elif name in DEFAULTS and DEFAULTS[name] == argument.value:
            reader.ledger.default(reader.key(name))
        else:
            _enter(reader, name, by_value(name, values) or MEANINGS.get(name))
    return settings | {f"backend.extra.{spelling}": value for spelling, value in reader.extra.items()}


def _enter(reader: ArgumentReader, name: str, found: Meaning | None) -> None:
    if found is None:
        return
    if name in reader.parsed.unset:
        reader.get(name, "" if found.effect is None or found.matters else "save.")
    elif found.effect is None and _EXTRA_KEY.match(reader.arguments[name].spelling):
        reader.keep(name)
    elif found.effect is not None:
        reader.leave(name, found.effect, matters=found.matters)


def _layers(reader: ArgumentReader) -> Settings:
    """Enter ``--spec``: Megatron-core's own layers, the default of Transformer Engine, or another model."""
    value = str(reader.arguments["spec"].value)
    if is_local(reader) or re.search(r"get_gpt_(layer|decoder)\w*local", value):
        reader.get("spec", _LOCAL, "model.attention")
        return {_LOCAL: "local"}
    if re.search(r"gpt_layer_specs|get_gpt_(layer|decoder)|(hybrid|mamba)_stack_spec", value):
        reader.ledger.default(reader.key("spec"))
    else:
        reader.leave("spec", "the model there is another: its layers are those of a module of its own")
    return {}
