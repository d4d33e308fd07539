"""Limits of this backend, each with the way out, and pitfalls of valid runs (DeepSpeed 0.19.8).

A setting is refused where the translation or the worker would drop it, where DeepSpeed stops with an error, and, most
important, where DeepSpeed silently does something else: each such rule names the file of DeepSpeed that shows it. A
user's script must meet DeepSpeed's own requirements, but not the limits of our worker.
"""

from collections.abc import Iterator
from math import log2

from launcher.backends import _models, _optimizers, _shared
from launcher.backends.deepspeed import extra, optimizer
from launcher.backends.deepspeed.partition import PARAMETER_BUFFERS, swapping
from launcher.backends.deepspeed.traits import dtypes
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.spec import RunSpec, edit

_AXES = {"context": "cp", "expert": "ep", "replicate": "hsdp"}
"""Axes that this backend's worker does not support yet, and the preset that has each."""

_STAGE_3 = (
    "zero.prefetch_bucket_size zero.max_live_parameters zero.max_reuse_distance zero.param_persistence_threshold"
    " zero.sub_group_size"
)
"""Keys that DeepSpeed reads only at stage 3 (runtime/zero/config.py)."""

_NOT_IN_STAGES = {
    "parallel.tensor": "its grid of ranks has no axis for AutoTP",
    "parallel.ulysses": "its grid of ranks has no axis for ranks that share a sequence",
    "parallel.virtual_pipeline": "a stage is one contiguous group of layers",
    "parallel.schedule": "it has one schedule, 1F1B (runtime/pipe/schedule.py)",
    "zero.overlap_comm": "it reduces gradients once, after the last backward pass",
    "zero.offload_optimizer": "this version has not tested offloaded optimizer states with pipeline stages",
    "adapter.name": "this version has not tested an adapter's frozen layers with pipeline stages",
}
"""Settings that its pipeline stages do not support, and the reason."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for all that the translation or the worker would drop, or that DeepSpeed refuses or gets wrong."""
    yield from _shared.whole_gradients_in_stages(spec)
    for rule in (_axes, _tensor, _pipeline, _ulysses, _stages, _quantized, _offload, _precision, _optimizer):
        yield from rule(spec)
    if spec.script is None:
        yield from _training(spec)
    yield from extra.check(spec)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings for keys unused at this stage, kernels compiled on the node, and values the estimate cannot see."""
    zero = spec.zero
    yield from _shared.over_one_rank(spec)
    yield from _shared.compiled_choice(spec)
    yield from _shared.keeps_softmax(spec)
    if spec.script is None:
        yield from _optimizers.idle_keys(spec)
    if zero.stage < 3:
        rule = f"DeepSpeed reads it only at stage 3, and this is stage {zero.stage}"
        yield from edit.refused(spec, _STAGE_3, rule, first=["zero=3"])
    if spec.hardware.device == "cuda" and not optimizer.is_torch(spec):
        kernel = "FusedAdam" if zero.offload_optimizer == "none" else "DeepSpeedCPUAdam"
        when = "on each node at first use, which needs a compiler and takes minutes"
        swaps = zero.offload_optimizer == "nvme"
        instead = "offload to NVMe needs it" if swaps else "torch's AdamW needs neither"
        rule = f"DeepSpeed compiles its {kernel} {when}; {instead}"
        yield ConfigError("optimizer.fused", None, rule, [] if swaps else ["optimizer.fused=true"])
    if zero.hpz > spec.cluster.gpus_per_node:
        rule = f"the second partition is meant to stay inside a node of {spec.cluster.gpus_per_node}"
        yield ConfigError("zero.hpz", zero.hpz, rule, [f"zero.hpz={spec.cluster.gpus_per_node}"])
    yield from extra.warnings(spec)


def _axes(spec: RunSpec) -> Iterator[ConfigError]:
    rule = "in this version backend=deepspeed supports data, tensor, pipeline and Ulysses parallelism and ZeRO"
    for axis, preset in _AXES.items():
        yield from edit.refused(spec, f"parallel.{axis}", rule, f"parallel={preset}")


def _tensor(spec: RunSpec) -> Iterator[ConfigError]:
    degree, model, path = spec.parallel.tensor, spec.model, "parallel.tensor"
    if degree == 1:
        return
    back = [f"{path}=1", "parallel=tp"]
    uncut = families.of(model).traits.not_linear
    if uncut is not None:
        rule = f"AutoTP splits linear layers, and in the family {model.family} it would have to split {uncut}"
        yield ConfigError(path, degree, rule, back)
    elif model.key_value_heads % degree:
        rule = f"must divide the {model.key_value_heads} key and value heads: AutoTP gives other ranks no attention"
        yield ConfigError(path, degree, rule, _models.tensor_degrees(spec))
    rule = "AutoTP keeps norms and residuals whole on every tensor parallel rank"
    yield from edit.refused(spec, "parallel.sequence", rule, "parallel=tp")
    if spec.adapter.name != "none":
        rule = "an adapter's matrices are inside the linear layers that AutoTP replaces"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=none", "parallel.tensor=1"])
    rule = "DeepSpeed forms the secondary partition from neighbouring ranks, which here split tensors"
    yield from edit.refused(spec, "zero.hpz", rule, "parallel.tensor=1")


def _pipeline(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.parallel.pipeline == 1:
        return
    for path, reason in _NOT_IN_STAGES.items():
        if edit.value_at(spec, path) is not False:
            rule = f"DeepSpeed's PipelineModule does not support it: {reason}"
            yield from edit.refused(spec, path, rule, "parallel.pipeline=1")
    if families.of(spec.model).traits.choices is not None:
        rule = "this version has not measured what PipelineModule saves for layers of this model type"
        yield from edit.refused(spec, "parallel.pipeline", rule, "parallel.pipeline=1")
    if spec.zero.stage == 0 and spec.precision.compute != "fp32":
        rule = "without ZeRO, PipelineModule uses BF16_Optimizer in bf16, whose memory and maths are not tested here"
        yield ConfigError("zero.stage", 0, rule, ["zero=1", "precision=fp32"])


def _ulysses(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for attention that Ulysses cannot give whole sequences, and for rank groups that conflict with its own."""
    if spec.parallel.ulysses == 1:
        return
    yield from _models.shared_latents(spec, "parallel.ulysses")
    if spec.model.attention != "sdpa" and spec.script is None:
        rule = "Ulysses runs torch's attention between its exchanges; any other would see only one rank's tokens"
        way_out = ["model.attention=sdpa", "parallel.ulysses=1"]
        yield ConfigError("model.attention", spec.model.attention, rule, way_out)
    for path in ("parallel.tensor", "parallel.pipeline", "zero.hpz"):
        if (degree := edit.value_at(spec, path)) != 1:
            rule = "DeepSpeed's process groups for it do not account for ranks that share a sequence"
            yield ConfigError(path, degree, rule, [edit.override(path, 1), "parallel.ulysses=1"])


