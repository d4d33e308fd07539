"""torchtitan's configurations: TOML of releases up to 0.2, and Python functions of 0.3 (``config_registry.py``).

Its models train from fresh weights in fp32 with bf16 computation, sharded by FSDP2 over the ranks that other degrees
leave. Sections that were renamed between releases are read under both names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.base.files import JsonObject
from launcher.config.ledger import Ledger
from launcher.importers import Imported, _foreign, _python, _trainer
from launcher.importers._reading import Reading
from launcher.importers._table import (
    Row,
    apply,
    by,
    choose,
    count,
    defaults,
    flag,
    idle,
    imported,
    later,
    number,
    off,
    other,
    say_text,
    switch,
    usual,
    words,
)  # fmt: skip

HAS_VARIABLES = True

_MODELS = {
    ("llama3", "8b"): "llama3_8b", ("llama3", "70b"): "llama3_70b", ("llama3", "405b"): "llama3_405b",
    ("qwen3", "8b"): "qwen3_8b", ("qwen3", "32b"): "qwen3_32b", ("qwen3", "30b-a3b"): "qwen3_30b_a3b",
    ("deepseek_v3", "671b"): "deepseek_v3",
}  # fmt: skip
_ON_THE_HUB = {
    ("llama3", "1b"): "meta-llama/Llama-3.2-1B", ("llama3", "3b"): "meta-llama/Llama-3.2-3B",
    **{("qwen3", size.lower()): f"Qwen/Qwen3-{size}" for size in ("0.6B", "1.7B", "4B", "14B", "235B-A22B")},
    ("gpt_oss", "20b"): "openai/gpt-oss-20b",
    ("gpt_oss", "120b"): "openai/gpt-oss-120b",
}  # fmt: skip
_DEBUG = {  # models/llama3/__init__.py
    "model.hidden_size": 256, "model.num_hidden_layers": 6, "model.num_attention_heads": 16, "model.vocab_size": 2048,
    "model.num_key_value_heads": 16, "model.intermediate_size": 768, "model.rope_theta": 500000.0,
}  # fmt: skip
_ORGANISATIONS = (("llama", "meta-llama"), ("qwen", "Qwen"), ("deepseek", "deepseek-ai"), ("gpt-oss", "openai"))
_SETS: Mapping[str, Mapping[str, Any]] = {
    "c4": {"data": "huggingface", "data.path": "allenai/c4", "data.config": "en"},
    "c4_validation": {
        "data": "huggingface",
        "data.path": "allenai/c4",
        "data.config": "en",
        "data.split": "validation",
    },
    "c4_test": {"data": "text", "data.path": "tests/assets/c4_test"},
}
_SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "interleavedzerobubble": "zero_bubble",
    "zbvzerobubble": "zbv", "dualpipev": "dualpipe_v",
}  # fmt: skip
_DECAYS = {"linear": "linear", "cosine": "cosine", "sqrt": "minus_sqrt"}
_DEFAULTS: Mapping[str, Any] = {
    "parallel": "fsdp", "precision": "bf16", "checkpointing": "selective", "train.micro_batch_size": 8,
    "train.sequence_length": 2048, "train.steps": 10000, "optimizer.lr": 8e-4, "data.eval_fraction": 0.0,
}  # fmt: skip


def read(text: str, path: str, *, variables: Mapping[str, str] | None = None) -> Imported:
    """Read a torchtitan configuration; of a Python text with several functions ``config`` names one.

    Raises:
        ConfigErrors: The text is none, or several configurations.
    """
    notes: list[str] = []
    python = path.endswith(".py") or (not path.endswith((".toml", ".json")) and _foreign.is_python(text))
    if python:
        followed = _python.Followed(text, path)
        content, notes = _sections(followed.function((variables or {}).get("config"))), followed.notes
    else:
        content = _foreign.content_of(text, path, "a configuration of torchtitan")
    reading = Reading(
        path=path, lenient=True, file="torchtitan's configuration", ledger=Ledger(_foreign.flat(content)), notes=notes
    )
    apply(TABLE, reading)
    saves = {} if "save.every" in reading.settings else {"save.last": False}
    defaults(reading, {**_DEFAULTS, **saves})
    reading.settings["model.max_position_embeddings"] = reading.settings["train.sequence_length"]  # Its max_seq_len.
    if python and not reading.has("model.attn_backend"):
        reading.settings["data.packing"] = "documents"  # Its default, flex, keeps documents apart.
    _schedule(reading)
    _batch(reading)
    return imported(
        reading, summary=f"{reading.choose.get('model', 'a model')} by torchtitan", source="a torchtitan configuration"
    )


def _sections(found: JsonObject) -> JsonObject:
    """A ``Trainer.Config`` of Python with the sections' names of the TOML."""
    spec = found.pop("model_spec", None)
    content: JsonObject = {key: value for key, value in found.items() if key != "class"}
    if isinstance(spec, dict):
        content["model"] = {
            "flavor": spec.get("0"),
            **{key: value for key, value in spec.items() if key not in ("0", "class")},
        }
    converters = content.get("model", {}).get("converters")
    if isinstance(converters, list):
        names = [
            str(each.get("class") if isinstance(each, dict) else each).partition("LinearConverter")[0]
            for each in converters
        ]
        content["model"]["converters"] = [name.lower() for name in names]
        for each in converters:
            if isinstance(each, dict) and "recipe_name" in each:
                content["float8"] = {"recipe_name": each["recipe_name"]}
    if isinstance(content.get("loss"), dict) and isinstance(content["loss"].get("loss_fn"), dict):
        content["loss"]["loss_fn"] = content["loss"]["loss_fn"].get("class")
    for section in [*content]:
        if isinstance(content[section], dict):
            content[section] = {{"0": "value"}.get(key, key): value for key, value in content[section].items()}
    return content


