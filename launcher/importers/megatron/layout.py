"""Degrees, sharding, number formats and recomputation of a Megatron-LM argument list.

Where ``validate_args`` itself repairs a setting, so does this, and says so in a sentence.
"""

from collections.abc import Mapping
from typing import Any

from launcher.config.ledger import Settings
from launcher.estimate.rank.stages import read_layout
from launcher.importers.megatron.model_sizes import Pattern
from launcher.importers.megatron.reader import ArgumentReader, first

_SHARDING = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}
_FP8_FORMATS = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
"""Formats that the translation chooses for a recipe (``launcher.backends.megatron.layout``)."""

_METHODS = ("recompute-method", "activations-checkpoint-method")
_LAYERS = ("recompute-num-layers", "activations-checkpoint-num-layers", "checkpoint-num-layers")
"""Spellings of today's Megatron-LM, then those of earlier ones."""


def parallel(reader: ArgumentReader, sizes: Mapping[str, Any], letters: Pattern | None = None) -> Settings:
    """Degrees, and where the layers go, as ``parallel.KEY``, for the sizes of a model or the letters of a hybrid."""
    old = reader.count("model-parallel-size", "parallel.tensor", default=1)  # Before there was another kind of it.
    tensor = reader.count("tensor-model-parallel-size", "parallel.tensor", default=old)
    pipeline = reader.count("pipeline-model-parallel-size", "parallel.pipeline", default=1)
    virtual = _virtual(reader, sizes["model.num_hidden_layers"], pipeline)
    free = _free(reader, sizes["model.mtp_layers"]) if letters is None else "|".join(letters.layout)
    if free and (chunks := _chunks(free)) % pipeline == 0:
        virtual = chunks // pipeline
    found = {
        "tensor": tensor,
        "pipeline": pipeline,
        "virtual_pipeline": virtual,
        "first_stage_layers": reader.count("decoder-first-pipeline-num-layers", "parallel.first_stage_layers"),
        "last_stage_layers": reader.count("decoder-last-pipeline-num-layers", "parallel.last_stage_layers"),
        "layout": free.split("|") if free and "(" not in free else [free] if free else [],
        "context": _context(reader),
        "expert": reader.count("expert-model-parallel-size", "parallel.expert", default=1),
        "expert_tensor": _expert_tensor(reader, has_experts="model.num_experts" in sizes),
        "sequence": _sequence(reader, tensor),
        "replicate": reader.count("num-distributed-optimizer-instances", "parallel.replicate", default=1),
        "schedule": "interleaved" if virtual > 1 else None,
    }
    return {f"parallel.{key}": value for key, value in found.items()}


def _free(reader: ArgumentReader, further: Any) -> str | None:
    """A layout chunk by chunk, without the backslashes that keep its signs from a shell.

    Where it has no letter for them, an earlier Megatron-LM builds layers of multi-token prediction before the loss.
    """
    found = reader.text("pipeline-model-parallel-layout", "parallel.layout", "parallel.virtual_pipeline")
    if found is None:
        return None
    found = found.replace("\\", "").strip("\"'")
    if isinstance(further, int) and further and "m" not in found and found.endswith("L"):
        reader.note("a layout without m: layers of multi-token prediction stand before the loss, as in the past")
        return f"{found[:-1]}{'m' * further}L"
    return found


def _chunks(free: str) -> int:
    try:
        return len(read_layout(free).sizes)
    except ValueError:
        return 1


def preset(degrees: Settings) -> str:
    """The preset whose name says most about the degrees; they are all set besides."""
    if degrees["parallel.expert"] > 1:
        return "ep"
    if degrees["parallel.pipeline"] > 1:
        return "tp_pp" if degrees["parallel.tensor"] > 1 else "pp"
    return "cp" if degrees["parallel.context"] > 1 and degrees["parallel.tensor"] == 1 else "tp"


def _expert_tensor(reader: ArgumentReader, *, has_experts: bool) -> Any:
    name = "expert-tensor-parallel-size"
    found = reader.count(name, "parallel.expert_tensor")
    if has_experts:
        return found
    reader.idle("the model has no experts", name)
    return None