def _stages(spec: RunSpec) -> Iterator[ConfigError]:
    zero = spec.zero
    if zero.stage == 0 and zero.overlap_comm is not None:
        rule = "without ZeRO there is no gradient reduction to overlap"
        yield ConfigError("zero.overlap_comm", zero.overlap_comm, rule, ["zero=1", "zero.overlap_comm=null"])
    rule = "checkpoints save each rank's shard and the export gathers one parameter at a time, so nothing reads it"
    yield from edit.refused(spec, "zero.gather_16bit_weights_on_save", rule, "save.export=safetensors")
    if zero.hpz > 1 and zero.stage != 3:
        rule = "a secondary partition of the parameters needs ZeRO 3, which partitions them"
        yield ConfigError("zero.hpz", zero.hpz, rule, ["zero.hpz=1", "zero=3"])
    elif spec.gpus % zero.hpz:
        path = "zero.hpz"
        legal = edit.nearest(spec, path, edit.divisors(spec.gpus), lambda _: True, limit=2)
        yield ConfigError(path, zero.hpz, f"must divide the {spec.gpus} ranks", legal)


_QUANTUM = 8
"""Elements that the kernel of ``CUDAQuantizer`` takes at once; it asserts that each share is a multiple."""


def _quantized(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for ZeRO++ where its kernels do not run, do nothing, or would misread another format."""
    for key, what in (("quantized_weights", "parameters are gathered"), ("quantized_gradients", "gradients are sent")):
        path = f"zero.{key}"
        if not getattr(spec.zero, key):
            continue
        if spec.zero.stage != 3:
            rule = f"{what} in fewer bits only with ZeRO 3, which partitions the parameters (runtime/zero/stage3.py)"
            yield ConfigError(path, True, rule, [f"{path}=false", "zero=3"])
        if spec.hardware.device == "cpu":
            rule = "DeepSpeed's quantizer is a CUDA kernel (op_builder/quantizer.py), and these ranks are CPUs"
            yield ConfigError(path, True, rule, [f"{path}=false", "hardware=h100_80g"])
    if spec.zero.quantized_weights:
        yield from _shares(spec)
    if spec.zero.quantized_gradients:
        yield from _exchanged(spec)


def _shares(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for shares of the norms that are not a multiple of the kernel's, or padded, which misplaces the scales."""
    ranks = spec.shard_degree
    if spec.model.hidden_size % (_QUANTUM * ranks):
        rule = (
            f"each of the {ranks} ranks quantizes its share of a norm, {_QUANTUM} elements at once, and the "
            f"{spec.model.hidden_size} elements do not split so"
        )
        yield ConfigError("zero.quantized_weights", True, rule, ["zero.quantized_weights=false"])


def _exchanged(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for gradients of one node, of more than one axis, or in a format that the kernel misreads as fp16."""
    path, off = "zero.quantized_gradients", "zero.quantized_gradients=false"
    if spec.cluster.nodes == 1:
        rule = (
            "DeepSpeed quantizes gradients only across several nodes and reduces them unquantized on one "
            "(runtime/zero/stage3.py)"
        )
        yield ConfigError(path, True, rule, [off, "cluster.nodes=2"])
    if dtypes(spec).reduce != "fp16":
        rule = "the kernel reads gradients as fp16 and would misread any other format (swizzled_quantize.cu)"
        yield ConfigError("precision.reduce", spec.precision.reduce, rule, ["precision.reduce=fp16", off])
    rule = "the all-to-alls of quantized gradients span all ranks (runtime/comm/coalesced_collectives.py)"
    yield from edit.refused(spec, "parallel.tensor parallel.ulysses", rule, off)


def _offload(spec: RunSpec) -> Iterator[ConfigError]:
    zero, buffers = spec.zero, swapping(spec)
    usual = buffers is not None and buffers.parameter_buffers == PARAMETER_BUFFERS
    if zero.offload_parameters == "nvme" and zero.max_reuse_distance and usual:
        rule = "each weight kept for reuse occupies an NVMe buffer, and DeepSpeed stops when they run out"
        ways = ["zero.max_reuse_distance=0", "zero.offload_parameters=cpu"]
        yield ConfigError("zero.max_reuse_distance", zero.max_reuse_distance, rule, ways)
    for part, least in (("optimizer", 1), ("parameters", 3)):
        path, device = f"zero.offload_{part}", getattr(zero, f"offload_{part}")
        # ZeRO 1 and 2 silently treat "nvme" as "cpu" (runtime/zero/stage_1_and_2.py).
        needed = 3 if device == "nvme" else least
        if device != "none" and zero.stage < needed:
            rule = f"offload of {part} to {device} needs ZeRO {needed}" + (" or more" if needed < 3 else "")
            instead = ["zero.offload_optimizer=cpu"] if device == "nvme" and part == "optimizer" and zero.stage else []
            yield ConfigError(path, device, rule, [f"zero={needed}", *instead, f"{path}=none"])
        if device == "nvme" and zero.nvme_path is None:
            rule = f"{path}=nvme needs a folder on the NVMe disk of each node"
            yield ConfigError("zero.nvme_path", None, rule, ["zero.nvme_path=/local_nvme"])


def _optimizer(spec: RunSpec) -> Iterator[ConfigError]:
    name, path = spec.optimizer.name, "optimizer.name"
    if name in optimizer.REFUSED:
        yield ConfigError(path, name, optimizer.REFUSED[name], ["parallel=fsdp", "optimizer=adamw", "optimizer=lion"])
    else:
        yield from _optimizers.check(spec, optimizer.SUPPORTED)
        yield from _optimizers.round_to_nearest(spec)
    if name not in optimizer.OWN:
        yield from _of_bitsandbytes(spec)
    if name != "adamw" and spec.zero.offload_optimizer != "none":
        rule = f"{name} would step on the CPU, where DeepSpeed has no kernel for it"
        path = "zero.offload_optimizer"
        yield ConfigError(path, spec.zero.offload_optimizer, rule, ["optimizer=adamw", f"{path}=none"])
    if name in optimizer.OWN and spec.zero.offload_optimizer == "nvme":
        rule = "NVMe offload swaps the state of DeepSpeedCPUAdam, which has no such option"
        yield from edit.refused(spec, "optimizer.fused optimizer.foreach", rule, "zero.offload_optimizer=cpu")


def _of_bitsandbytes(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for runs that would not use the optimizer, or use it with untested tensors."""
    name, path = spec.optimizer.name, "optimizer.name"
    if name in optimizer.REFUSED:
        return
    if spec.script is not None:
        rule = "the launcher's worker creates it, and ds_config.json has no entry that would give it to a script"
        yield ConfigError(path, name, rule, ["optimizer=adamw", "script=null"])
    if spec.zero.stage == 0:
        yield ConfigError(
            path, name, "it is tested only with ZeRO 1 to 3", ["zero=1", "parallel=ddp", "optimizer=adamw"]
        )
    if name != "lion" and spec.parallel.pipeline > 1:
        rule = "stages would have different parameter groups, and DeepSpeed sums norms over the stages group by group"
        yield ConfigError(path, name, rule, ["optimizer=lion", "optimizer=adamw", "parallel.pipeline=1"])
    if dtypes(spec).optimizer_states != "fp32":
        rule = "bitsandbytes keeps moments in fp32 or 8 bits"
        found = spec.precision.optimizer_states
        yield ConfigError("precision.optimizer_states", found, rule, ["precision.optimizer_states=null"])


def _training(spec: RunSpec) -> Iterator[ConfigError]:
    yield from _shared.check_worker(spec)
    yield from _shared.check_packing(spec)
    yield from _models.check(spec)
    if spec.train.compile and (spec.zero.stage == 3 or spec.model_parallel > 1):
        rule = (
            "blocks are compiled only with ZeRO 0 to 2 and pure data parallelism: ZeRO 3's hooks and other ranks'"
            " exchanges would break the graph"
        )
        yield ConfigError("train.compile", True, rule, ["train.compile=false", "parallel=zero2"])
    rule = "backend=deepspeed writes checkpoints in the foreground"
    yield from edit.refused(spec, "save.async", rule, "parallel=fsdp")
    if spec.adapter.dora and spec.zero.stage == 3:
        rule = "ZeRO 3 has already partitioned a weight again when DoRA reads it for its norm"
        yield ConfigError("adapter.dora", True, rule, ["adapter.dora=false", "zero=2", "parallel=fsdp"])
    if spec.adapter.parameters and spec.zero.stage == 3:
        rule = "ZeRO 3 gathers weights when their module is called, and peft reads the adapter's without such a call"
        yield ConfigError("adapter.parameters", [*spec.adapter.parameters], rule, ["zero=2", "parallel=fsdp"])
    if spec.adapter.bits:
        rule = "ZeRO shards quantised weights as raw bytes, and only on the device"
        paths = "zero.quantized_weights zero.hpz zero.offload_parameters"
        yield from edit.refused(spec, paths, rule, "adapter=lora")


def _precision(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for formats that DeepSpeed does not combine, and for computation below 16 bits."""
    if (compute := spec.precision.compute) in ("fp8", "fp4"):
        rule = "this version of backend=deepspeed computes in bf16, fp16 or fp32"
        yield ConfigError("precision.compute", compute, rule, ["precision=bf16", "backend=megatron"])
        return
    yield from _one_format(spec)
    yield from _accumulation(spec)
    yield from _master(spec)
    yield from _fp16(spec)


def _one_format(spec: RunSpec) -> Iterator[ConfigError]:
    """The module is cast as a whole (``DeepSpeedEngine._cast_module_mixed_precision``)."""
    compute = spec.precision.compute
    for key in ("parameters", "gradients"):
        value = getattr(spec.precision, key)
        if value is not None and value != compute:
            rule = f"DeepSpeed casts the whole module: {key} have the compute format, {compute}"
            yield ConfigError(f"precision.{key}", value, rule, [f"precision.{key}=null", f"precision={value}"])
    if spec.precision.reduce not in (None, compute) and spec.zero.stage == 0 and compute == "fp32":
        rule = "without ZeRO, fp32 gradients are reduced in fp32"
        yield ConfigError("precision.reduce", spec.precision.reduce, rule, ["precision.reduce=null", "zero=1"])


def _accumulation(spec: RunSpec) -> Iterator[ConfigError]:
    compute, accumulate = spec.precision.compute, spec.precision.accumulate
    if accumulate in (None, compute):
        return
    path, keep = "precision.accumulate", "precision.accumulate=null"
    if accumulate != "fp32":
        rule = f"gradients in {compute} are accumulated in {compute} or fp32"
        yield ConfigError(path, accumulate, rule, [keep, "precision.accumulate=fp32"])
    elif spec.zero.stage == 0:
        rule = f"without ZeRO, {compute} gradients are accumulated in {compute} (unsupported mix, runtime/engine.py)"
        yield ConfigError(path, accumulate, rule, [keep, "zero=1"])


def _master(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for master weights and moments that do not match (``_configure_master_weights``, base_optimizer.py)."""
    formats = dtypes(spec)
    if spec.precision.compute == "fp32":
        for key in ("master", "optimizer_states"):
            value = getattr(spec.precision, key)
            if value not in (None, "fp32") and (key, value) != ("master", "none"):
                rule = "in fp32 the parameters themselves are the master weights, and the states are fp32"
                yield ConfigError(f"precision.{key}", value, rule, [f"precision.{key}=null", "precision=bf16"])
        return
    narrow = {"precision.master": formats.master, "precision.optimizer_states": formats.optimizer_states}
    path = next((path for path, value in narrow.items() if value != "fp32"), None)
    if path is None:
        return
    if {*narrow.values()} != {"bf16"} or formats.parameters != "bf16":
        rule = "master weights and optimizer states are both fp32, or both bf16 with bf16 parameters"
        both = ["precision.master=bf16 precision.optimizer_states=bf16"] if formats.parameters == "bf16" else []
        ways = ["precision.master=null", "precision.optimizer_states=null", *both]
        yield ConfigError(path, getattr(spec.precision, path.partition(".")[2]), rule, ways)
    elif spec.zero.stage == 0:
        yield from edit.refused(spec, "precision.master", "bf16 master weights need ZeRO", first=["zero=1"])
    elif spec.zero.offload_optimizer != "none":
        rule = "this version does not translate offloaded bf16 optimizer states"
        yield ConfigError("precision.master", "bf16", rule, ["precision.master=null", "zero.offload_optimizer=none"])


def _fp16(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for fp16: without ZeRO ``DeepSpeedEngine.backward`` does not scale the loss, yet the step unscales."""
    if spec.precision.compute != "fp16":
        return
    if spec.hardware.device == "cpu":
        rule = "DeepSpeed's CPU accelerator supports fp16 only on processors that compute in it (AVX512-FP16)"
        yield ConfigError("precision.compute", "fp16", rule, ["precision=bf16", "precision=fp32"])
    if spec.zero.stage == 0:
        rule = "without ZeRO, DeepSpeed 0.19.8 divides fp16 gradients by a loss scale that it never multiplied in"
        yield ConfigError("precision.compute", "fp16", rule, ["zero=1", "precision=bf16"])
    initial = spec.precision.initial_loss_scale
    if initial is not None and (initial < 1 or not log2(initial).is_integer()):
        rule = "DeepSpeed takes only a power of two (initial_scale_power)"
        near = 2 ** max(0, round(log2(initial)))
        ways = [edit.override("precision.initial_loss_scale", near), "precision.initial_loss_scale=null"]
        yield ConfigError("precision.initial_loss_scale", initial, rule, ways)