_SIZES: Mapping[tuple[str, str], Mapping[str, Any]] = {  # models/llama3, qwen3 and deepseek_v3
    ("llama3", "debugmodel"): {"model": "tiny", **_DEBUG},
    ("qwen3", "debugmodel"): {
        "model": "qwen3_8b", "model.hidden_size": 256, "model.num_hidden_layers": 8, "model.num_attention_heads": 16,
        "model.num_key_value_heads": 8, "model.head_dim": 128, "model.intermediate_size": 3072,
        "model.vocab_size": 2048,
        "model.tie_word_embeddings": True},
    ("deepseek_v3", "16b"): {
        "model": "deepseek_v3", "model.hidden_size": 2048, "model.num_hidden_layers": 27, "model.vocab_size": 102400,
        "model.num_attention_heads": 16, "model.num_key_value_heads": 16, "model.intermediate_size": 10944,
        "model.moe_intermediate_size": 1408, "model.num_experts": 64, "model.num_experts_per_tok": 6,
        "model.num_shared_experts": 2, "model.first_dense_layers": 1, "model.q_lora_rank": 0, "model.n_group": 0,
        "model.topk_group": 0, "model.mtp_layers": 0, "model.rope_theta": 10000.0},
}  # fmt: skip


def _names(reading: Reading, key: str) -> None:
    """``model.name`` and ``model.flavor``; without a name the folder of tokenizers and weights says the family."""
    flavor = str(reading.value("model.flavor") or "").lower()
    family = str(reading.value("model.name") or _family(reading)).lower()
    found = _MODELS.get((family, flavor)) or _ON_THE_HUB.get((family, flavor))
    if key == "model.name" and flavor:
        reading.ledger.default(key) if not found else reading.ledger.say(key, "model")
        return
    if found:
        choose(reading, key, {"model": found, "model.weights": None} if "/" in found else {"model": found})
    elif (family or "llama3", flavor) in _SIZES:
        choose(reading, key, _SIZES[family or "llama3", flavor])
    else:
        effect = f"no model {family} {flavor} here: set model.hidden_size and the other sizes"
        reading.ledger.leave(key, effect)


def _family(reading: Reading) -> str:
    path = str(reading.value("hf_assets_path") or reading.value("model.hf_assets_path") or "").lower()
    found = {"llama-3": "llama3", "qwen3": "qwen3", "deepseek": "deepseek_v3", "gpt-oss": "gpt_oss"}
    return next((family for part, family in found.items() if part in path), "llama3" if "tests/assets" in path else "")