def _context(reader: ArgumentReader) -> int:
    found = reader.count("context-parallel-size", "parallel.context", default=1)
    name = "ds-sequence-parallel-size"
    if reader.count(name, default=1) == 1:
        reader.ledger.default(reader.key(name))
    return int(found)


def _sequence(reader: ArgumentReader, tensor: Any) -> bool:
    found = reader.switch("sequence-parallel", "parallel.sequence")
    if found and tensor == 1:
        reader.note("--sequence-parallel at tensor degree 1: Megatron-LM switches it off, and so does the import")
    return found and tensor != 1


def _virtual(reader: ArgumentReader, layers: Any, pipeline: int) -> int:
    key, name = "parallel.virtual_pipeline", "num-layers-per-virtual-pipeline-stage"
    chunks = reader.count("num-virtual-stages-per-pipeline-rank", key, default=1)
    per_chunk = reader.count(name, key, "parallel.schedule")
    if per_chunk is None or not isinstance(layers, int):
        return int(chunks)
    if per_chunk < 1 or pipeline < 1 or layers % (pipeline * per_chunk):
        chunked = f"{layers} layers over {pipeline} stages in chunks of {per_chunk}"
        reader.wrong(name, per_chunk, f"{chunked} leave a rest, which Megatron-LM refuses")
        return 1
    found = layers // (pipeline * per_chunk)
    if found > 1 and pipeline == 1:
        reader.wrong(name, per_chunk, "Megatron-LM interleaves stages, and --pipeline-model-parallel-size is 1")
        return 1
    return int(found)


def zero(reader: ArgumentReader) -> str:
    """The distributed optimizer is ZeRO-1; Megatron-FSDP shards what its strategy says."""
    distributed = reader.switch("use-distributed-optimizer", "zero")
    fsdp = reader.switches(("use-megatron-fsdp", "use-custom-fsdp"), "zero")
    strategy = reader.word("data-parallel-sharding-strategy", "zero", default="optim_grads_params")
    stage = reader.count("zero-stage")
    if fsdp:
        if strategy not in _SHARDING:
            reader.wrong("data-parallel-sharding-strategy", strategy, f"is one of {', '.join(_SHARDING)}")
        if not distributed:
            reader.note("--use-megatron-fsdp without --use-distributed-optimizer: Megatron-LM adds it")
        return _SHARDING.get(strategy, "3")
    reader.idle("it is of --use-megatron-fsdp", "data-parallel-sharding-strategy")
    if stage is not None:
        return _deepspeed_stage(reader, stage)
    is_muon = "optimizer" in reader and reader.arguments["optimizer"].value == "dist_muon"
    return "1" if distributed or is_muon else "0"


def _deepspeed_stage(reader: ArgumentReader, stage: int) -> str:
    """Optimizer states over data ranks are the same in both; gradients and parameters are Megatron-FSDP's here."""
    if stage in (0, 1):
        reader.ledger.say(reader.key("zero-stage"), "zero")
        return str(stage)
    reader.leave("zero-stage", "memory: DeepSpeed shards gradients and parameters there, optimizer states alone here")
    return "1"


def precision(reader: ArgumentReader) -> tuple[str, Settings]:
    """The word for the computation, and the formats of gradients and optimizer that differ from its meaning."""
    bf16, fp16 = reader.switch("bf16", "precision"), reader.switch("fp16", "precision")
    if bf16 and fp16:
        reader.wrong("fp16", True, "Megatron-LM takes one of --bf16 and --fp16", ["--bf16", "--fp16"])
    half = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    narrow_products, settings = _quantised(reader, half)
    wide = "accumulate-allreduce-grads-in-fp32"  # A choice with fp16 alone.
    if half == "fp16":
        reader.leave(wide, "memory: gradients are kept and reduced in fp16 here, at half the bytes")
    else:
        reader.ledger.default(reader.key(wide))
    narrow = reader.switch("grad-reduce-in-bf16", "precision.accumulate", "precision.reduce")
    states = _states(reader)
    if narrow or states.pop("gradients", "fp32") == "bf16":
        settings |= dict.fromkeys(("gradients", "accumulate", "reduce"), "bf16")
    found = settings | states | _fsdp_formats(reader, half) | _loss_scale(reader, half)
    return narrow_products or half, {f"precision.{key}": value for key, value in found.items()}


