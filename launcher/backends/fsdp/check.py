"""Limits of the FSDP2 and DDP worker, each with the way out, and pitfalls of valid runs.

One backend drives two engines: FSDP2 where ``parallel.shard`` is true, else DDP. Settings that only one of them reads
are refused with the other. The worker is ours, so the rules say what this version of it does, and torch's own limits
where it has them (schedules, formats, the layout of 4-bit weights). A user's script reads ``spec.json`` as it likes,
so almost no rule applies to it.
"""

from collections.abc import Iterator

from launcher.backends import _models, _optimizers, _shared
from launcher.backends.fsdp import expert_ranks, float8, rounding
from launcher.backends.fsdp.traits import dtypes, engine, is_ddp, splits
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.spec import RunSpec, edit
from launcher.spec.change import batches_typed
from launcher.spec.values import beside_products

_EITHER = "the format of the parameters or of the computation"
_OPTIMIZERS = ("adamw", "sgd", "adamw_8bit", "adamw_4bit", "paged_adamw_8bit", "adafactor", "lion", "muon")
_ON_THE_DEVICE = {
    "muon": "it multiplies matrices that it gathers from the ranks",
    "adafactor": "it gathers each matrix from the ranks",
    "paged_adamw_8bit": "bitsandbytes pages the states of parameters on the GPU",
}
_NOT_IN_A_RING = {
    "model.attention": "ring attention uses torch's own kernels; any other would see only one rank's tokens",
    "model.dropout": "torch's ring attention does not redraw the forward pass's dropout in backward",
    "train.compile": "this version does not call ring attention from compiled blocks",
    "parallel.pipeline": "in this version pipeline stages pass on whole sequences",
}
"""Settings that context parallelism does not support, and the reason."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for everything that the worker would otherwise drop; a user's script reads ``spec.json`` as it likes."""
    yield from _models.shared_latents(spec, "parallel.context")
    yield from _models.shared_latents(spec, "parallel.ulysses")
    if spec.script is not None:
        return
    rule = "backend=fsdp does not split experts over ranks"
    yield from edit.refused(spec, "parallel.expert_tensor", rule, "parallel=ep")
    yield from check_context(spec)
    yield from _ulysses(spec)
    yield from _tensor(spec)
    yield from expert_ranks.check(spec)
    yield from _async_tensor(spec)
    yield from _pipeline(spec)
    yield from _sharding(spec)
    yield from _kept(spec)
    yield from _offload(spec)
    yield from _engine(spec)
    yield from _precision(spec)
    yield from float8.check(spec)
    yield from rounding.check(spec)
    yield from _optimizer(spec)
    yield from _shared.check_worker(spec)
    yield from _shared.check_packing(spec)
    yield from _models.check(spec)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings about settings whose effect may surprise."""
    yield from _shared.over_one_rank(spec)
    yield from _shared.compiled_choice(spec)
    yield from _shared.keeps_softmax(spec)
    yield from expert_ranks.warnings(spec)
    yield from float8.warnings(spec)
    if spec.script is None:
        yield from _optimizers.idle_keys(spec)
        yield from _kept_whole(spec)
        yield from _wide_experts(spec)


def _wide_experts(spec: RunSpec) -> Iterator[ConfigError]:
    """Warn about experts under autocast, which lacks ``_grouped_mm`` (transformers ``integrations/moe.py``)."""
    if spec.hardware.device == "cuda" and spec.model.num_experts and engine(spec).autocast:
        rule = "autocast leaves routed experts' matrix products in fp32, several times slower than in 16 bits"
        yield ConfigError("parallel.shard", False, rule, ["parallel=fsdp", "precision.parameters=bf16"])


def _kept_whole(spec: RunSpec) -> Iterator[ConfigError]:
    """Warn about sharding that a split schedule suspends during a step (``_add_unshard_reshard``, ``schedules.py``)."""
    if splits(spec) and spec.parallel.shard and (spec.zero.stage == 3 or spec.backend.micro_step_sync):
        rule = (
            "with this schedule torch keeps the stages gathered for a whole step and reduces their gradients after its"
            " last pass, whatever zero.stage and backend.micro_step_sync say"
        )
        way_out = ["zero=2 backend.micro_step_sync=false", "parallel.schedule=1f1b parallel.virtual_pipeline=1"]
        yield ConfigError("parallel.schedule", spec.parallel.schedule, rule, way_out)


def _tensor(spec: RunSpec) -> Iterator[ConfigError]:
    model, degree = spec.model, spec.parallel.tensor
    if degree == 1:
        return
    path, back = "parallel.tensor", ["parallel.tensor=1"]
    if not spec.parallel.shard:
        rule = "tensor parallelism combines with FSDP2, not with DDP"
        yield ConfigError(path, degree, rule, ["parallel=fsdp_tp", *back])
    if families.of(model).traits.not_linear is not None:
        rule = f"backend=fsdp splits only models of the family llama, and this is {model.family}"
        ways = [*back, *(["parallel.tensor=1 parallel.sequence=false"] if spec.parallel.sequence else [])]
        yield ConfigError(path, degree, rule, [*ways, *_models.by_megatron(spec)])
    elif model.key_value_heads % degree:
        rule = f"must divide the {model.key_value_heads} key and value heads: transformers does not repeat them"
        yield ConfigError(path, degree, rule, _models.tensor_degrees(spec))
    if spec.adapter.name != "none":
        yield from _cut_adapter(spec)
    if spec.parallel.sequence and spec.train.loss == "chunked":
        rule = "the chunked loss splits the sequence, which parallel.sequence already splits over the ranks"
        yield ConfigError("train.loss", "chunked", rule, ["train.loss=full", "parallel.sequence=false"])


def _cut_adapter(spec: RunSpec) -> Iterator[ConfigError]:
    adapter, back = spec.adapter, "parallel.tensor=1"
    if adapter.bits:
        rule = "tensor parallelism cannot split quantised weights, whose codes and constants stay whole"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=lora", back])
    rule = "DoRA needs the norms of whole rows and columns, which tensor parallel ranks split"
    yield from edit.refused(spec, "adapter.dora", rule, back)
    rule = "each tensor parallel rank would drop different inputs of the adapter matrices that all hold"
    yield from edit.refused(spec, "adapter.dropout", rule, back)


def _async_tensor(spec: RunSpec) -> Iterator[ConfigError]:
    """Requirements of torch's ``micro_pipeline_tp``: sequence parallelism, torch.compile and symmetric memory."""
    path, parallel = "parallel.async_tensor", spec.parallel
    if not parallel.async_tensor:
        return
    if parallel.tensor == 1 or not parallel.sequence:
        rule = "it overlaps the all-gathers and reduce-scatters of sequence parallelism with matrix products"
        yield ConfigError(path, True, rule, ["parallel.tensor=2 parallel.sequence=true", f"{path}=false"])
    if not spec.train.compile:
        rule = "torch.compile is what fuses these collectives with the matrix products"
        yield ConfigError(path, True, rule, ["train.compile=true", f"{path}=false"])
    if spec.hardware.device == "cpu":
        rule = "the ranks exchange parts in symmetric memory, which only GPUs have"
        yield ConfigError(path, True, rule, [f"{path}=false"])
    elif parallel.tensor > (linked := min(spec.cluster.gpus_per_node, spec.hardware.link_gpus or parallel.tensor)):
        rule = "the ranks exchange parts in symmetric memory, which only GPUs of one node share, by NVLink or xGMI"
        ways = [] if linked == 1 else [edit.override("parallel.tensor", linked)]
        yield ConfigError(path, True, rule, [*ways, f"{path}=false"])


