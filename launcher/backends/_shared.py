"""Rules that several engines share: sharded model states, settings of our worker, and documents that share a sample."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from math import lcm
from operator import attrgetter
from typing import Any

from launcher.backends import Judgement
from launcher.base import package
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.base.units import DTYPE_BYTES
from launcher.estimate import families
from launcher.estimate.rank import recomputed
from launcher.job import RUN, Job, torchrun
from launcher.job.versions import Borrowed, Need
from launcher.spec import RunSpec, edit
from launcher.spec.hardware import AMPERE, HOPPER
from launcher.spec.values import beside_products

LAUNCH_SECONDS = 1.2e-5
"""Host seconds to launch a kernel of transformers' modules under its Trainer (``benchmarks/speed/frameworks.yaml``).
A lower bound for slow hosts: the one of ``benchmarks/results/gpu.json`` takes 28 microseconds."""


_GATED = "flash-linear-attention"


def _of_kernels(name: str) -> Borrowed:
    """A package whose kernels run some models' layers on a GPU; in plain torch they would save many times as much."""
    return Borrowed(
        "model.model_type",
        lambda spec: spec.hardware.device == "cuda" and name in families.of(spec.model).traits.packages(spec.model),
        packages=(name,),
        extra="mixers",
        way_out="hardware=cpu",
    )


TASKS = Borrowed("eval.tasks", lambda spec: bool(spec.eval.tasks), ("lm-eval",), "eval", "eval.tasks=[]")
"""The package that evaluates an exported model on tasks, after any engine."""

BORROWED = (
    TASKS,
    Borrowed("adapter.name", lambda spec: spec.adapter.name != "none", ("peft",), package.TRAINING, "adapter=none"),
    Borrowed(
        "precision.qat",
        lambda spec: spec.precision.qat is not None,
        ("torchao",),
        package.TRAINING,
        "precision.qat=null",
    ),
    Borrowed("adapter.name", lambda spec: spec.adapter.bits > 0, ("bitsandbytes",), package.TRAINING, "adapter=lora"),
    Borrowed("train.loss", lambda spec: spec.train.loss == "fused", ("liger-kernel",), "kernels", "train.loss=chunked"),
    Borrowed(
        "train.kernels", lambda spec: spec.train.kernels == "liger", ("liger-kernel",), "kernels", "train.kernels=none"
    ),
    *map(_of_kernels, ("mamba-ssm", "causal-conv1d", _GATED)),
)
"""Packages that settings of the engines that train ``transformers`` models need."""

NEEDS = (
    Need(
        package="triton",
        since="3.7.1",
        path="model.model_type",
        asked=lambda spec: (
            spec.hardware.device == "cuda"
            and spec.hardware.effective_capability == HOPPER
            and _GATED in families.of(spec.model).traits.packages(spec.model)
            and find_spec("tilelang") is None
        ),
        because="gets gradients of gated linear attention wrong on Hopper, so flash-linear-attention refuses it",
        way_out="pip install tilelang",
    ),
)
"""Versions that kernels of ``transformers`` models need (``fla/ops/common/chunk_o.py``, observed on an H100)."""

MEGATRON_MODULES = {
    "core_attn": "attention", "mla_up_proj": "attention", "moe_act": "experts", "moe": "experts",
    "shared_experts": "experts", "layernorm": "norm",
}  # fmt: skip
"""Megatron-core's ``--recompute-modules``, each with the module of a ``transformers`` class that contains it."""


def given(extra: Mapping[str, Any]) -> JsonObject:
    """The keys of ``backend.extra`` that are set: without ``null`` values and blocks that hold nothing else."""
    found = {key: given(value) if isinstance(value, Mapping) and value else value for key, value in extra.items()}
    return {key: value for key, value in found.items() if value is not None and (value != {} or extra[key] == {})}