def _quantised(reader: ArgumentReader, half: str) -> tuple[str | None, Settings]:
    wide = {"parameters": "fp32"} if half == "fp32" else {}
    recipe = reader.word("fp4-recipe", "precision.recipe", default="nvfp4")
    if reader.word("fp4-format", "precision") is not None:
        return "nvfp4", {"recipe": recipe, **wide}
    reader.idle("without --fp4-format nothing reads it", "fp4-recipe")
    old = reader.switches(("fp8-hybrid", "fp8-e4m3"), "precision")
    given = reader.word("fp8-format", "precision")
    recipe = reader.word("fp8-recipe", "precision.recipe", default="delayed")
    if given is None and not old:
        reader.idle("without --fp8-format nothing reads it", "fp8-recipe")
        return None, {}
    if given is not None and given != _FP8_FORMATS.get(recipe):
        reader.keep("fp8-format")
    return "fp8", {"recipe": recipe, **wide}


def _loss_scale(reader: ArgumentReader, half: str) -> Settings:
    keys = {"initial-loss-scale": "initial_loss_scale", "loss-scale-window": "loss_scale_window"}
    if half != "fp16":
        reader.idle("without --fp16 the loss is not scaled", "loss-scale", *keys)
        return {}
    if constant := reader.number("loss-scale", "precision.loss_scale"):
        reader.idle("a constant scale has neither", *keys)
        return {"loss_scale": constant}
    found = {says: reader.number(name, f"precision.{says}") for name, says in keys.items()}
    return {says: value for says, value in found.items() if value is not None}


def _states(reader: ArgumentReader) -> Settings:
    """The formats of ``--use-precision-aware-optimizer``; without it nothing reads them."""
    aware = reader.switch("use-precision-aware-optimizer", "precision.optimizer_states", "precision.master")
    key = "precision.optimizer_states"
    keys = {"main-grads-dtype": "precision.accumulate", "main-params-dtype": "precision.master"}
    keys |= {"exp-avg-dtype": key, "exp-avg-sq-dtype": key}
    found = {name: reader.word(name, says, default="fp32") for name, says in keys.items()}
    if not aware:
        reader.idle("without --use-precision-aware-optimizer nothing reads it", *keys)
        return {}
    first, second = found["exp-avg-dtype"], found["exp-avg-sq-dtype"]
    states = {"master": found["main-params-dtype"], "gradients": found["main-grads-dtype"]}
    if first == second:
        return states | {"optimizer_states": first}
    for name in ("exp-avg-dtype", "exp-avg-sq-dtype"):
        reader.leave(name, f"memory: {first} and {second} there, and fp32 for both here")
    return {"gradients": found["main-grads-dtype"]}


def _fsdp_formats(reader: ArgumentReader, half: str) -> Settings:
    """Megatron-FSDP sums gradients in the parameters' format unless it is told otherwise."""
    main_key, sum_key = "precision.master", "precision.accumulate"
    main = reader.word("megatron-fsdp-main-params-dtype", main_key, default="fp32")
    summed = reader.word("megatron-fsdp-main-grads-dtype", sum_key, default="auto")
    sent = reader.word("megatron-fsdp-grad-comm-dtype", "precision.reduce", default="auto")
    strategy = reader.word("data-parallel-sharding-strategy", default="optim_grads_params")
    is_fsdp = "use-megatron-fsdp" in reader or "use-custom-fsdp" in reader
    if not is_fsdp or not strategy.startswith("optim_grads"):
        names = [f"megatron-fsdp-{kind}-dtype" for kind in ("main-params", "main-grads", "grad-comm")]
        reader.idle("it is of --use-megatron-fsdp with sharded gradients", *names)
        return {}
    if sent not in ("auto", summed):
        effect = f"the maths: gradients are reduced as they are summed here: {summed}"
        reader.leave("megatron-fsdp-grad-comm-dtype", effect)
    if half != "fp32" and main not in ("fp32", "fp16"):
        reader.leave("megatron-fsdp-main-params-dtype", "memory: main parameters are fp32 here")
    settings: Settings = dict.fromkeys(("gradients", "accumulate", "reduce"), half if summed == "auto" else summed)
    return settings | ({"master": main} if main == "fp16" else {})