def _pipeline(spec: RunSpec) -> Iterator[ConfigError]:
    stages, schedule, count = spec.parallel.pipeline, spec.parallel.schedule, spec.gradient_accumulation
    if stages == 1:
        return
    if splits(spec):
        whole = "parallel.schedule=1f1b" if spec.parallel.virtual_pipeline == 1 else "parallel.schedule=interleaved"
        for path, value, reason, other in _unsplit(spec):
            yield ConfigError(path, value, f"{schedule} splits backward passes, {reason}", [other, whole])
    elif schedule == "1f1b" and count < stages:
        rule = f"torch's 1F1B needs a micro-batch for each of the {stages} stages, and an optimizer step has {count}"
        way_out = [batches_typed(spec, stages, spec.micro_batch_size), "parallel.schedule=gpipe"]
        yield ConfigError("train.global_batch_size", spec.global_batch_size, rule, way_out)
    if spec.adapter.bits:
        rule = "this version does not split a model with quantised weights into pipeline stages"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=lora", "parallel.pipeline=1"])


def _unsplit(spec: RunSpec) -> Iterator[tuple[str, object, str, str]]:
    """Settings that a separate backward pass for the weights does not support (``pipelining/_backward.py``)."""
    if is_ddp(spec):
        rule = "and the part for the weights does not call DDP's hooks, so nothing would be reduced"
        yield "parallel.schedule", spec.parallel.schedule, rule, "parallel=fsdp_pp"
    if spec.backend.reshard_after_forward:
        rule = "and torch keeps a stage gathered for the whole step"
        yield "backend.reshard_after_forward", True, rule, "backend.reshard_after_forward=null"
    if (compute := spec.precision.compute) in ("fp8", "fp4"):
        rule = "and torchao's products compute the gradients of inputs and weights in one pass"
        yield "precision.compute", compute, rule, "precision=bf16"
    if spec.train.compile:
        rule = "and compiled blocks compute the gradients of inputs and weights in one pass, which torch refuses here"
        yield "train.compile", True, rule, "train.compile=false"
    if spec.checkpointing.mode != "none":
        rule = "and would recompute a block for its inputs and again for each of its weights, and keep all of it"
        yield "checkpointing.mode", spec.checkpointing.mode, rule, "checkpointing=none"
    if spec.train.loss == "chunked":
        rule = "and would recompute the logits of each chunk in both parts"
        yield "train.loss", "chunked", rule, "train.loss=full"


