"""Degrees, sharding, number formats and recomputation as Megatron-LM arguments."""

from launcher.backends.megatron.implementation import dtypes, fsdp, precision_aware, recipe
from launcher.backends.megatron.network import Arguments
from launcher.estimate import families
from launcher.estimate.rank.model import RankModel
from launcher.estimate.rank.recomputed import layers_moved
from launcher.estimate.rank.stages import chunk_sizes
from launcher.spec import RunSpec

_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
_FP8_FORMATS = {"delayed": "hybrid", "tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
"""Formats of Megatron-LM's own fp8 recipes: with block scales e4m3 has enough range for gradients (2506.08027)."""


def arguments(spec: RunSpec) -> Arguments:
    """Arguments for degrees, sharding, formats and recomputation."""
    found = {**_degrees(spec), **_sharding(spec), **_formats(spec)}
    return {**found, **_recomputation(spec), **_offloading(spec), **_graphs(spec)}


def _degrees(spec: RunSpec) -> Arguments:
    parallel, staged = spec.parallel, spec.parallel.pipeline > 1
    interleaved = parallel.virtual_pipeline > 1 and not parallel.layout  # A layout lists its chunks itself.
    whole = families.of(spec.model).traits.pattern is None  # A hybrid's pattern lists its chunks and stages.
    return {
        "tensor-model-parallel-size": parallel.tensor,
        "sequence-parallel": parallel.sequence and parallel.tensor > 1,
        "pipeline-model-parallel-size": parallel.pipeline,
        "num-virtual-stages-per-pipeline-rank": parallel.virtual_pipeline if interleaved and whole else None,
        "pipeline-model-parallel-layout": "|".join(parallel.layout) or None if whole else None,
        "decoder-first-pipeline-num-layers": parallel.first_stage_layers if staged and whole else None,
        "decoder-last-pipeline-num-layers": parallel.last_stage_layers if staged and whole else None,
        "context-parallel-size": parallel.context,
        "cp-comm-type": "p2p" if parallel.context > 1 else None,
        "expert-model-parallel-size": parallel.expert if spec.model.num_experts else None,
        "expert-tensor-parallel-size": parallel.expert_tensor if spec.model.num_experts else None,
    }


def _sharding(spec: RunSpec) -> Arguments:
    zero, overlaps = spec.zero, spec.hardware.device == "cuda"
    if not zero.stage:
        return {"overlap-grad-reduce": overlaps}
    return {
        "use-distributed-optimizer": True,
        "overlap-grad-reduce": overlaps,
        "overlap-param-gather": overlaps,
        "num-distributed-optimizer-instances": spec.parallel.replicate if spec.parallel.replicate > 1 else None,
        "use-megatron-fsdp": fsdp(spec),
        "data-parallel-sharding-strategy": _STRATEGIES.get(zero.stage),
        "no-gradient-accumulation-fusion": fsdp(spec),
        **(_fsdp_formats(spec) if fsdp(spec) else {}),
        "optimizer-cpu-offload": zero.offload_optimizer == "cpu",
        "overlap-cpu-optimizer-d2h-h2d": zero.offload_optimizer == "cpu",
    }


def _fsdp_formats(spec: RunSpec) -> Arguments:
    """Formats of Megatron-FSDP's buffers: by default it would sum gradients in the parameters' format.

    ``auto`` makes the parameters their own main copy, and reduces gradients in the format they are summed in
    (``_resolve_group_grad_dtype`` of ``param_and_grad_buffer.py``).
    """
    meaning = dtypes(spec)
    return {
        "megatron-fsdp-main-params-dtype": meaning.master or "auto",
        "megatron-fsdp-main-grads-dtype": meaning.accumulate,
        "megatron-fsdp-grad-comm-dtype": "auto",
    }


def _formats(spec: RunSpec) -> Arguments:
    precision, meaning = spec.precision, dtypes(spec)
    compute, states, scaling = precision.compute, meaning.optimizer_states, recipe(spec)
    aware = precision_aware(spec)
    return {
        "fp16": compute == "fp16",
        "bf16": compute == "bf16" or (scaling is not None and meaning.parameters == "bf16"),
        "loss-scale": precision.loss_scale,
        "initial-loss-scale": precision.initial_loss_scale,
        "loss-scale-window": precision.loss_scale_window,
        "fp8-format": _FP8_FORMATS.get(scaling or ""),
        "fp8-recipe": scaling if compute == "fp8" else None,
        "fp4-format": "e2m1" if compute == "fp4" else None,
        "fp4-recipe": scaling if compute == "fp4" else None,
        "grad-reduce-in-bf16": meaning.accumulate == "bf16",
        "use-precision-aware-optimizer": aware,
        "main-params-dtype": (meaning.master or "fp32") if aware else None,
        "exp-avg-dtype": states if aware else None,
        "exp-avg-sq-dtype": states if aware else None,
    }


def _recomputation(spec: RunSpec) -> Arguments:
    checkpointing = spec.checkpointing
    if checkpointing.mode == "none":
        return {}
    if checkpointing.mode == "selective":
        return {"recompute-granularity": "selective", "recompute-modules": checkpointing.modules or ("core_attn",)}
    method = checkpointing.method or "uniform"
    every = 1 if method == "uniform" else max(chunk_sizes(spec))
    return {
        "recompute-granularity": "full",
        "recompute-method": method,
        "recompute-num-layers": checkpointing.layers or every,
    }


def _offloading(spec: RunSpec) -> Arguments:
    if not spec.checkpointing.offload:
        return {}
    if modules := spec.checkpointing.offload_modules:
        return {"fine-grained-activation-offloading": True, "offload-modules": modules}
    return {"cpu-offloading-num-layers": layers_moved(spec)}


def _graphs(spec: RunSpec) -> Arguments:
    """Arguments for graphs that Transformer Engine captures; 0.19 accepts both names of ``--cuda-graph-modules``."""
    if spec.train.cuda_graphs == "none":
        return {}
    return {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": ("attn",), "te-rng-tracker": True}


def groups(rank: RankModel) -> list[int]:
    """Sizes of the process groups that a rank uses, also of one rank: NCCL connects a group at its first collective.

    Of ``core/parallel_state.py``: the world; DATA_PARALLEL_WITH_CP for gradients and loss; MODEL_PARALLEL for whether
    to step; INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE for the gradients' norm; TENSOR_MODEL_PARALLEL for layers and loss;
    EMBEDDING for tied ends; TENSOR_AND_DATA_PARALLEL_WITH_CP for delayed scaling. Unbatched messages connect two ranks
    each: of interleaved stages (``_p2p_ops`` of ``p2p_communication.py``) and of a ring of more than two context ranks
    (Transformer Engine ``context_parallel.py``). Recorded from steps of megatron-core 0.19.2 on one rank.
    """
    spec, parallel, view = rank.spec, rank.spec.parallel, rank.view
    copies, replicas, staged = spec.data_degree * parallel.context, parallel.replicate, parallel.pipeline > 1
    found = [spec.gpus, copies, parallel.tensor * parallel.pipeline]
    found += [spec.gpus // replicas] if spec.zero.stage else []
    found += [copies // replicas, replicas] if replicas > 1 else []
    found += [parallel.tensor] if parallel.tensor > 1 or view.head else []
    if staged:
        found += [2, 2] if overlaps_messages(spec) else [parallel.pipeline]
        found += [2] if spec.model.tie_word_embeddings and (view.embedding or view.head) else []
    if parallel.context > 1:
        ring = parallel.context > 2 and spec.backend.argument("cp-comm-type", "p2p") == "p2p"
        found += [2, 2] if ring else [parallel.context]
    found += [spec.gpus // parallel.pipeline] if recipe(spec) == "delayed" else []
    return found + (_groups_of_experts(spec) if spec.model.num_experts else [])


def overlaps_messages(spec: RunSpec) -> bool:
    """True if interleaved stages communicate while they compute."""
    return spec.parallel.virtual_pipeline > 1 and not spec.backend.argument("no-overlap-p2p-communication")


def _groups_of_experts(spec: RunSpec) -> list[int]:
    """Sizes of the groups for token exchange, experts' gradients, and load balancing (``moe_logging.py``)."""
    parallel, kind = spec.parallel, spec.backend.argument("moe-token-dispatcher-type", "alltoall")
    tensor, expert, stages = parallel.expert_tensor or parallel.tensor, parallel.expert, parallel.pipeline
    found = [stages] if stages == 1 or overlaps_messages(spec) else []
    found += [expert * tensor] if expert * tensor > 1 else []
    found += [tensor] if tensor > 1 and kind == "alltoall" else []
    found += [expert] if expert > 1 and kind == "alltoall" else []
    if expert > 1:
        found += [spec.gpus // (stages * tensor * expert)]
        found += [] if spec.zero.stage else [stages * tensor * expert]
    found += [parallel.tensor * parallel.context] if spec.model.router_aux_loss_coef else []
    if families.of(spec.model).traits.balances_experts:
        found.append(spec.gpus // stages)
    return found
