"""Limits of Megatron-LM, read from the validator of megatron-core 0.19.2.

The validator itself runs only where megatron-core is installed (``validator`` beside this file). These rules say the
same without it, in terms of our settings and with ways out, and refuse settings that have no counterpart. Files named
below without a folder are in ``megatron/training`` and ``megatron/core``.
"""

from collections.abc import Iterator, Mapping

from launcher.backends import _optimizers, _shared
from launcher.backends.megatron import checkout, extra, models, recomputation
from launcher.backends.megatron.implementation import NVFP4, RECIPES, dtypes, implementation, recipe
from launcher.backends.megatron.traits import vocabulary_multiple
from launcher.backends.megatron.translate import name
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.estimate.rank.counts import padded
from launcher.spec import RunSpec, edit
from launcher.spec.hardware import BLACKWELL, HOPPER

_OPTIMIZERS = ("adamw", "sgd", "muon")
_BALANCING = ("moe-aux-loss-coeff", "moe-router-load-balancing-type", "moe-router-enable-expert-bias")
_CAPABILITIES = {"blockwise": (HOPPER, 99.0), "mxfp8": (BLACKWELL, 12.0)}
"""Lowest compute capability of a recipe, and the one below which it must stay; others run wherever fp8 does."""

_CARDS: Mapping[str | None, str] = {"blockwise": "h100_80g", "mxfp8": "b200"}  # Cards with kernels for each recipe.
_LARGEST_SEED = (1 << 32) - (1 << 20)
"""Megatron-LM passes the seed to NumPy, whose seeds have 32 bits, and adds to it by stage and data rank."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings without a counterpart, and for combinations that Megatron-LM's own validator refuses."""
    yield from _shared.whole_gradients_in_stages(spec)
    yield from checkout.check(spec)
    yield from _degrees(spec)
    yield from models.check(spec)
    yield from _model(spec)
    yield from _without_gpu(spec)
    yield from _zero(spec)
    yield from _precision(spec)
    yield from recomputation.check(spec)
    yield from _training(spec)
    yield from _graphs(spec)
    yield from checkout.check_data(spec)
    if spec.data.packed == "documents":
        rule = "this version does not tell Megatron-LM's attention where documents end (core/packed_seq_params.py)"
        yield ConfigError("data.packing", "documents", rule, ["data.packing=concat", "backend=fsdp", "parallel=fsdp"])
    rule = "Megatron-LM evaluates on one data set, data.eval_path; FSDP, DDP, DeepSpeed and TRL on several"
    yield from edit.refused(spec, "data.eval_sets", rule, "parallel=fsdp", "parallel=zero3")
    yield from checkout.check_saving(spec)
    yield from checkout.check_conversion(spec)
    yield from extra.check(spec)


def _degrees(spec: RunSpec) -> Iterator[ConfigError]:
    parallel = spec.parallel
    rule = "Megatron-LM splits a sequence by context parallelism; Ulysses is DeepSpeed's"
    yield from edit.refused(spec, "parallel.ulysses", rule, first=["parallel=zero3", "parallel=fsdp"])
    if parallel.schedule not in ("1f1b", "interleaved"):
        rule = (
            "Megatron-LM has the schedules 1f1b and interleaved (core/pipeline_parallel/schedules.py); its"
            " --delay-wgrad-compute splits backward passes only to hide the traffic of experts"
        )
        way_out = ["parallel.schedule=1f1b", "parallel=fsdp_pp"]
        yield ConfigError("parallel.schedule", parallel.schedule, rule, way_out)
    if spec.model.num_experts and parallel.tensor > 1 and not parallel.sequence:
        rule = (
            "with tensor parallelism Megatron-LM trains experts only with sequence parallelism (core/transformer/moe)"
        )
        yield ConfigError("parallel.sequence", False, rule, ["parallel.sequence=true", "parallel.tensor=1"])
    if parallel.replicate > 1 and spec.zero.stage >= 2:
        rule = "replicas are instances of the distributed optimizer, which is zero.stage=1"
        yield ConfigError("parallel.replicate", parallel.replicate, rule, ["parallel.replicate=1", "zero.stage=1"])
    yield from _instances(spec)


