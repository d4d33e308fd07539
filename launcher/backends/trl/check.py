"""Limits of TRL's trainers and of what this version passes to them, each with the way out.

The engine's own limits (formats, offload, 4-bit weights, ZeRO) come from its backend, for the run as that engine sees
it. The limits here are TRL's: its presets, losses and schedules, and settings that it has no argument for.
"""

from collections.abc import Iterator
from math import gcd
from pathlib import Path

from launcher.backends import _optimizers
from launcher.backends._shared import given
from launcher.backends.trl import config
from launcher.backends.trl.traits import as_engine, backend_of, engine_of
from launcher.base import files
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.estimate.rank import adapters
from launcher.spec import RunSpec, edit
from launcher.spec.model import OF_ENGINES
from launcher.spec.parse import closest

PRESETS = ("parallel=fsdp", "parallel=ddp", "parallel=zero1", "parallel=zero2", "parallel=zero3")
"""The layouts that accelerate drives here."""

_AXES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "ulysses", "replicate")

_DROPPED = {
    "TRL's configuration has no argument for it in this version": (
        "adapter.lora_plus checkpointing.offload optimizer.foreach train.z_loss"
    ),
    "transformers recomputes every block or none": "checkpointing.layers checkpointing.modules checkpointing.method",
    "TRL mixes data sets once, before it trains": "data.stages",
    "transformers' schedules end with the run": "optimizer.decay_steps",
    "transformers' schedules rise linearly, from 0": "optimizer.warmup optimizer.warmup_lr",
    "transformers writes a checkpoint while training waits": "save.async",
    "this version compiles no blocks under TRL": "train.compile",
    "TRL's loss computes logits for some tokens and words at a time and never holds all of them": "train.loss",
    "TRL smooths labels with a second forward pass over all logits, which is not counted": "train.label_smoothing",
    "its trainer continues after a spike, which is reported; NaN ends the run": "train.on_spike",
    "accelerate decides the formats: trained weights in fp32, computation in precision.compute": (
        "precision.gradients precision.accumulate precision.optimizer_states precision.reduce precision.master"
    ),
}
"""Settings that TRL would drop, by the reason."""

_LOSSES = {
    "sft": ("nll", "dft"),
    "dpo": ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
            "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
    "kto": ("kto", "apo_zero_unpaired"),
    "grpo": ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo"),
}  # fmt: skip
"""``loss_type`` of ``trl/trainer/*_config.py``, 1.16."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for everything that TRL or the translation would otherwise drop or stop at."""
    if spec.script is not None:
        rule = "TRL brings its own training script; the other engines start yours"
        yield ConfigError("script", spec.script, rule, ["task=pretrain"])
        return
    if layouts := [*_layout(spec)]:
        yield from layouts
        return
    if spec.data.packed == "documents" and spec.micro_batch_size > 1:
        rule = "TRL's collator would join the samples of a micro-batch into one long row, which is not counted"
        ways = ["train.micro_batch_size=1", "data.packing=null"]
        yield ConfigError("train.micro_batch_size", spec.micro_batch_size, rule, ways)
    yield from backend_of(spec).check(as_engine(spec))
    for asked in (_dropped, _optimizer, _quantised, _experts, _begun_whole, _rounded, _precision, _zero, _task, _extra):
        yield from asked(spec)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings of the engine that TRL runs on."""
    if not [*_layout(spec)]:
        yield from backend_of(spec).warnings(as_engine(spec))


def _layout(spec: RunSpec) -> Iterator[ConfigError]:
    for axis in _AXES:
        if (degree := getattr(spec.parallel, axis)) > 1:
            rule = f"TRL runs {', '.join(way.partition('=')[2] for way in PRESETS)}, in which {axis} is 1"
            back = f"parallel.{axis}=1"
            yield ConfigError(f"parallel.{axis}", degree, rule, [back, *(f"{way} {back}" for way in PRESETS)])
            return
    if spec.parallel.name == "zero0":
        rule = "accelerate trains full replicas with DDP, which is not the same engine as DeepSpeed's ZeRO 0"
        yield ConfigError("parallel.name", "zero0", rule, list(PRESETS))


def _dropped(spec: RunSpec) -> Iterator[ConfigError]:
    for rule, paths in _DROPPED.items():
        yield from edit.refused(spec, paths, rule)
    if spec.checkpointing.mode == "selective":
        rule = "transformers recomputes every block or none"
        yield ConfigError("checkpointing.mode", "selective", rule, ["checkpointing=full", "checkpointing=none"])
    if spec.train.profile is not None:
        rule = "torch's profiler does not follow TRL's trainer in this version"
        yield ConfigError("train.profile", "...", rule, ["train.profile=null"])


def _optimizer(spec: RunSpec) -> Iterator[ConfigError]:
    optimizer, names = spec.optimizer, ("adamw", "adamw_8bit", "paged_adamw_8bit")
    yield from _optimizers.round_to_nearest(spec)
    if optimizer.name not in names:
        rule = f"this version runs TRL with {', '.join(names[:-1])} or {names[-1]}"
        kept = names[: 1 if spec.parallel.shard else 2]
        yield ConfigError("optimizer.name", optimizer.name, rule, [f"optimizer={name}" for name in kept])
    elif optimizer.name != "adamw" and spec.parallel.shard:
        rule = "bitsandbytes cannot step FSDP2's sharded tensors"
        yield ConfigError("optimizer.name", optimizer.name, rule, ["optimizer=adamw", "parallel=ddp"])
    if optimizer.schedule in ("linear", "inverse_sqrt") and optimizer.min_lr:
        rule = f"transformers' schedule {optimizer.schedule} ends at 0"
        way_out = ["optimizer.min_lr=0.0", "optimizer.schedule=cosine"]
        yield ConfigError("optimizer.min_lr", optimizer.min_lr, rule, way_out)
    if optimizer.schedule == "wsd" and optimizer.wsd_decay == "exponential":
        rule = "transformers' schedule has the shapes linear, cosine and 1-sqrt"
        yield ConfigError("optimizer.wsd_decay", "exponential", rule, ["optimizer.wsd_decay=linear"])


def _quantised(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.adapter.bits == 8 and (engine_of(spec) == "fsdp" or spec.zero.stage == 3):
        rule = "bitsandbytes' 8-bit weights lose their constants where FSDP2 or ZeRO 3 shards them (Int8Params)"
        yield ConfigError("adapter.quant_type", "int8", rule, ["adapter.quant_type=nf4", "parallel=ddp"])


def _experts(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.adapter.bits and spec.model.num_experts:
        rule = "transformers quantises only linear layers, and experts' weights, one tensor per layer, would stay as is"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=lora", "task=pretrain"])


def _begun_whole(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for adapters that need whole weights: OFT, and LoRA that starts from PiSSA."""
    adapter = spec.adapter
    path, back = ("adapter.name", "adapter=lora") if adapter.rotates else ("adapter.pissa", "adapter.pissa=null")
    if adapter.rotates:
        yield from _rotated(spec)
    elif adapter.pissa is None:
        return
    found = edit.value_at(spec, path)
    if adapter.bits and not adapter.rotates:
        rule = "PiSSA subtracts its initial adapter from the weights, and these are quantised"
        yield ConfigError(path, found, rule, [back, "adapter=lora"])
    if engine_of(spec) != "ddp":
        rule = "this version trains it only where each rank has the whole model"
        yield ConfigError(path, found, rule, ["parallel=ddp", back])