def _assets(reading: Reading, key: str) -> None:
    """The folder of tokenizer and weights: ``./assets/hf/Llama-3.1-8B`` is that model of the Hub."""
    path = str(reading.value(key)).rstrip("/")
    name = path.rpartition("/")[2]
    owners = (owner for part, owner in _ORGANISATIONS if name.lower().startswith((part, f"meta-{part}")))
    owner = next(owners, None) if "assets/hf" in path else None
    if path.endswith("tokenizer.model") and str(reading.value("model.name") or "llama3").lower() == "llama3":
        reading.say(key, {"data.tokenizer": "meta-llama/Meta-Llama-3-8B"})  # Whose file it is, in its first form.
    else:
        reading.say(key, {"data.tokenizer": f"{owner}/{name}" if owner else path})


def _data(reading: Reading, key: str) -> None:
    word = str(reading.value(key))
    path = next((str(reading.value(each)) for each in (f"{key}_path",) if reading.value(each)), None)
    if path is None and word not in _SETS:
        reading.ledger.leave(key, f"where {word} is is torchtitan's to know: set data.path")
        return
    said = dict(_SETS.get(word, {"data": "huggingface"})) | ({"data.path": path} if path else {})
    choose(reading, key, said)
    reading.ledger.say(f"{key}_path", "data.path")


def _evaluates(reading: Reading, key: str) -> None:
    """The validator's data, where it is switched on (in Python by being there)."""
    word = str(reading.value(key))
    if not _validating(reading, key.split(".")[0]):
        reading.idle("nothing validates: its switch is off", key)
    elif word in ("c4_validation", "c4_test"):
        choose(reading, key, {"data.eval_path": _SETS[word]["data.path"]} | (
            {"data.eval_split": "validation"} if word == "c4_validation" else {}))  # fmt: skip
    else:
        reading.ledger.leave(key, f"where {word} is is torchtitan's to know: set data.eval_path")


def _validates(reading: Reading, key: str) -> None:
    if not _validating(reading, key.split(".")[0]):
        reading.idle("nothing validates: its switch is off", key)
    elif key.endswith("freq"):
        reading.say_count(key, "train.eval_every", 1)
    elif (reading.number(key) or 0) > 0:
        reading.say_count(key, "train.eval_steps", 1)
    else:
        reading.ledger.leave(key, "the whole set evaluates there: set train.eval_steps", matters=False)


def _validating(reading: Reading, block: str) -> bool:
    return bool(reading.value(f"{block}.enable") or reading.value(f"{block}.enabled"))


def _degree(reading: Reading, key: str) -> None:
    """``data_parallel_shard_degree``: what the other degrees leave."""
    found = reading.number(key)
    if found == 1:
        choose(reading, key, {"parallel": "ddp"})
    elif found is not None and found > 1:
        reading.ledger.leave(key, "no effect: the ranks that the other degrees leave shard the model", matters=False)
    else:
        reading.ledger.default(key)


def _pipeline(reading: Reading, key: str) -> None:
    if (reading.number("parallelism.pipeline_parallel_degree") or 1) > 1:
        words(key, "parallel.schedule", _SCHEDULES, "{} is no schedule here: set parallel.schedule").enter(reading, key)
    else:
        reading.idle("there is one pipeline stage", key)


def _recomputes(reading: Reading, key: str) -> None:
    """``activation_checkpoint``: its mode, or in Python its class."""
    word = str(reading.value(key)).lower().rpartition("ac.config")[0] or str(reading.value(key)).lower()
    if word in ("none", "selective", "full"):
        option = str(reading.value("activation_checkpoint.selective_ac_option") or "op")
        choose(reading, key, {"checkpointing": "full" if word == "selective" and option != "op" else word})
    elif word == "memory_budget":
        reading.ledger.leave(key, "a budget of the compiler chooses there: set checkpointing.mode")
    else:
        reading.wrong(key, "is none, selective or full")


def _every_nth(reading: Reading, key: str) -> None:
    """``selective_ac_option``: by operation, or whole blocks, of which every n-th is recomputed."""
    option = str(reading.value(key))
    if option == "op" or reading.value("activation_checkpoint.mode") != "selective":
        reading.ledger.default(key)
    elif option == "1":
        choose(reading, key, {"checkpointing": "full"})
    else:
        reading.ledger.leave(
            key, "every n-th block is recomputed there, the first of them here: set checkpointing.layers"
        )


