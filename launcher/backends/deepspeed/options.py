"""Every option of DeepSpeed 0.19.8's own file, by what it does to memory.

An option has a setting of the launcher's, which the estimate reads (``SETTINGS``); or is counted from ``backend.extra``
itself (``COUNTED``); or holds no memory that is not counted (``NO_MEMORY``, with the reason); or is refused but for its
default (``REFUSED``); or belongs to a block that only a training program can play along with (``PROGRAM``). A test
reads DeepSpeed's own models and asks for the line of each option; one that has no line is refused by its name.

Options of ZeRO stand here without the prefix ``stage3_``, which DeepSpeed takes or leaves (``populate_by_name`` of
``runtime/config_utils.py``). An entry for a block is one for all of its options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

VERSION = "0.19.8"
"""The release whose options stand here."""

_ZERO = "zero_optimization"
_STATES, _WEIGHTS = f"{_ZERO}.offload_optimizer", f"{_ZERO}.offload_param"

_SAME = (
    "stage", "allgather_bucket_size", "overlap_comm", "reduce_bucket_size", "sub_group_size", "max_live_parameters",
    "max_reuse_distance", "param_persistence_threshold", "prefetch_bucket_size",
)  # fmt: skip
"""Options of ZeRO that have the same name here."""

SETTINGS = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation",
    "gradient_clipping": "optimizer.clip",
    "communication_data_type": "precision.reduce",
    "seq_parallel_communication_data_type": "precision.reduce",
    "data_types.grad_accum_dtype": "precision.accumulate",
    "data_types.param_dtype": "precision.compute",
    "bf16.enabled": "precision.compute",
    "bf16.bf16_master_weights_and_grads": "precision.master",
    "bf16.bf16_optimizer_states": "precision.optimizer_states",
    "fp16.enabled": "precision.compute",
    "fp16.loss_scale": "precision.loss_scale",
    "fp16.initial_scale_power": "precision.initial_loss_scale",
    "fp16.loss_scale_window": "precision.loss_scale_window",
    "optimizer": "optimizer.name",
    "scheduler": "optimizer.schedule",
    **{f"{_ZERO}.{key}": f"zero.{key}" for key in _SAME},
    f"{_ZERO}.gather_16bit_weights_on_model_save": "zero.gather_16bit_weights_on_save",
    f"{_ZERO}.gather_fp16_weights_on_model_save": "zero.gather_16bit_weights_on_save",
    f"{_ZERO}.zero_hpz_partition_size": "zero.hpz",
    f"{_ZERO}.zero_quantized_weights": "zero.quantized_weights",
    f"{_ZERO}.zero_quantized_gradients": "zero.quantized_gradients",
    f"{_ZERO}.cpu_offload": "zero.offload_optimizer",
    f"{_ZERO}.cpu_offload_param": "zero.offload_parameters",
    f"{_STATES}.device": "zero.offload_optimizer",
    f"{_STATES}.nvme_path": "zero.nvme_path",
    f"{_WEIGHTS}.device": "zero.offload_parameters",
    f"{_WEIGHTS}.nvme_path": "zero.nvme_path",
    "tensor_parallel.autotp_size": "parallel.tensor",
    "sequence_parallel_size": "parallel.ulysses",
}
"""Options that have a setting of their own, which the memory estimate reads as well."""

COUNTED = {
    f"{_ZERO}.round_robin_gradients": "launcher/backends/deepspeed/partition.py",
    f"{_STATES}.buffer_count": "launcher/backends/deepspeed/swapping.py",
    f"{_WEIGHTS}.buffer_count": "launcher/backends/deepspeed/swapping.py",
    f"{_WEIGHTS}.buffer_size": "launcher/backends/deepspeed/swapping.py",
    f"{_WEIGHTS}.max_in_cpu": "launcher/backends/deepspeed/swapping.py",
}
"""Options that the estimate reads in ``backend.extra``, and where."""

_IDLE = "DeepSpeed reads it and does nothing with it"
_PRINTS = "it prints or logs"
_SCALE = "the loss scale is one number"
_OF_SAVING = "of checkpoints alone"

NO_MEMORY = {
    "aio": "of how the disk is asked; its buffers are those of the offload blocks",
    "bf16.check_grad_overflow": "it looks for infinities in what is there",
    "comet": _PRINTS,
    "comms_logger": _PRINTS,
    "csv_monitor": _PRINTS,
    "data_types.buffer_dtype": "buffers are the rotary frequencies, some hundred bytes",
    "data_types.keep_in_fp32_modules": "buffers are the rotary frequencies, some hundred bytes",
    "dataloader_drop_last": "the worker reads the data itself",
    "disable_allgather": _IDLE,
    "dump_state": _PRINTS,
    "flops_profiler": "it counts in Python, and prints",
    "fp16.auto_cast": "inputs are token ids, which it leaves alone",
    "fp16.consecutive_hysteresis": _SCALE,
    "fp16.hysteresis": _SCALE,
    "fp16.min_loss_scale": _SCALE,
    "gradient_allreduce_op": "gradients are summed in place of averaged",
    "gradient_predivide_factor": "gradients are divided where they lie",  # Stages 2 and 3 refuse it (``extra``).
    "log_level": _PRINTS,
    "memory_breakdown": _PRINTS,
    "prescale_gradients": "gradients are divided where they lie",
    "steps_per_print": _PRINTS,
    "tensor_parallel.tp_overlap_comm": "the same all-reduce, waited for later (module_inject/layers.py)",
    "tensorboard": _PRINTS,
    "timers": _PRINTS,
    "use_data_before_expert_parallelism": "DeepSpeed has no experts here",
    "vocabulary_size": "it is read for a warning",
    "wall_clock_breakdown": _PRINTS,
    "wandb": _PRINTS,
    "zero_allow_untested_optimizer": "it lets an optimizer run, and holds nothing",
    "zero_force_ds_cpu_optimizer": "it lets an optimizer run, and holds nothing",
    f"{_ZERO}.allgather_partitions": _IDLE,
    f"{_ZERO}.cpu_offload_use_pin_memory": _IDLE,
    f"{_ZERO}.enable_sanity_checks": "it compares what is there",
    f"{_ZERO}.ignore_unused_parameters": "whether parameters without a gradient are an error",
    f"{_ZERO}.load_from_fp32_weights": _OF_SAVING,
    f"{_ZERO}.log_trace_cache_warnings": _PRINTS,
    f"{_ZERO}.model_persistence_threshold": "fewer parameters stay gathered than are counted",
    f"{_ZERO}.override_module_apply": "of how weights are initialized, which the worker does itself",
    f"{_ZERO}.parameter_alignment": "at most 15 bytes a weight",
    f"{_ZERO}.pipeline_loading_checkpoint": _OF_SAVING,
    f"{_ZERO}.use_multi_rank_bucket_allreduce": "the same slices of a bucket, rank by rank (stage_1_and_2.py)",
    f"{_STATES}.cpuadam_cores_perc": "DeepSpeed reads it beside super_offload",
    f"{_STATES}.fast_init": "the start goes by the same buffers",
    f"{_STATES}.pin_memory": "blocks that are not pinned are no larger",
    f"{_STATES}.pipeline_read": "tiles take turns in the same buffers (pipelined_optimizer_swapper.py)",
    f"{_STATES}.pipeline_write": "tiles take turns in the same buffers (pipelined_optimizer_swapper.py)",
    f"{_WEIGHTS}.pin_memory": "blocks that are not pinned are no larger",
}
"""Options and blocks on which no memory depends beyond what is counted, with the reason."""


class Refusal(NamedTuple):
    """An option whose memory is not counted."""

    usual: object  # DeepSpeed's default, which is let through; None where it has none that one would write.
    why: str  # What it changes.
    instead: tuple[str, ...] = ()  # Words that come near it; without any, the default is the way out.


_GONE = f"DeepSpeed {VERSION} has it no more"
_CUT = "the launcher writes the cut of the tensors itself, which the estimate follows"
_GRADIENTS = "gradients would be reduced by other buffers than are counted"
_LEAVES = "whole modules would be gathered at once, and as long as they run"
_FETCHING = "parameters would be gathered by other buffers than are counted"

REFUSED = {
    "aio.use_gds": Refusal(False, "the buffers of NVMe offload would lie on the GPU, which is not counted"),
    "bf16.immediate_grad_update": Refusal(False, "gradients would be summed as they come, which is not counted"),
    "disable_python_gc": Refusal(False, "tensors in cycles of objects would stay until the run ends"),
    "fp16.fp16_master_weights_and_grads": Refusal(False, "master weights in fp16 are not counted"),
    "tensor_parallel": Refusal(None, _CUT, ("parallel.tensor=1",)),
    f"{_ZERO}.allgather_sequential": Refusal(False, _FETCHING, ("zero.prefetch_bucket_size=0",)),
    f"{_ZERO}.compute_grad_norm": Refusal(True, "the worker logs and clips by the norm"),
    f"{_ZERO}.contiguous_gradients": Refusal(True, _GRADIENTS, ("zero.reduce_bucket_size=50000000",)),
    f"{_ZERO}.elastic_checkpoint": Refusal(False, "other numbers of ranks resume by DeepSpeed's universal format here"),
    f"{_ZERO}.leaf_module": Refusal(None, _LEAVES, ("zero.max_live_parameters=1000000000",)),
    f"{_ZERO}.legacy_stage1": Refusal(False, _GONE),
    f"{_ZERO}.memory_efficient_linear": Refusal(True, "linear layers would keep gathered weights for backward"),
    f"{_ZERO}.mics_hierarchical_params_gather": Refusal(False, f"{_GONE}: MiCS", ("parallel=hsdp", "zero.hpz=8")),
    f"{_ZERO}.mics_shard_size": Refusal(-1, f"{_GONE}: MiCS", ("parallel=hsdp", "zero.hpz=8")),
    f"{_ZERO}.module_granularity_threshold": Refusal(0, _LEAVES, ("zero.max_live_parameters=1000000000",)),
    f"{_ZERO}.reduce_scatter": Refusal(True, _GRADIENTS, ("zero.reduce_bucket_size=50000000",)),
    f"{_ZERO}.save_muon_momentum_buffer_in_memory": Refusal(False, "Muon beside NVMe is not counted"),
    f"{_ZERO}.use_all_reduce_for_fetch_params": Refusal(False, f"{_FETCHING}, with twice the traffic"),
    f"{_ZERO}.zenflow": Refusal(
        None,
        "ZenFlow keeps moments of chosen columns on the GPU, which are not counted, lets other gradients lag behind, "
        "and puts neither into a checkpoint (runtime/zenflow)",
        ("zero.offload_optimizer=cpu",),
    ),
    f"{_ZERO}.zero_quantized_nontrainable_weights": Refusal(
        False, "frozen weights would be kept in 8 bits, which is not counted", ("adapter=qlora",)
    ),
    f"{_ZERO}.zeropp_loco_param": Refusal(None, f"{_GONE}: LoCo", ("zero.quantized_gradients=true",)),
    f"{_STATES}.ratio": Refusal(1.0, "states that stay on the GPU are not counted", ("zero.offload_optimizer=cpu",)),
    f"{_STATES}.super_offload": Refusal(
        False,
        "SuperOffload's moments lie in a process of their own, which neither the estimate nor a checkpoint sees "
        "(runtime/superoffload)",
        ("zero.offload_optimizer=cpu",),
    ),
}
"""Options whose memory is not counted."""

GONE = {
    "amp": ("precision=bf16", "precision=fp16"),
    "bfloat16": ("precision=bf16",),
    "compression_training": ("adapter=qlora",),
    "curriculum_learning": (),
    "eigenvalue": (),
    "elasticity": ("train.micro_batch_size=1",),
    "graph_harvesting": (),
    "nebula": ("save.every=1000",),
    "progressive_layer_drop": (),
    "quantize_training": ("adapter=qlora",),
    "sparse_attention": ("model.attention=sdpa",),
    "sparse_gradients": (),
}
"""Blocks of older releases, which 0.19.8 refuses or reads by another name, and the words for what one has instead."""

ONE_BIT = frozenset({"onebitadam", "onebitlamb", "zerooneadam"})
"""Optimizers whose gradients went over the network as signs; ``DEEPSPEED_OPTIMIZERS`` of 0.19.8 has none of them."""

PROGRAM: Mapping[str, tuple[str, ...]] = {
    "activation_checkpointing": ("checkpointing=full", "checkpointing=full checkpointing.offload=true"),
    "autotuning": (),
    "checkpoint": (),
    "compile": ("train.compile=true",),
    "data_efficiency": (),
    "datastates_ckpt": (),
    "expert_parallel": ("parallel=ep",),
    "hybrid_engine": (),
    "managed_gradient_accumulation": (),
    "pipeline": ("zero=1 parallel.pipeline=2",),
    "torch_autocast": ("precision=bf16",),
    "weight_quantization": (),
}
"""Blocks that a training program must play along with, which the launcher's worker does not, and words near them."""