def _rotated(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for OFT's input blocks where peft would silently change the size (``adjust_oft_parameters``)."""
    adapter, model = spec.adapter, spec.model
    if model.num_experts:
        rule = "peft rotates only inputs of linear layers, and experts' weights are one tensor per layer"
        yield ConfigError("adapter.name", adapter.name, rule, ["adapter=lora", "model.num_experts=0"])
    block = families.of(model).block(model, 0)
    sizes = {weight.shape[1] for weight in adapters.targeted(block, adapter)}
    if any(size % adapter.block_size for size in sizes) or adapter.block_size == 1:
        rule = f"must be at least 2 and divide the layers' input sizes: {', '.join(map(str, sorted(sizes)))}"
        ways = [edit.override("adapter.block_size", each) for each in edit.divisors(gcd(*sizes)) if 1 < each <= 64]
        yield ConfigError("adapter.block_size", adapter.block_size, rule, ways[:-4:-1] or ["adapter=lora"])


def _rounded(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for quantization-aware training on DeepSpeed, and for tasks whose models it does not support."""
    if engine_of(spec) == "deepspeed":
        rule = "this version trains torchao's linear layers only under FSDP2 and DDP"
        yield from edit.refused(spec, "precision.qat", rule, first=["parallel=fsdp"])
    if spec.task.name in ("reward", "grpo"):
        rule = f"this version has no quantization-aware training with task={spec.task.name}"
        yield from edit.refused(spec, "precision.qat", rule, "task=sft")


def _precision(spec: RunSpec) -> Iterator[ConfigError]:
    compute, ways = spec.precision.compute, ["precision=bf16", "precision=fp32"]
    loaded = spec.precision.parameters
    whole = engine_of(spec) == "ddp" and spec.adapter.name == "none"
    if loaded not in (None, "fp32") and not (loaded == compute == "bf16" and whole):
        rule = "only DDP trains whole models in bf16: accelerate converts what FSDP2 shards to fp32"
        yield ConfigError("precision.parameters", loaded, rule, ["precision.parameters=null", "parallel=ddp"])
    elif loaded is not None and spec.adapter.name != "none" and compute != loaded:
        rule = "the adapter's frozen weights are loaded in the format of precision.compute"
        yield ConfigError("precision.parameters", loaded, rule, ["precision.parameters=null", "precision=fp32"])
    if compute not in ("fp32", "bf16"):
        yield ConfigError("precision.compute", compute, "TRL computes in bf16 or fp32 in this version", ways)
    if spec.hardware.device == "cpu" and compute == "bf16" and engine_of(spec) == "deepspeed":
        rule = "on a CPU transformers accepts bf16 only with use_cpu, which makes accelerate skip DeepSpeed"
        yield ConfigError("precision.compute", compute, rule, ["precision=fp32", "parallel=fsdp"])


def _zero(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for DeepSpeed's settings on another engine, and for a setting that DeepSpeed does not read."""
    if engine_of(spec) == "deepspeed":
        if not spec.backend.micro_step_sync:
            rule, path = "DeepSpeed reduces gradients as zero.stage says", "backend.micro_step_sync"
            yield ConfigError(path, False, rule, [f"{path}=true", "parallel=fsdp"])
        return
    rule = "only DeepSpeed reads it, and this preset runs another engine"
    paths = " ".join(path for path in OF_ENGINES.split() if path.startswith("zero."))
    yield from edit.refused(spec, paths, rule, first=["parallel=zero3"])


def _task(spec: RunSpec) -> Iterator[ConfigError]:
    task = spec.task
    losses = _LOSSES.get(task.name, ())
    if task.loss is not None and task.loss not in losses:
        rule = (
            f"the losses of task={task.name} in TRL are {', '.join(losses)}" if losses else "its loss has one variant"
        )
        yield ConfigError(
            "task.loss", task.loss, rule, [f"task.loss={name}" for name in losses[:2]] or ["task.loss=null"]
        )
    if task.loss == "exo_pair" and not task.label_smoothing:
        rule = "this loss takes the logarithm of the share of flipped preferences, which must not be 0"
        yield ConfigError("task.label_smoothing", 0.0, rule, ["task.label_smoothing=0.001", "task.loss=sigmoid"])
    if task.name == "grpo":
        yield from _generation(spec)
    templates = {each.template for each in spec.data.sets}
    if task.rows and len(templates) > 1:
        rule = "TRL renders all rows with one template: remove them from data.mix and set data.template"
        yield ConfigError("data.mix", [*templates], rule)
    if task.name == "kto" and spec.micro_batch_size == 1 and task.loss in (None, "kto"):
        rule = "its divergence is estimated from answers of other rows of the micro-batch, so it needs at least two"
        yield ConfigError(
            "train.micro_batch_size", 1, rule, ["train.micro_batch_size=2", "task.loss=apo_zero_unpaired"]
        )


def _generation(spec: RunSpec) -> Iterator[ConfigError]:
    task, batch = spec.task, spec.global_batch_size
    if not task.rewards:
        rule = "rewards rank the answers, and no reward function is set"
        yield ConfigError(
            "task.rewards", [], rule, ["task.rewards=[my_rewards.length]", "task.rewards=[accuracy_reward]"]
        )
    if batch % task.generations:
        rule = f"a step needs whole groups of answers: {batch} sequences are not a multiple of {task.generations}"
        ways = [f"task.generations={number}" for number in edit.divisors(batch) if number > 1][:3]
        yield ConfigError("task.generations", task.generations, rule, ways)
    if task.generations == 1:
        rule = "answers to one prompt are compared with each other, so at least two are needed"
        yield ConfigError("task.generations", 1, rule, ["task.generations=2"])
    if spec.evaluates:
        rule = "a GRPO evaluation generates answers, whose time and memory this version does not estimate"
        yield ConfigError(
            "train.eval_every", spec.eval_every, rule, ["train.eval_every=null train.evals_per_epoch=null"]
        )


def _extra(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for arguments of TRL that a setting gives, and for those that a run may not be given."""
    task, extra = spec.task.name, given(spec.backend.extra)
    if not extra:
        return
    table = files.load_own(Path(__file__).with_name("arguments.yaml"))
    by_setting = {name: key for key, names in table["settings"].items() for name in names.split()}
    taken = f"{table['given']['all']} {table['given'][task]}".split()
    ours = config.build(edit.changed(spec, "backend.extra", {})).keys()
    for name, value in sorted(extra.items()):
        path = f"backend.extra.{name}"
        if name in by_setting:
            setting = by_setting[name]
            ways = [f"launch show {setting.partition('.')[0]}"]
            yield ConfigError(path, value, f"{setting} gives TRL's {name}", ways)
        elif name in ours:
            rule = f"the launcher's settings give TRL's {name}; `launch show` prints its value"
            yield ConfigError(path, value, rule, [f"launch show task={task}"])
        elif name not in taken:
            rule = (
                f"not among the arguments of TRL 1.16 that a run of {task} may be given: those that hold no uncounted "
                "memory and leave data, evaluation and checkpoints to the launcher"
            )
            near = [edit.addition(f"backend.extra.{each}", value) for each in closest(name, taken)[:2]]
            yield ConfigError(path, value, rule, [*near, f"+{path}=null"])