def _saves(reading: Reading, key: str) -> None:
    enabled = reading.value("checkpoint.enable_checkpoint"), reading.value("checkpoint.enable")
    if any(enabled):
        reading.say_count(key, "save.every", 1)
    else:
        reading.idle("checkpoints are switched off", key)


def _last(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.ledger.default(key)
    else:
        reading.say(key, {"save.last": False})


def _loads(reading: Reading, key: str) -> None:
    """Weights of the Hub's form to start from."""
    if key.endswith("initial_load_in_hf") and reading.flag(key):
        where = (
            reading.value("checkpoint.initial_load_path")
            or reading.value("model.hf_assets_path")
            or reading.value("hf_assets_path")
        )
        tokenizer = reading.settings.get("data.tokenizer", where)
        reading.say(
            key, {"model.weights": tokenizer if reading.value("checkpoint.initial_load_path") is None else str(where)}
        )
    elif not reading.flag(key):
        reading.ledger.default(key)


def _converters(reading: Reading, key: str) -> None:
    """fp8 by torchao; other converters have no kernels in FSDP here."""
    value = reading.value(key)
    found = {str(each) for each in (value if isinstance(value, list) else [value])}
    if found <= {"float8", "quantize.linear.float8", "quantize.dense.float8"} and found:
        choose(reading, key, {"precision": "fp8"})
    elif not found or found == {"None"}:
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, f"{', '.join(sorted(found))}: FSDP computes in fp8 alone here: set precision.compute")


def _recipe(reading: Reading, key: str) -> None:
    if reading.choose.get("precision") != "fp8":
        reading.idle("fp8 is not among the converters", key)
    elif reading.value(key) in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
        say_text(reading, key, "precision.recipe")
    else:
        reading.wrong(key, "is tensorwise, rowwise or rowwise_with_gw_hp")


def _dtype(reading: Reading, key: str) -> None:
    word = str(reading.value(key))
    name = key.rpartition(".")[2]
    if word == {"mixed_precision_param": "bfloat16"}.get(name, "float32"):
        reading.ledger.default(key)
    elif name == "mixed_precision_param" and word == "float32":
        choose(reading, key, {"precision": "fp32"})
    elif name == "mixed_precision_reduce" and word == "bfloat16":
        reading.say(key, {"precision.reduce": "bf16"})
    elif name == "dtype" and word == "bfloat16":
        reading.say(key, {"precision.parameters": "bf16", "precision.optimizer_states": "bf16"})
    else:
        reading.wrong(key, "is float32 or bfloat16")


def _schedule(reading: Reading) -> None:
    """The decay: over a ratio of the run at its end (``wsd``), or over all that follows the warm-up."""
    block = "lr_scheduler"
    ratio, kind = reading.number(f"{block}.decay_ratio"), str(reading.value(f"{block}.decay_type") or "linear")
    steps = reading.settings.get("train.steps", 10000)
    warmup = reading.settings.setdefault("optimizer.warmup_steps", 200)
    keys = (f"{block}.decay_ratio", f"{block}.decay_type")
    if ratio is None and kind in ("linear", "cosine"):
        said: dict[str, Any] = {"optimizer.schedule": kind}
    else:
        decay = max(1, round(steps * ratio)) if ratio is not None else max(1, steps - warmup)
        decay = min(decay, max(1, steps - warmup))
        said = {
            "optimizer.schedule": "wsd",
            "optimizer.wsd_decay_steps": decay,
            "optimizer.wsd_decay": _DECAYS.get(kind, "linear"),
        }
    reading.settings |= said
    for key in keys:
        reading.ledger.say(key, *said)
    factor = reading.number(f"{block}.min_lr_factor") or reading.number(f"{block}.lr_min") or 0.0
    for key in (f"{block}.min_lr_factor", f"{block}.lr_min"):
        if reading.value(key) is not None:
            reading.say(
                key, {"optimizer.min_lr": _trainer.times(factor, reading.settings["optimizer.lr"])} if factor else {}
            )


