"""The content of ``ds_config.json``: every choice spelt out, no ``"auto"``, so that the file alone says what runs.

Defaults of DeepSpeed are written down too, with the file that they are from: another release may have others, and the
memory estimate reads these. Features add blocks of their own, and ``backend.extra`` is merged in last, key by key,
after ``launcher.backends.deepspeed.extra`` has refused keys that a setting gives. :func:`build` is pure; the text is a
golden file.
"""

from collections.abc import Mapping
from math import log2
from typing import Any

from launcher.backends._shared import given
from launcher.backends.deepspeed.optimizer import OWN, is_torch
from launcher.backends.deepspeed.partition import swapping
from launcher.backends.deepspeed.traits import dtypes
from launcher.base.files import JsonObject
from launcher.spec import Offload, RunSpec

_COLUMNS = r".*\.(self_attn\.[qkv]_proj|mlp\.(gate|up)_proj)\.weight$"
_ROWS = r".*\.(self_attn\.o_proj|mlp\.down_proj)\.weight$"
_HEAD = r".*lm_head\.weight$"
_HEAD_NORMS = r".*\.self_attn\.[qk]_norm\.weight$"  # Names of weights and how AutoTP cuts them.


def build(spec: RunSpec) -> JsonObject:
    """The whole configuration; the keys of ``backend.extra`` are merged in last."""
    formats = dtypes(spec)
    config: JsonObject = {
        "train_batch_size": spec.global_batch_size,
        "train_micro_batch_size_per_gpu": spec.micro_batch_size,
        "gradient_accumulation_steps": spec.gradient_accumulation,
        "gradient_clipping": spec.optimizer.clip,
        "communication_data_type": formats.reduce,
        "data_types": {"grad_accum_dtype": formats.accumulate},
        **({"optimizer": _optimizer(spec)} if spec.optimizer.name in OWN else {}),
        "zero_allow_untested_optimizer": spec.optimizer.name != "adamw",
        "zero_force_ds_cpu_optimizer": not is_torch(spec),
        "zero_optimization": _zero(spec),
        # For scripts that call DeepSpeed's own activation checkpointing; the worker uses torch's, host copies too.
        "activation_checkpointing": {
            "partition_activations": False,
            "cpu_checkpointing": spec.checkpointing.offload,
            "contiguous_memory_optimization": False,
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        },
        "checkpoint": {"tag_validation": "Fail", "load_universal": False, "use_node_local_storage": False},
        "wall_clock_breakdown": False,
        **_precision(spec),
    }
    if "nvme" in (spec.zero.offload_optimizer, spec.zero.offload_parameters):
        # DeepSpeed's defaults for libaio, runtime/swap_tensor/constants.py.
        config["aio"] = {
            "block_size": 1048576,
            "queue_depth": 8,
            "intra_op_parallelism": 1,
            "single_submit": False,
            "overlap_events": True,
            "use_gds": False,
        }
    if spec.parallel.tensor > 1:
        config["tensor_parallel"] = _tensor(spec)
        # DeepSpeed 0.19.8 would hold it against all ranks, as if each saw samples of its own (runtime/config.py).
        del config["train_batch_size"]
    if spec.parallel.pipeline > 1:
        # The worker wraps the layers that are recomputed by itself, as beside every other engine.
        config["pipeline"] = {"activation_checkpoint_interval": 0, "use_reentrant": False}
    if spec.parallel.ulysses > 1:
        # Between ranks that share a sequence the format of gradients is fp32 by default.
        config |= {
            "sequence_parallel_size": spec.parallel.ulysses,
            "seq_parallel_communication_data_type": formats.reduce,
        }
    return merged(config, given(spec.backend.extra))


def merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> JsonObject:
    """``base`` with the values of ``extra`` in their places, block by block."""
    result = dict(base)
    for key, value in extra.items():
        below = result.get(key)
        result[key] = merged(below if isinstance(below, dict) else {}, value) if isinstance(value, Mapping) else value
    return result


def _zero(spec: RunSpec) -> JsonObject:
    zero = spec.zero
    return {
        "stage": zero.stage,
        "allgather_partitions": True,
        "allgather_bucket_size": zero.allgather_bucket_size,
        "contiguous_gradients": True,
        "overlap_comm": zero.stage == 3 if zero.overlap_comm is None else zero.overlap_comm,
        "reduce_bucket_size": zero.reduce_bucket_size,
        "reduce_scatter": True,
        "round_robin_gradients": False,
        "stage3_gather_16bit_weights_on_model_save": zero.gather_16bit_weights_on_save,
        "stage3_max_live_parameters": zero.max_live_parameters,
        "stage3_max_reuse_distance": zero.max_reuse_distance,
        "stage3_param_persistence_threshold": zero.param_persistence_threshold,
        "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
        "sub_group_size": zero.sub_group_size,
        "zero_hpz_partition_size": zero.hpz,
        "zero_quantized_gradients": zero.quantized_gradients,
        "zero_quantized_weights": zero.quantized_weights,
        "offload_optimizer": _offload_optimizer(spec),
        "offload_param": _offload_parameters(spec),
    }