def _sharding(spec: RunSpec) -> Iterator[ConfigError]:
    stage, path = spec.zero.stage, "zero.stage"
    if not spec.parallel.shard and stage:
        rule = f"DDP (parallel.shard=false) shards nothing, but zero.stage={stage} asks for sharding"
        yield ConfigError(path, stage, rule, ["zero.stage=0", "parallel=fsdp zero=3", f"parallel=zero{stage}"])
    if spec.parallel.shard and stage < 2:
        rule = (
            "FSDP2 shards parameters, gradients and optimizer states: stage 3 frees gathered parameters, 2 keeps them"
        )
        other = "parallel=ddp" if stage == 0 else "parallel=zero1"
        yield ConfigError(path, stage, rule, ["zero.stage=3", "zero.stage=2", other])


def _kept(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for rank counts to which FSDP2 cannot reshard after forward (``_get_post_forward_mesh_info``)."""
    path, value, degree = "backend.reshard_after_forward", spec.backend.reshard_after_forward, spec.shard_degree
    if value is None or isinstance(value, bool) or not spec.parallel.shard:
        return
    legal = [f"{path}={ranks}" for ranks in edit.divisors(degree)[1:-1]]
    if not 1 < value < degree or degree % value:
        rule = f"a number must divide the {degree} ranks over which FSDP2 shards, and be neither 1 nor all of them"
        yield ConfigError(path, value, rule, [f"{path}=true", f"{path}=false", *legal[:2]])
    if spec.parallel.tensor > 1:
        rule = "FSDP2 cannot reshard tensor parallel parameters over a subset of ranks (DTensor)"
        yield ConfigError(path, value, rule, [f"{path}=true", "parallel.tensor=1"])
    if spec.parallel.expert > 1:
        rule = "this version cannot reshard over a subset of ranks with expert parallelism"
        yield ConfigError(path, value, rule, [f"{path}=true", "parallel.expert=1"])
    if spec.adapter.bits:
        rule = "this version cannot reshard quantised weights over a subset of ranks"
        yield ConfigError(path, value, rule, [f"{path}=true", "adapter=lora"])


def _offload(spec: RunSpec) -> Iterator[ConfigError]:
    zero = spec.zero
    for part in ("parameters", "optimizer"):
        path, where = f"zero.offload_{part}", getattr(zero, f"offload_{part}")
        if where == "nvme":
            ways = ["zero.offload_parameters=cpu", "parallel=zero3 zero.max_reuse_distance=0"]
            yield ConfigError(path, where, "FSDP2 offloads only to host memory", ways)
    if zero.offload_optimizer == "cpu" and zero.offload_parameters == "none":
        rule = "FSDP2 offloads parameters, gradients and optimizer states together (CPUOffloadPolicy)"
        way_out = ["zero.offload_parameters=cpu", "zero.offload_optimizer=none", "parallel=zero2"]
        yield ConfigError("zero.offload_optimizer", "cpu", rule, way_out)
    if zero.offload_parameters != "none" and not spec.parallel.shard:
        rule = "DDP keeps the whole model on the device; only FSDP2 offloads"
        path = "zero.offload_parameters"
        yield ConfigError(path, zero.offload_parameters, rule, ["zero.offload_parameters=none", "parallel=fsdp"])
    if zero.offload_parameters == "cpu" and spec.adapter.bits:
        rule = "this version keeps quantised weights on the device"
        yield ConfigError("zero.offload_parameters", "cpu", rule, ["zero.offload_parameters=none", "adapter=lora"])


def _engine(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.parallel.shard:
        idle = "backend.bucket_view backend.bucket_cap_mb"
        yield from edit.refused(spec, idle, "only DDP reads it", first=["parallel=ddp"])
    else:
        idle = "backend.reshard_after_forward backend.micro_step_sync"
        yield from edit.refused(spec, idle, "only FSDP2 reads it", first=["parallel=fsdp"])
    if given := _shared.given(spec.backend.extra):
        rule = "FSDP2 and DDP take no extra settings"
        way = " ".join(f"+backend.extra.{key}=null" for key in given)
        yield ConfigError("backend.extra", given, rule, [way])


def _precision(spec: RunSpec) -> Iterator[ConfigError]:
    compute, meaning = spec.precision.compute, dtypes(spec)
    if spec.model.model_type == "dbrx" and spec.hardware.device == "cpu" and meaning.autocast:
        rule = "transformers' DbrxExperts adds bf16 to fp32 under the CPU's autocast (not CUDA's), which torch refuses"
        yield ConfigError("model.model_type", "dbrx", rule, ["precision.parameters=bf16", "parallel=fsdp"])
    products = beside_products(compute)
    parameters = meaning.parameters
    gradients = products if spec.parallel.shard else parameters
    states = ("fp32", "the format in which bitsandbytes keeps Lion's states")
    if spec.optimizer.name != "lion":
        states = (parameters, "the parameters' own format")
    reduced = ("fp32", "bf16") if spec.parallel.shard or parameters == "fp32" else ("bf16",)
    held = ("fp32",) if compute == "fp16" else ("fp32", products)
    what = "fp32, since torch cannot unscale fp16 gradients" if compute == "fp16" else _EITHER
    wanted = {
        "parameters": (parameters, held, what),
        "gradients": (meaning.gradients, (gradients,), "the format in which backward makes them"),
        "accumulate": (meaning.accumulate, (parameters,), "the parameters' own format"),
        "optimizer_states": (meaning.optimizer_states, states[:1], states[1]),
        "reduce": (meaning.reduce, reduced, " or ".join(reduced)),
    }
    for key, (value, legal, what) in wanted.items():
        if value not in legal:
            path = f"precision.{key}"
            found = getattr(spec.precision, key)
            yield ConfigError(path, found, f"backend=fsdp uses {what}", [edit.override(path, value) for value in legal])
    if meaning.master is not None:
        rule = "torch's optimizers keep no second copy of the parameters"
        yield ConfigError("precision.master", meaning.master, rule, ["precision.master=null", "parallel=zero3"])


def _optimizer(spec: RunSpec) -> Iterator[ConfigError]:
    name = spec.optimizer.name
    yield from _optimizers.check(spec, _OPTIMIZERS)
    if spec.precision.compute == "fp16" and name not in ("adamw", "sgd"):
        rule = f"{name} is not tested with a loss scale in this version"
        yield ConfigError("optimizer.name", name, rule, ["optimizer=adamw", "precision=bf16"])
    if name in _ON_THE_DEVICE and spec.zero.offload_parameters == "cpu":
        rule = f"{name} needs its parameters on the device: {_ON_THE_DEVICE[name]}"
        yield ConfigError("zero.offload_parameters", "cpu", rule, ["zero.offload_parameters=none", "optimizer=adamw"])
    if spec.save.asynchronous and name in ("adamw_8bit", "adamw_4bit"):
        rule = f"torch cannot copy the quantised states of {name} for a background write"
        yield ConfigError("save.async", True, rule, ["save.async=false", "optimizer=adamw"])


def check_context(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings that context parallelism does not support."""
    if spec.parallel.context == 1:
        return
    for path, rule in _NOT_IN_A_RING.items():
        yield from edit.refused(spec, path, rule, "parallel.context=1")
    if spec.precision.compute == "fp32" and spec.hardware.device == "cuda":
        rule = "on a GPU the kernels of ring attention take only 16-bit formats"
        yield ConfigError("precision.compute", "fp32", rule, ["precision=bf16", "parallel.context=1"])


def _ulysses(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings that DeepSpeed's exchange of heads and sequences does not support."""
    path = "parallel.ulysses"
    if spec.parallel.ulysses == 1:
        return
    rule = "Ulysses runs torch's attention between its exchanges; any other would see only one rank's tokens"
    yield from edit.refused(spec, "model.attention", rule, f"{path}=1")
    rule = "this version does not call Ulysses from compiled blocks"
    yield from edit.refused(spec, "train.compile", rule, f"{path}=1")
    for axis in ("tensor", "pipeline", "context", "expert"):
        rule = f"this version combines Ulysses only with data parallelism, not with parallel.{axis}"
        yield from edit.refused(spec, f"parallel.{axis}", rule, f"{path}=1")