def _batch(reading: Reading) -> None:
    """Under a pipeline the local batch is cut into micro-batches."""
    if (reading.number("parallelism.pipeline_parallel_degree") or 1) <= 1:
        return
    local = reading.settings["train.micro_batch_size"]
    size = int(reading.number("parallelism.pipeline_parallel_microbatch_size") or 1)
    said = {"train.micro_batch_size": size, "train.gradient_accumulation": max(1, local // size)}
    reading.settings |= said
    for key in ("parallelism.pipeline_parallel_microbatch_size", "training.local_batch_size", "training.batch_size"):
        reading.ledger.say(key, *said)


def _reshards(reading: Reading, key: str) -> None:
    word = str(reading.value(key))
    if word == "default":
        reading.ledger.default(key)
    else:
        choose(reading, key, {"zero": "3" if word == "always" else "2"})


def _kernels(reading: Reading, key: str) -> None:
    word = str(reading.value(key))
    if word == "fused":
        reading.ledger.default(key)
    elif word in ("foreach", "for-loop"):
        reading.say(key, {"optimizer.foreach": word == "foreach", "optimizer.fused": False})
    else:
        reading.ledger.leave(key, "optimizer states are in 32 bits here: set precision.optimizer_states")


def _expert_tensor(reading: Reading, key: str) -> None:
    if (reading.number(key) or 1) > 1:
        reading.say_count(key, "parallel.expert_tensor")
    else:
        reading.ledger.default(key)


def _compiles(reading: Reading, key: str) -> None:
    """Blocks are compiled where ``components`` names the model, as it does where it is left out."""
    parts = reading.value("compile.components")
    if reading.flag(key) and isinstance(parts, list) and "model" not in parts:
        reading.ledger.leave(key, "the loss is not compiled by itself here, with the same maths", matters=False)
    elif reading.flag(key):
        reading.say(key, {"train.compile": True})
    elif reading.ledger.is_open(key):
        reading.ledger.default(key)


def _sequence(reading: Reading, key: str) -> None:
    degree = int(reading.number(key) or 1)
    sequence = reading.ledger.values.get("parallelism.enable_sequence_parallel", True)
    reading.say(key, {"parallel.tensor": degree, **({"parallel.sequence": bool(sequence)} if degree > 1 else {})})


_C, _T, _P = "checkpoint", "training", "parallelism"
TABLE: tuple[Row, ...] = (
    by("hf_assets_path model.hf_assets_path model.tokenizer_path", "data.tokenizer",
        "a folder of assets/hf is that model of the Hub", _assets),
    by("model.flavor model.name", "model", "by family and size; others are refused", _names),
    words("model.attn_backend", "data.packing", {"sdpa": None, "flex": {"data.packing": "documents"},
        "varlen": {"data.packing": "documents"}},
          "{} is no kernel here: set model.attention", "flex and varlen keep documents apart"),
    usual("model.norm_type model.tp_gemm_backend", ("rmsnorm", "RMSNorm", "stock"),
        "the model is that of its family here"),
    by("model.converters", "precision=fp8", "mx and others are refused", _converters),
    by("quantize.linear.float8.recipe_name float8.recipe_name quantize.dense.float8.recipe_name", "precision.recipe",
        "", _recipe),
    switch("float8.enable_float8_linear", {"precision": "fp8"}),
    by(f"{_T}.data_parallel_degree", "parallel=fsdp", "the ranks that other degrees leave", _degree),
    idle("quantize float8 mx model.print_after_conversion model.tokenizer_name",
        "of converters, which model.converters switches on"),
    count(f"{_T}.local_batch_size {_T}.batch_size", "train.micro_batch_size", "left out it is 8", least=1),
    by(f"{_T}.global_batch_size", "train.global_batch_size", "", lambda reading, key: reading.say_count(
        key, "train.global_batch_size", 1) if (reading.number(key) or 0) > 0 else reading.ledger.default(key)),
    count(f"{_T}.seq_len", "train.sequence_length", "left out it is 2048", least=1),
    count(f"{_T}.steps", "train.steps", "left out it is 10000", least=1),
    number(f"{_T}.max_norm", "optimizer.clip"),
    count(f"{_T}.seed debug.seed", "train.seed"),
    by(f"{_T}.dtype {_T}.mixed_precision_param {_T}.mixed_precision_reduce", "precision.*", "", _dtype),
    switch(f"{_T}.enable_cpu_offload", {"zero.offload_optimizer": "cpu", "zero.offload_parameters": "cpu"}),
    by(f"{_T}.dataset dataloader.dataset", "data.path", "c4 and c4_test; others are refused", _data),
    by("validation.dataset validator.dataloader.dataset", "data.eval_path", "", _evaluates),
    by("validation.freq validator.freq validation.steps validator.steps", "train.eval_every, train.eval_steps", "",
        _validates),
    idle("validation validator", "of a validation that is told by the other keys"),
    by(f"{_T}.compile compile.enable", "train.compile", "each block is compiled; the loss alone is not", _compiles),
    flag("compile.enable_async_tensor_parallel parallelism.enable_async_tensor_parallel"
        " experimental.enable_async_tensor_parallel",
         "parallel.async_tensor"),
    idle("compile", "of how blocks are compiled"),
    words("optimizer.name", "optimizer", {"adamw": "adamw", "adam": "adamw", "muon": "muon"},
        "{} is no optimizer here: set optimizer.name"),
    number("optimizer.lr", "optimizer.lr", "left out it is 8e-4"),
    number("optimizer.beta1", "optimizer.beta1"),
    number("optimizer.beta2", "optimizer.beta2"),
    number("optimizer.eps", "optimizer.epsilon"),
    number("optimizer.weight_decay", "optimizer.weight_decay"),
    by("optimizer.implementation", "optimizer.foreach, optimizer.fused", "", _kernels),
    usual("optimizer.fused", (True, False), ""),
    usual("optimizer.class", ("default_adamw",), "that optimizer is another: set optimizer.name"),
    off("optimizer.early_step_in_backward", "the optimizer steps after the backward pass here"),
    count("lr_scheduler.warmup_steps training.warmup_steps", "optimizer.warmup_steps", "left out it is 200"),
    idle("lr_scheduler.class", "of Python"),
    usual("lr_scheduler.total_steps", (), "the schedule ends with the run here: set optimizer.decay_steps"),
    later("lr_scheduler.decay_ratio lr_scheduler.decay_type", "optimizer.schedule=wsd, optimizer.wsd_decay*",
        "without a ratio it is linear or cosine"),
    later("lr_scheduler.min_lr_factor lr_scheduler.lr_min", "optimizer.min_lr", "times the rate"),
    count(f"{_P}.data_parallel_replicate_degree {_T}.data_parallel_replicate_degree", "parallel.replicate", least=1),
    by(f"{_P}.data_parallel_shard_degree {_T}.data_parallel_shard_degree", "parallel=fsdp, ddp",
        "the ranks that other degrees leave", _degree),
    by(f"{_P}.fsdp_reshard_after_forward", "zero", "", _reshards),
    by(f"{_P}.tensor_parallel_degree {_T}.tensor_parallel_degree", "parallel.tensor", "with parallel.sequence",
        _sequence),
    by(f"{_P}.enable_sequence_parallel", "parallel.sequence", "", lambda reading, key: (
        reading.ledger.say(key, "parallel.sequence") if (reading.number(f"{_P}.tensor_parallel_degree") or 1) > 1
        else reading.ledger.default(key))),
    count(f"{_P}.pipeline_parallel_degree experimental.pipeline_parallel_degree", "parallel.pipeline", least=1),
    by(f"{_P}.pipeline_parallel_schedule experimental.pipeline_parallel_schedule", "parallel.schedule", "", _pipeline),
    by(f"{_P}.pipeline_parallel_microbatch_size", "train.micro_batch_size", "the local batch is cut into them",
        lambda reading, key: (
        None if (reading.number(f"{_P}.pipeline_parallel_degree") or 1) > 1
            else reading.idle("there is one pipeline stage", key))),
    off(f"{_P}.pipeline_parallel_split_points {_P}.module_fqns_per_model_part {_P}.pipeline_parallel_layers_per_stage"
        f" {_P}.pipeline_parallel_schedule_csv", "stages share the layers out evenly here: set parallel.layout"),
    usual(f"{_P}.pipeline_parallel_first_stage_less_layers {_P}.pipeline_parallel_last_stage_less_layers", (0, 1),
          "stages share the layers out evenly here: set parallel.first_stage_layers"),
    count(f"{_P}.context_parallel_degree experimental.context_parallel_degree", "parallel.context", least=1),
    count(f"{_P}.expert_parallel_degree", "parallel.expert", least=1),
    by(f"{_P}.expert_tensor_parallel_degree", "parallel.expert_tensor", "1 is whole experts", _expert_tensor),
    idle(f"{_P}.context_parallel_rotate_method {_P}.context_parallel_load_balancer {_P}.context_parallel_ptrr_mask_key"
         f" {_P}.disable_loss_parallel {_P}.enable_compiled_autograd {_P}.spmd_backend {_P}.enable_fsdp_symm_mem"
         f" {_P}.expert_parallel_comm_backend {_P}.fsdp_disable_prefetch {_P}.class", "of how ranks exchange the same"),
    by(f"{_C}.interval", "save.every", "", _saves),
    by(f"{_C}.enable_checkpoint {_C}.enable", "save.last", "", _last),
    by(f"{_C}.keep_latest_k", "save.keep", "0 keeps all there", lambda reading, key: reading.say_count(
        key, "save.keep", 1) if reading.number(key) else reading.ledger.leave(key,
            "the newest are kept: set save.keep", matters=False)),
    words(f"{_C}.async_mode", "save.async", {"disabled": None, "async": True, "async_with_pinned_mem": True},
        "{}: set save.async"),
    switch(f"{_C}.last_save_in_hf", {"save.export": "safetensors"}),
    by(f"{_C}.initial_load_in_hf {_C}.initial_load_in_hf_quantized", "model.weights", "", _loads),
    by(f"{_C}.initial_load_path", "model.weights", "of the Hub's form alone", lambda reading, key: (
        reading.ledger.say(key, "model.weights") if reading.flag(f"{_C}.initial_load_in_hf")
        else reading.ledger.leave(key, "its form of checkpoint is not read here: set model.weights"))),
    usual(f"{_C}.load_step", (-1,), "the newest checkpoint is taken: set save.load"),
    idle(f"{_C}.folder {_C}.interval_type {_C}.last_save_model_only {_C}.model_weights_only {_C}.export_dtype"
        f" {_C}.load_only"
         f" {_C}.create_seed_checkpoint {_C}.exclude_from_loading {_C}.enable_first_step_checkpoint"
         f" {_C}.initial_load_model_only {_C}.class {_C}.save_future", "of the files of a checkpoint"),
    by("activation_checkpoint.mode activation_checkpoint.class", "checkpointing", "left out it is selective",
        _recomputes),
    by("activation_checkpoint.selective_ac_option", "checkpointing", "every n-th block is refused", _every_nth),
    idle("activation_checkpoint", "of how the same operations are found"),
    *(switch(f"metrics.enable_{name}", {"tracking": name}) for name in ("wandb", "tensorboard")),
    number("comm.train_timeout_seconds", "train.timeout_s"),
    off("debug.moe_force_load_balance training.debug_moe_force_load_balance debug.batch_invariant",
        "experts take the tokens that the router gives them here"),
    usual("loss.num_chunks", (8,), "the loss is chunked by tokens here: set train.loss_chunk"),
    words("loss.class", "train.loss", {"chunkedlosswrapper.config": "chunked", "crossentropyloss.config": None},
        "{}: set train.loss"),
    idle("loss", "of the loss in parts"),
    usual("dataloader.infinite", (True,), "data begin anew here: set train.epochs"),
    usual("dataloader.class tokenizer.class", ("HuggingFaceTextDataLoader.Config", "HuggingFaceTokenizer.Config"),
          "its rows are read by a function there: set data.path"),
    off("dataloader.sources dataloader.load_dataset_kwargs dataloader.sample_processor",
        "several sets, and functions over rows: set data.mix"),
    count("dataloader.num_workers", "data.workers"),
    idle("dataloader tokenizer training.dataset_path", "of how data are loaded"),
    off("fault_tolerance.enable override", "a run goes on from its checkpoint here: there is no such thing"),
    idle("job metrics profiling profiler memory_estimation comm debug fault_tolerance float8 dump_folder",
         "of logs, profiles and files; every step is a line of metrics.jsonl"),
    idle(f"{_T}.gc_freq {_T}.gc_debug {_T}.deterministic {_T}.disable_cuda_graphs {_T}.enable_fused_swiglu {_T}.class",
         "of how ranks do the same"),
    other("experimental.custom_import experimental.custom_args_module", "its own code is not run here"),
    off("experimental training.data_parallel_type", "there is no such thing here"),
)  # fmt: skip