def _offload(spec: RunSpec, device: Offload) -> JsonObject:
    """The block of one kind of offload; a GPU copies from pinned memory, for which CPU ranks have no use."""
    block: JsonObject = {"device": device}
    if device != "none":
        block["pin_memory"] = spec.hardware.device == "cuda"
    if device == "nvme":
        block["nvme_path"] = spec.zero.nvme_path
    return block


def _offload_optimizer(spec: RunSpec) -> JsonObject:
    block, buffers = _offload(spec, spec.zero.offload_optimizer), swapping(spec)
    if block["device"] == "nvme" and buffers is not None:
        block |= {"buffer_count": buffers.state_buffers, "pipeline_read": False, "pipeline_write": False}
    return block


def _offload_parameters(spec: RunSpec) -> JsonObject:
    block, buffers = _offload(spec, spec.zero.offload_parameters), swapping(spec)
    if block["device"] == "nvme" and buffers is not None:
        block |= {
            "buffer_count": buffers.parameter_buffers,
            "buffer_size": buffers.buffer_elements,
            "max_in_cpu": buffers.in_memory,
        }
    return block


def _precision(spec: RunSpec) -> JsonObject:
    formats = dtypes(spec)
    if formats.parameters == "bf16":
        bf16 = {
            "enabled": True,
            "check_grad_overflow": True,
            "bf16_master_weights_and_grads": formats.master == "bf16",
            "bf16_optimizer_states": formats.optimizer_states == "bf16",
        }
        return {"bf16": bf16, "fp16": {"enabled": False}}
    if formats.parameters == "fp16":
        # DeepSpeed's defaults, runtime/precision_config.py; loss_scale 0 is the dynamic scale.
        initial = spec.precision.initial_loss_scale
        fp16 = {
            "enabled": True,
            "loss_scale": spec.precision.loss_scale or 0,
            "initial_scale_power": 16 if initial is None else round(log2(initial)),
            "loss_scale_window": spec.precision.loss_scale_window or 1000,
            "hysteresis": 2,
            "consecutive_hysteresis": False,
            "min_loss_scale": 1,
        }
        return {"bf16": {"enabled": False}, "fp16": fp16}
    return {"bf16": {"enabled": False}, "fp16": {"enabled": False}}


def _optimizer(spec: RunSpec) -> JsonObject:
    """The ``optimizer`` block of ds_config; the worker's own schedule then sets the learning rate of each step."""
    optimizer = spec.optimizer
    choice = {key: value for key in ("foreach", "fused") if (value := getattr(optimizer, key)) is not None}
    common = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay, **choice}
    if optimizer.name == "sgd":
        return {"type": "SGD", "params": {**common, "momentum": optimizer.beta1}}
    adam = {"betas": [optimizer.beta1, optimizer.beta2], "eps": optimizer.epsilon}
    own = {"torch_adam": True} if is_torch(spec) else {"adam_w_mode": True}
    return {"type": "AdamW", "params": {**common, **adam, **own}}


def _tensor(spec: RunSpec) -> JsonObject:
    """The block ``tensor_parallel``: the cut that ``transformers`` itself plans for Llama, Qwen2 and Qwen3.

    The token embedding stays whole on every rank, and so does a tied output projection. One of its own is split by
    vocabulary and its logits are gathered. Norms of heads are whole, but each rank sees its own heads alone, so their
    gradients are summed (``base_model_tp_plan`` and ``_tp_plan`` of transformers 5.23).
    """
    layers: list[JsonObject] = [
        {"patterns": [_COLUMNS], "partition_type": "column"},
        {"patterns": [_ROWS], "partition_type": "row"},
    ]
    if not spec.model.tie_word_embeddings:
        layers.append({"patterns": [_HEAD], "partition_type": "column", "gather_output": True})
    if spec.model.qk_norm:
        layers.append({"patterns": [_HEAD_NORMS], "partition_type": "skip", "grad_allreduce": True})
    return {
        "autotp_size": spec.parallel.tensor,
        "tp_overlap_comm": False,
        "partition_config": {"use_default_specs": False, "layer_specs": layers},
    }