def checkpointing(reader: ArgumentReader) -> tuple[str, Settings]:
    """The kind of activation recomputation; what belongs to another kind has no effect."""
    mode = reader.word("recompute-granularity", "checkpointing")
    selective = reader.switch("recompute-activations", "checkpointing")
    old = reader.switch("checkpoint-activations", "checkpointing")
    layer = reader.switch("moe-layer-recompute", "checkpointing", "checkpointing.modules")
    method = first([reader.word(name, "checkpointing.method") for name in _METHODS])
    layers = first([reader.count(name, "checkpointing.layers") for name in _LAYERS])
    modules = [str(word) for word in reader.words("recompute-modules", "checkpointing.modules")]
    if old:
        reader.note("--checkpoint-activations is of an earlier Megatron-LM: every layer is recomputed")
    if selective:
        reader.note("--recompute-activations: --recompute-granularity selective, as in Megatron-LM")
    kind = "selective" if selective or (layer and mode is None) else mode
    kind = "full" if kind is None and (old or _METHODS[1] in reader) else kind or "none"
    if kind not in ("full", "selective", "none"):
        reader.wrong("recompute-granularity", mode, "is full or selective", ["--recompute-granularity full"])
        return "none", {}
    _idle(reader, kind)
    if layer and kind == "full":
        rule = "Megatron-LM refuses it beside full recomputation"
        reader.wrong("moe-layer-recompute", True, rule, ["--recompute-granularity selective"])
    moved = _offloaded(reader)
    if kind == "full":
        found = {"method": method or "uniform", "layers": layers or 1}
        return kind, {f"checkpointing.{key}": value for key, value in found.items()} | moved
    if layer:
        modules = list(dict.fromkeys([*(modules or ["core_attn"]), "moe"]))  # Megatron-core adds to its default.
    return kind, ({"checkpointing.modules": modules} if kind == "selective" and modules else {}) | moved


def _offloaded(reader: ArgumentReader) -> Settings:
    path, modules = "checkpointing.offload", "checkpointing.offload_modules"
    fine = reader.switch("fine-grained-activation-offloading", path)
    named = [str(word) for word in reader.words("offload-modules", modules)]
    layers = reader.count("cpu-offloading-num-layers", "checkpointing.layers")
    if fine:
        return {path: True, modules: named}
    if "offload-modules" in reader:
        reader.idle("it is of --fine-grained-activation-offloading", "offload-modules")
    return {path: True, "checkpointing.layers": layers} if layers else {}


def _idle(reader: ArgumentReader, kind: str) -> None:
    if kind != "full":
        reader.idle("it is of --recompute-granularity full", *_METHODS, *_LAYERS)
    if kind != "selective":
        reader.idle("it is of --recompute-granularity selective", "recompute-modules")


def graphs(reader: ArgumentReader) -> Settings:
    """Graphs of attention alone; of others the tables say what is left out."""
    values = {name: argument.value for name, argument in reader.arguments.items()}
    given = [name for name in ("cuda-graph-scope", "cuda-graph-modules") if name in values]
    if values.get("cuda-graph-impl") != "transformer_engine" or [values[name] for name in given] not in (
        ["attn"],
        [["attn"]],
    ):
        return {}
    for name in ("cuda-graph-impl", *given):
        reader.get(name, "train.cuda_graphs")
    return {"train.cuda_graphs": "attention"}