def _instances(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for replicas that do not divide the experts' data ranks (``initialize_model_parallel``)."""
    parallel, path = spec.parallel, "parallel.replicate"
    inside = parallel.pipeline * parallel.expert * (parallel.expert_tensor or parallel.tensor)
    copies = spec.gpus // inside
    if spec.model.num_experts and copies and copies % parallel.replicate:
        rule = (
            f"replicas are instances of the distributed optimizer, which must divide the {copies} copies of the experts"
        )
        legal = edit.nearest(spec, path, edit.divisors(copies), lambda _: True)
        yield ConfigError(path, parallel.replicate, rule, legal)


def _model(spec: RunSpec) -> Iterator[ConfigError]:
    rule = "Megatron-LM builds its own model and runs no code from a checkpoint"
    yield from edit.refused(spec, "model.trust_remote_code", rule)
    if spec.adapter.name != "none":
        rule = "Megatron-LM has no adapters"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=none", "parallel=fsdp"])


def _without_gpu(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors on CPU ranks for what needs Transformer Engine or CUDA streams (``dot_product_attention.py``)."""
    if spec.hardware.device == "cuda":
        return
    rule = "context parallelism needs Transformer Engine's attention, which runs only on GPUs"
    yield from edit.refused(spec, "parallel.context", rule, "hardware=h100_80g")
    if spec.zero.stage >= 2:
        rule = "Megatron-FSDP gathers and reduces on CUDA streams, and this run has CPU ranks (hardware.device)"
        yield ConfigError("zero.stage", spec.zero.stage, rule, ["zero.stage=1", "hardware=h100_80g"])
    if spec.zero.offload_optimizer == "cpu":
        rule = "CPU ranks have nothing to offload (hardware.device)"
        yield ConfigError("zero.offload_optimizer", "cpu", rule, ["zero.offload_optimizer=none", "hardware=h100_80g"])


def _zero(spec: RunSpec) -> Iterator[ConfigError]:
    zero = spec.zero
    rule = "Megatron-LM keeps parameters on the GPU; it offloads optimizer states (--optimizer-cpu-offload)"
    yield from edit.refused(spec, "zero.offload_parameters", rule, "parallel=zero3")
    if zero.offload_optimizer == "nvme":
        rule = "Megatron-LM offloads optimizer states only to host memory (--optimizer-cpu-offload)"
        way_out = ["zero.offload_optimizer=none", "zero.offload_optimizer=cpu"]
        yield ConfigError("zero.offload_optimizer", "nvme", rule, way_out)
    elif zero.offload_optimizer == "cpu" and zero.stage == 0:
        rule = "only the distributed optimizer, zero.stage=1, offloads optimizer states"
        yield ConfigError("zero.offload_optimizer", "cpu", rule, ["zero.offload_optimizer=none", "zero.stage=1"])
    elif zero.offload_optimizer == "cpu" and spec.optimizer.name != "adamw":
        rule = "only the precision-aware optimizer offloads, and it runs only Adam (core/optimizer/optimizer_config.py)"
        way_out = ["optimizer=adamw", "zero.offload_optimizer=none"]
        yield ConfigError("zero.offload_optimizer", "cpu", rule, way_out)
    if zero.stage >= 2 and spec.optimizer.name not in ("adamw", "sgd"):
        rule = f"Megatron-FSDP (zero.stage={zero.stage}) has only the optimizers adamw and sgd"
        yield ConfigError("optimizer.name", spec.optimizer.name, rule, ["optimizer=adamw", "zero.stage=1"])


def _precision(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for formats that Megatron-LM does not keep (``core/optimizer/optimizer_config.py``)."""
    precision = spec.precision
    held = {"fp32": "fp32", "fp16": "fp16"}.get(precision.compute, "bf16")
    legal: dict[str, tuple[str | None, ...]] = {
        "parameters": (None, held, "fp32") if recipe(spec) else (None, held),
        "gradients": _main_gradients(precision.compute),
        "accumulate": _main_gradients(precision.compute),
        "reduce": _main_gradients(precision.compute),
        "master": (None, "none") if precision.compute == "fp32" else (None, "fp32", "fp16"),
        "optimizer_states": (None, "fp32", "fp16", "bf16", "fp8"),
    }
    for key, formats in legal.items():
        value, path = getattr(precision, key), f"precision.{key}"
        if value not in formats:
            words = " or ".join(word for word in formats if word)
            rule = f"with precision.compute={precision.compute} Megatron-LM uses {words}"
            yield ConfigError(path, value, rule, [f"{path}=null"])
    yield from _one_gradient_buffer(spec)
    yield from _precision_aware(spec)
    yield from _scaled(spec)


def _scaled(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for recipes that the card has no kernels for (``check_*_support``, Transformer Engine)."""
    compute, found, path = spec.precision.compute, spec.precision.recipe, "precision.recipe"
    if recipe(spec) is None:
        return
    if spec.hardware.device == "cpu":
        rule = "Transformer Engine has only GPU kernels; FSDP2 and DDP can try fp8 on the CPU with torchao's emulation"
        yield ConfigError("precision.compute", compute, rule, ["precision=bf16", "parallel=fsdp precision=fp8"])
    recipes = RECIPES if compute == "fp8" else (NVFP4,)
    if found is not None and found not in recipes:
        rule = f"for {compute} Transformer Engine has the recipes {', '.join(recipes)}"
        yield ConfigError(path, found, rule, [f"{path}={other}" for other in recipes])
    capability, bounds = spec.hardware.compute_capability, _CAPABILITIES.get(recipe(spec) or "")
    if capability is not None and bounds is not None and not bounds[0] <= capability < bounds[1]:
        where = f"from compute capability {bounds[0]} on" if capability < bounds[0] else f"below {bounds[1]}"
        rule = f"Transformer Engine supports it {where}, and {spec.hardware.title} has {capability}"
        card = [f"hardware={_CARDS[recipe(spec)]}"] if recipe(spec) in _CARDS else []
        yield ConfigError(path, recipe(spec), rule, ["precision.recipe=tensorwise", "precision.recipe=delayed", *card])


def _main_gradients(compute: str) -> tuple[str | None, ...]:
    return (None, "fp32", "bf16") if compute in ("bf16", "fp8", "fp4") else (None, compute)


def _one_gradient_buffer(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors where the one gradient buffer would need two formats (``core/distributed/param_and_grad_buffer.py``)."""
    formats, compute = dtypes(spec), spec.precision.compute
    held = {key: getattr(formats, key) for key in ("gradients", "accumulate", "reduce")}
    for key, value in held.items():
        others = {other for name, other in held.items() if name != key}
        if len(others) == 1 and value not in others:
            path, same = f"precision.{key}", others.pop()
            rule = f"Megatron-LM has one gradient buffer, and the other uses of it are {same}"
            ways = [" ".join(f"precision.{name}={value}" for name in held)] if value in _main_gradients(compute) else []
            yield ConfigError(path, value, rule, [edit.override(path, same), *ways])


def _precision_aware(spec: RunSpec) -> Iterator[ConfigError]:
    precision = spec.precision
    narrow = precision.optimizer_states not in (None, "fp32") or precision.master == "fp16"
    path = "precision.optimizer_states" if precision.optimizer_states not in (None, "fp32") else "precision.master"
    if narrow and (spec.zero.stage == 0 or spec.optimizer.name != "adamw"):
        rule = (
            "states below fp32 need the precision-aware optimizer: adamw with the distributed optimizer (zero.stage=1)"
        )
        way_out = [f"{path}=null"]
        if spec.optimizer.name == "adamw":
            way_out.append("zero.stage=1")
        yield ConfigError(path, edit.value_at(spec, path), rule, way_out)
    elif narrow and spec.hardware.device == "cpu":
        rule = "states below fp32 need Transformer Engine's FusedAdam, which runs only on CUDA"
        yield ConfigError(path, edit.value_at(spec, path), rule, [f"{path}=null", "hardware=h100_80g"])


def _muon(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for formats and devices that Muon of megatron-core 0.19 lacks; shards hold the states of whole weights."""
    compute = spec.precision.compute
    if compute == "fp16":
        rule = "Megatron-core does not step fp16 weights with it (core/optimizer/__init__.py)"
        yield ConfigError("optimizer.name", "muon", rule, ["precision=bf16", "optimizer=adamw"])
    elif spec.zero.stage and compute == "fp32":
        rule = "Megatron-core shards its states only with bf16 weights (core/optimizer/layer_wise_optimizer.py)"
        yield ConfigError("optimizer.name", "muon", rule, ["zero=0", "precision=bf16", "optimizer=adamw"])
    elif spec.zero.stage and spec.hardware.device == "cpu":
        rule = "when sharded, its weights are gathered as tensors of different sizes, which gloo does not support"
        yield ConfigError("optimizer.name", "muon", rule, ["zero=0", "optimizer=adamw"])


def _training(spec: RunSpec) -> Iterator[ConfigError]:
    train, optimizer = spec.train, spec.optimizer
    if optimizer.name not in _OPTIMIZERS:
        rule = f"Megatron-LM has the optimizers {', '.join(_OPTIMIZERS)}"
        if optimizer.name == "lion":
            rule += "; its Lion takes Adam's betas and steps embeddings and norms with Adam (core/optimizer)"
        yield ConfigError("optimizer.name", optimizer.name, rule, ["optimizer=adamw", "parallel=fsdp"])
    elif optimizer.name == "muon":
        yield from _muon(spec)
    elif optimizer.name == "sgd" and spec.zero.stage == 1:
        rule = "Megatron-core shards only Adam-like states (core/optimizer/distrib_optimizer.py)"
        yield ConfigError("optimizer.name", "sgd", rule, ["zero=0", "optimizer=adamw"])
    rule = "Megatron-LM has one learning rate for the weights of Muon and AdamW"
    yield from edit.refused(spec, "optimizer.adamw_lr", rule, "parallel=fsdp")
    yield from _optimizers.round_to_nearest(spec)
    rule = "Megatron-LM uses the AdamW of Transformer Engine or Apex if installed, else torch's foreach"
    declared = optimizer.fused and spec.hardware.device == "cuda" and not implementation(spec).transformer_engine
    yield from edit.refused(spec, "optimizer.foreach" if declared else "optimizer.fused optimizer.foreach", rule)
    yield from _schedule(spec)
    if not 0 < train.seed <= _LARGEST_SEED:
        rule = f"Megatron-LM seeds NumPy with it, so it must be 1 to {_LARGEST_SEED} (training/initialize.py)"
        yield ConfigError("train.seed", train.seed, rule, ["train.seed=1234"])
    own, none = "Megatron-LM has fused kernels of its own", "Megatron-LM's loss and embeddings have no argument for it"
    yield from edit.refused(spec, "train.compile train.kernels", own, "parallel=fsdp")
    yield from edit.refused(spec, "train.label_smoothing train.z_loss train.neftune_alpha", none, "parallel=fsdp")
    if spec.backend.argument("tp-comm-overlap") and not (spec.parallel.sequence and spec.parallel.tensor > 1):
        rule = "tensor parallel communication overlaps only with sequence parallelism (training/arguments.py)"
        way_out = ["parallel.tensor=2 parallel.sequence=true", "+backend.extra.tp-comm-overlap=null"]
        yield ConfigError("backend.extra.tp-comm-overlap", True, rule, way_out)
    if train.loss == "chunked":
        rule = "Megatron-LM computes the loss of all tokens at once, split over the tensor parallel ranks"
        yield ConfigError("train.loss", "chunked", rule, ["train.loss=full", "train.loss=fused"])


def _graphs(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings that CUDA graphs do not support (``core/transformer/cuda_graphs.py``)."""
    path, value, without = "train.cuda_graphs", spec.train.cuda_graphs, "train.cuda_graphs=none"
    if value == "none":
        return
    if spec.hardware.device == "cpu":
        rule = "graphs capture CUDA kernels, and this run has CPU ranks (hardware.device)"
        yield ConfigError(path, value, rule, [without, "hardware=h100_80g"])
    elif not implementation(spec).transformer_engine:
        rule = "Transformer Engine captures the graphs, and the layers are Megatron-core's own (transformer-impl)"
        yield ConfigError(path, value, rule, [without])
    if spec.backend.path is not None:
        rule = "pretrain_gpt.py of 0.19.2 does not pass on use_te_rng_tracker, without which it refuses graphs"
        yield ConfigError(path, value, rule, [without, "backend.path=null"])
    if spec.checkpointing.mode != "none":
        rule = "the memory of recomputation inside a graph is not counted"
        yield ConfigError(path, value, rule, [without, "checkpointing=none"])
    if spec.zero.stage >= 2:
        rule = "Megatron-FSDP gathers parameters into changing buffers, and a graph always reads the same ones"
        yield ConfigError(path, value, rule, [without, "zero.stage=1"])


def _schedule(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for warm-ups that ``OptimizerParamScheduler`` lacks: it warms up linearly, within its schedule's steps."""
    optimizer = spec.optimizer
    decay, warmup = optimizer.schedule_steps(spec.steps), spec.warmup_steps
    rule = "Megatron-LM warms up linearly; any other warm-up would change the training"
    yield from edit.refused(spec, "optimizer.warmup", rule, "parallel=fsdp")
    if warmup >= decay:
        rule = f"Megatron-LM stops at the start: warm-up must end before its schedule ends, at step {decay}"
        way_out = [edit.warm_up_override(spec, decay // 10), f"optimizer.decay_steps={warmup * 10}"]
        yield ConfigError(*edit.warm_up(spec), rule, way_out)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings about an assumed GPU, a padded vocabulary, unbalanced experts, and settings the optimizer ignores."""
    yield from _shared.over_one_rank(spec, unasked=1)
    for rule in (checkout.warnings, _assumed, _padded, _idle, extra.warnings):
        yield from rule(spec)


def _assumed(spec: RunSpec) -> Iterator[ConfigError]:
    hardware = spec.hardware
    if hardware.device == "cuda" and hardware.compute_capability is None:
        rule = (
            f"{hardware.effective_capability} is assumed, the lowest with the formats of hardware.dtypes: the attention"
            f" kernel, workspaces and CUDA_DEVICE_MAX_CONNECTIONS depend on it"
        )
        way_out = [f"hardware.compute_capability={hardware.effective_capability}"]
        yield ConfigError("hardware.compute_capability", None, rule, way_out)
        if (scaling := recipe(spec)) in _CAPABILITIES:
            rule = f"it runs from compute capability {_CAPABILITIES[scaling][0]} on, and this GPU's is not known"
            yield ConfigError("precision.recipe", scaling, rule, ["precision.recipe=tensorwise"])


def _idle(spec: RunSpec) -> Iterator[ConfigError]:
    yield from _optimizers.idle_keys(spec)
    balanced = any(name(key) in _BALANCING for key in spec.backend.extra)
    balanced = balanced or spec.model.router_aux_loss_coef > 0 or families.of(spec.model).traits.balances_experts
    if spec.model.num_experts and not balanced:
        rule = "no loss balances the experts, as with the other engines: the router may leave most of them idle"
        yield ConfigError("model.num_experts", spec.model.num_experts, rule, ["model.router_aux_loss_coef=0.01"])


def _padded(spec: RunSpec) -> Iterator[ConfigError]:
    """Warn about padding of the vocabulary (``training/vocab_utils.py``)."""
    multiple, size = vocabulary_multiple(spec), spec.model.vocab_size
    rows = padded(size, multiple * spec.parallel.tensor)
    if rows != size:
        rule = (
            f"Megatron-LM pads the vocabulary to a multiple of {multiple} x tensor"
            f" {spec.parallel.tensor}: {rows} rows, and as many logits"
        )
        yield ConfigError("model.vocab_size", size, rule, [edit.override("model.vocab_size", rows)])