_TABLES: tuple[Mapping[str, object], ...] = (SETTINGS, COUNTED, NO_MEMORY, REFUSED, GONE)


def read(extra: Any, path: str, default: Any = None) -> Any:
    """The value of an option in ``backend.extra``; ``default`` where it is not set."""
    for key in path.split("."):
        extra = extra.get(key) if isinstance(extra, Mapping) else None
    return default if extra is None else extra


def named(path: str) -> str:
    """The option's name here: without ``stage3_`` where DeepSpeed takes it with and without."""
    return path.replace(f"{_ZERO}.stage3_", f"{_ZERO}.", 1)


def heads(path: str) -> Iterator[str]:
    """The path and every block that it lies in: ``a.b.c``, ``a.b``, ``a``."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def line(path: str) -> str | None:
    """The option or block whose line here says what an option does to memory; None where it has none."""
    return next((head for head in heads(named(path)) if head in PROGRAM or any(head in t for t in _TABLES)), None)


def top() -> list[str]:
    """The first words of all options."""
    return sorted({head.partition(".")[0] for table in (*_TABLES, PROGRAM) for head in table})


def inside(block: str) -> list[str]:
    """The options of a block that have a line."""
    return sorted(path for table in _TABLES for path in table if path.startswith(f"{block}."))