def whole_gradients_in_stages(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for ZeRO 2 and 3 on engines whose pipeline stages do not support sharded gradients."""
    if spec.parallel.pipeline > 1 and spec.zero.stage >= 2:
        rule = "ZeRO 2 and 3 shard gradients, which a pipeline accumulates over its micro-batches"
        yield ConfigError("zero.stage", spec.zero.stage, rule, ["zero.stage=1", "parallel.pipeline=1"])


def ulysses_key_heads(spec: RunSpec) -> int | None:
    """Key and value heads that Ulysses exchanges and saves, repeated until the ranks divide them; None without it.

    ``lcm(heads, p)`` (``launcher/worker/model/ulysses.py``); all tokens of ``1 / p`` of these heads, which a rank
    saves, are as many bytes as all heads of its own tokens. Left out: the buffers of an exchange
    (``deepspeed/sequence/layer.py``, ``single_all_to_all``), since the MLP's tensors, live at another time, are larger.
    """
    degree = spec.parallel.ulysses
    return lcm(spec.model.key_value_heads, degree) if degree > 1 else None


def over_one_rank(spec: RunSpec, *, unasked: int = 0) -> Iterator[ConfigError]:
    """Warn about sharding over one rank; ``unasked`` is the highest ZeRO stage that the engine uses unasked."""
    meant = spec.parallel.shard or spec.zero.stage > unasked
    if meant and spec.shard_degree == 1:
        rule = f"each rank holds all shards (shard degree 1 in a world of {spec.gpus}): sharding saves nothing"
        path = "cluster.nodes" if spec.cluster.gpus_per_node >= 8 else "cluster.gpus_per_node"
        fewer = ["parallel.replicate=1"] if spec.parallel.replicate > 1 else []
        more = edit.override(path, 2 * attrgetter(path)(spec))
        yield ConfigError("zero.stage", spec.zero.stage, rule, [*fewer, more])


def compiled_choice(spec: RunSpec) -> Iterator[ConfigError]:
    """Warn about selective recomputation inside compiled blocks of our worker."""
    operators = spec.checkpointing.mode == "selective" and not spec.checkpointing.modules
    if spec.script is None and spec.train.compile and operators:
        rule = "inside compiled blocks the compiler decides what to recompute, from the same list of operators"
        yield ConfigError("train.compile", True, rule, ["train.compile=false", "checkpointing=full"])


def no_obstacles(spec: RunSpec) -> Iterator[ConfigError]:
    """Nothing: the engine needs only its packages of a machine."""
    yield from ()


def no_validator(spec: RunSpec) -> Judgement:
    """An empty judgement: the engine has no validator."""
    return Judgement()


def check_worker(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings that ``launcher.worker.model.network`` and ``launcher.worker.model`` would drop."""
    settings = spec.checkpointing
    if settings.mode == "full" and settings.method == "uniform" and (settings.layers or 1) > 1:
        rule = "each layer is a group of its own: transformers calls its layers one by one"
        way_out = ["checkpointing.layers=1", "checkpointing.method=block"]
        yield ConfigError("checkpointing.layers", settings.layers, rule, way_out)
    yield from _modules(spec)
    yield from _offload(spec)
    yield from _fused_loss(spec)
    yield from _kernels(spec)
    if spec.parallel.tensor > 1 or spec.parallel.pipeline > 1:
        rule = "it needs the whole vocabulary and the embeddings on one rank: one tensor and one pipeline rank"
        for path in ("train.label_smoothing", "train.z_loss", "train.neftune_alpha"):
            if value := edit.value_at(spec, path):
                yield ConfigError(path, value, rule, [f"{path}=0.0", "parallel.tensor=1 parallel.pipeline=1"])


def _kernels(spec: RunSpec) -> Iterator[ConfigError]:
    path, back, model = "train.kernels", "train.kernels=none", spec.model
    if spec.train.kernels == "none":
        return
    if spec.hardware.device == "cpu":
        yield ConfigError(path, "liger", "Liger's kernels are written in Triton and need a GPU", [back])
    if "liger" not in families.of(model).traits.kernels or model.hidden_act != "silu":
        rule = f"this version counts them only for gated MLPs with silu in the family llama, and this is {model.family}"
        yield ConfigError(path, "liger", rule, [back, "train.compile=true train.kernels=none"])
    rule = "LigerRMSNorm gathers the tokens that tensor parallel ranks split (ops/rms_norm.py)"
    yield from edit.refused(spec, "parallel.tensor", rule, first=[back])
    rule = "the compiler already fuses norms, rotary embeddings and activations"
    yield from edit.refused(spec, "train.compile", rule, first=[back])


def _fused_loss(spec: RunSpec) -> Iterator[ConfigError]:
    """``LigerFusedLinearCrossEntropyFunction`` reads the output projection's weight, whole and on a GPU."""
    if spec.train.loss != "fused":
        return
    parallel = spec.parallel
    if spec.hardware.device == "cpu":
        rule = "Liger's kernel is written in Triton and needs a GPU"
    elif parallel.tensor > 1:
        rule = f"it reads the whole output projection, which {parallel.tensor} tensor parallel ranks split"
    elif parallel.pipeline > 1 or (spec.backend.name == "deepspeed" and spec.zero.stage == 3):
        holder = "a pipeline's last stage" if parallel.pipeline > 1 else "ZeRO 3"
        rule = f"it reads the output projection itself, which {holder} gathers only while its module runs"
    else:
        return
    whole = " parallel.sequence=false" if parallel.sequence and spec.backend.name == "fsdp" else ""
    way_out = [f"train.loss=chunked{whole}", "train.loss=full"]
    yield ConfigError("train.loss", "fused", f"{rule}; the chunked loss never holds all logits either", way_out)


def _offload(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for offloaded activations (``torch.autograd.graph.save_on_cpu``) other than recomputed blocks' inputs."""
    settings, back = spec.checkpointing, "checkpointing.offload=false"
    if settings.offload and settings.mode != "full":
        rule = "torch would copy all that autograd saves, weights too and some tensors thrice: recompute blocks instead"
        yield ConfigError("checkpointing.offload", True, rule, ["checkpointing=full", back])
    if settings.offload_modules:
        rule = "this backend offloads the inputs of whole blocks; only Megatron-LM offloads single modules"
        path = "checkpointing.offload_modules"
        yield ConfigError(path, list(settings.offload_modules), rule, [f"{path}=[]", "parallel=tp"])
    if settings.offload and spec.train.compile:
        rule = "this version does not compile blocks whose inputs are offloaded to host memory"
        yield ConfigError("train.compile", True, rule, ["train.compile=false", back])


def _modules(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for modules that the model's class lacks; ways out translate Megatron-core's names."""
    found, path = spec.checkpointing.modules, "checkpointing.modules"
    if not found:
        return
    known = recomputed.modules(families.of(spec.model), spec.model)
    if [name for name in found if name not in known] or len(set(found)) < len(found):
        near = (MEGATRON_MODULES.get(name, name) for name in found)
        left = [name for name in dict.fromkeys(near) if name in known]
        rule = f"this model can recompute the modules {', '.join(known)}, each named once"
        yield ConfigError(path, list(found), rule, [edit.override(path, left or [known[0]])])


def job(
    spec: RunSpec,
    python: str,
    module: str,
    environment: Mapping[str, str],
    files: Mapping[str, str] | None = None,
    words: tuple[str, ...] = (),
) -> Job:
    """The job that runs the worker ``module`` under torchrun; the worker reads ``spec.json``."""
    arguments = ("--run", RUN, *words)
    expandable = spec.hardware.device == "cuda" and spec.train.allocator == "expandable"
    allocator = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if expandable else {}
    return Job(
        argv=torchrun.command(spec, python, ("-m", module), arguments),
        worker_argv=arguments,
        environment={**environment, **allocator},
        files=files or {},
        nodes=spec.cluster.nodes,
        gpus_per_node=spec.cluster.gpus_per_node,
    )


# Documents that share a sample.


def masks_documents(spec: RunSpec) -> bool:
    """True if attention gets a document mask; FlashAttention finds where documents begin from their positions."""
    return spec.data.packed == "documents" and spec.model.attention != "flash"


def key_heads(spec: RunSpec) -> int | None:
    """Heads to which keys and values are repeated: all of them with a mask (transformers, ``use_gqa_in_sdpa``)."""
    return spec.model.num_attention_heads if masks_documents(spec) else ulysses_key_heads(spec)


def unfused_attention(spec: RunSpec) -> bool:
    """True if torch uses its math path of attention, which saves an fp32 score for each pair of tokens.

    On the CPU the fused kernel has no dropout (``use_flash_attention_cpp``).
    """
    model = spec.model
    drops_on_cpu = model.attention == "sdpa" and model.dropout > 0 and spec.hardware.device == "cpu"
    return drops_on_cpu or _unfused_groups(spec)


def _unfused_groups(spec: RunSpec) -> bool:
    """True if no fused kernel of attention takes grouped-query heads on this GPU.

    Without a mask transformers passes keys and values in groups (``use_gqa_in_sdpa``). Of torch's kernels
    (``sdp_utils.cpp``) the memory-efficient one takes no groups (``check_batch_size_and_num_heads_dense``), and the
    others take only 16-bit formats from compute capability 8.0 on (``check_tensor_dtype``).
    """
    model, hardware, heads = spec.model, spec.hardware, key_heads(spec) or spec.model.key_value_heads
    fused = DTYPE_BYTES[beside_products(spec.precision.compute)] < _FP32 and hardware.effective_capability >= AMPERE
    grouped = heads < model.num_attention_heads and model.head_size <= _GROUPED and spec.parallel.context == 1
    return grouped and not fused and model.attention == "sdpa" and hardware.device == "cuda"


def copies_output(spec: RunSpec) -> bool:
    """True if attention's output has heads first, so the output projection reads a copy with tokens first.

    Query and value heads of different sizes run in cuDNN on Hopper and later. Its output has the layout of the queries,
    which latent attention concatenates with heads first. Observed on an H100 with torch 2.11; older cards and masked
    attention use the memory-efficient kernel, whose output has tokens first.
    """
    model, hardware = spec.model, spec.hardware
    cudnn = hardware.device == "cuda" and hardware.effective_capability >= HOPPER and model.attention == "sdpa"
    narrow = DTYPE_BYTES[beside_products(spec.precision.compute)] < _FP32
    return cudnn and narrow and model.kv_lora_rank > 0 and not masks_documents(spec)


def keeps_softmax(spec: RunSpec) -> Iterator[ConfigError]:
    """Warn about attention that no fused kernel of torch computes, with the GiB that it saves."""
    recomputed_whole = spec.checkpointing.mode == "full" and spec.checkpointing.layers is None
    if spec.script is None and _unfused_groups(spec) and not recomputed_whole:
        each = _FP32 * spec.model.num_attention_heads * spec.sequence_length**2 * spec.sequences_at_once
        rule = (
            "torch has no fused attention for grouped-query heads in this format: each layer saves its softmax,"
            f" {each / 2**30:.2f} GiB per micro-batch"
        )
        narrow = ["precision=bf16"] if spec.hardware.effective_capability >= AMPERE else ["checkpointing=full"]
        ways = [*narrow, edit.override("model.num_key_value_heads", spec.model.num_attention_heads)]
        yield ConfigError("precision.compute", spec.precision.compute, rule, ways)


_FP32 = 4
_GROUPED = 256  # Larger heads have their keys repeated (``use_gqa_in_sdpa``).


def check_packing(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for packed documents where ranks split a sequence or its layers, or layers have a state or a window."""
    if spec.data.packed != "documents":
        return
    ways = ["data.packing=null"]
    rule = "across these ranks the worker cannot keep documents apart, as data.packing=documents asks"
    yield from edit.refused(spec, "parallel.pipeline parallel.context parallel.ulysses", rule, *ways)
    traits, layers = families.of(spec.model).traits, range(spec.model.num_hidden_layers)
    if traits.observed or not all(traits.attends(spec.model, layer) for layer in layers):
        rule = "a layer other than attention can carry state from one document to the next"
        yield ConfigError("data.packing", "documents", rule, ways)
    windows = (traits.window(spec.model, layer) for layer in layers)
    window = min((each for each in (*windows, spec.model.sliding_window) if each is not None), default=None)
    if window is not None and window < spec.sequence_length and spec.model.attention != "flash":
        rule = f"a window of {window} tokens needs its own mask besides the one for documents"
        yield ConfigError("data.packing", "documents", rule, [edit.override("train.sequence_length", window), *ways])
    if spec.model.attention == "flash" and spec.micro_batch_size > 1:
        rule = "FlashAttention finds documents by position in one sequence only (transformers, _is_packed_sequence)"
        yield ConfigError("train.micro_batch_size", spec.micro_batch_size, rule, ["train.micro_batch_size=1", *ways])
