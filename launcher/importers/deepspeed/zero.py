"""The block ``zero_optimization``: keys and defaults of DeepSpeed 0.19.8 (``runtime/zero``), and older spellings."""

from collections.abc import Mapping

from launcher.importers.deepspeed.reading import Reading

BLOCK = "zero_optimization"
_STAGE = f"{BLOCK}.stage"
_COUNTS = {key: f"zero.{key}" for key in ("reduce_bucket_size", "allgather_bucket_size")}
_COUNTS_OF_STAGE_3: Mapping[str, str] = {"sub_group_size": "zero.sub_group_size"} | {
    f"{prefix}{key}": f"zero.{key}"
    for prefix in ("stage3_", "")
    for key in ("max_live_parameters", "max_reuse_distance", "prefetch_bucket_size", "param_persistence_threshold")
}
"""Counts of elements; DeepSpeed takes those of stage 3 without their prefix, too."""

_USUAL: Mapping[str, object] = {
    "allgather_partitions": True, "use_multi_rank_bucket_allreduce": True, "ignore_unused_parameters": True,
    "parameter_alignment": False, "round_robin_gradients": False,
}  # fmt: skip
_USUAL_OF_STAGE_3: Mapping[str, object] = {
    **dict.fromkeys(("stage3_model_persistence_threshold", "model_persistence_threshold"), None),
    "override_module_apply": True,
    "log_trace_cache_warnings": False,
    "enable_sanity_checks": False,
}
"""Keys on which DeepSpeed alone acts, with its defaults, which the translation has too."""

_BUCKETS = "gradients are reduced by whole buckets here, whose memory is counted"
_FETCHED = "parameters are gathered in buckets here, whose memory is counted"
_MODULES = "modules are gathered one by one here, whose memory is counted"

_UNCOUNTED: Mapping[str, tuple[object, str]] = {
    "contiguous_gradients": (True, _BUCKETS),
    "reduce_scatter": (True, _BUCKETS),
}
_UNCOUNTED_OF_STAGE_3: Mapping[str, tuple[object, str]] = {
    "memory_efficient_linear": (True, "linear layers keep no gathered weights here"),
    **dict.fromkeys(("stage3_module_granularity_threshold", "module_granularity_threshold"), (0, _MODULES)),
    "stage3_use_all_reduce_for_fetch_params": (False, _FETCHED),
    "stage3_allgather_sequential": (False, _FETCHED),
    "zero_quantized_nontrainable_weights": (False, "frozen weights are kept as they are here, or in 4 bits: qlora"),
}
"""Options whose memory is not counted, so that runs here have DeepSpeed's default: it, and what a run does by it."""

_QUANTIZED = {f"zero_{key}": f"zero.{key}" for key in ("quantized_weights", "quantized_gradients")}

_GATHERED = (
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "gather_16bit_weights_on_model_save",
)
"""The switch for whole weights of 16 bits in what is saved: an export here."""

_OF_FILES = ("load_from_fp32_weights", "elastic_checkpoint", "legacy_stage1", "pipeline_loading_checkpoint",
             "save_muon_momentum_buffer_in_memory", "compute_grad_norm", "cpu_offload_use_pin_memory")  # fmt: skip
"""Keys of checkpoints, of code that is gone, and of what the worker needs in any case."""

_CPU_OFFLOAD = {
    "cpu_offload": "zero.offload_optimizer",
    **dict.fromkeys(("cpu_offload_param", "cpu_offload_params"), "zero.offload_parameters"),
}
"""Spellings before DeepSpeed 0.4."""

_OFFLOAD = {"offload_optimizer": "zero.offload_optimizer", "offload_param": "zero.offload_parameters"}
_OF_NVME = {"buffer_count": None, "buffer_size": None, "max_in_cpu": None, "pipeline_read": False,
            "pipeline_write": False}  # fmt: skip


def settings() -> dict[str, str]:
    """Keys of the block and the settings that decide in their place."""
    counts = {**_COUNTS, **_COUNTS_OF_STAGE_3, **_CPU_OFFLOAD, "overlap_comm": "zero.overlap_comm", "stage": "zero"}
    offload = {f"{block}.device": path for block, path in _OFFLOAD.items()}
    paths = {f"{block}.nvme_path": "zero.nvme_path" for block in _OFFLOAD}
    gathered = dict.fromkeys(_GATHERED, "save.export")
    found = {**counts, **offload, **paths, **gathered, **_QUANTIZED, "zero_hpz_partition_size": "zero.hpz"}
    return {f"{BLOCK}.{key}": path for key, path in found.items()}


def read(reading: Reading) -> int:
    """Say the block; the stage."""
    stage = _stage(reading)
    reading.choose["parallel"] = f"zero{stage}"
    if stage == 0:
        device = f"{BLOCK}.offload_optimizer.device"
        if reading.value(device) not in (None, "none"):
            reading.leave("optimizer states stay on the GPU here without ZeRO: set zero.stage", device)
        reading.idle("without ZeRO DeepSpeed reads nothing else of the block", BLOCK)
        return stage
    _counts(reading, stage)
    for key, path in _OFFLOAD.items():
        _offload(reading, key, path, stage)
    _others(reading, stage)
    reading.leave("DeepSpeed 0.19.8 has no such key in this block and refuses the file for it", BLOCK)
    return stage


def _stage(reading: Reading) -> int:
    """The stage; the block was a switch once (``read_zero_config_deprecated``)."""
    if isinstance(reading.value(BLOCK), bool):
        stage = int(reading.value(BLOCK))
        reading.ledger.say(BLOCK, "parallel")
        if stage:
            reading.say_count("allgather_size", "zero.allgather_bucket_size")
        return stage
    reading.require_block(BLOCK, '"stage": 2')
    reading.ledger.say(BLOCK, "parallel")
    if reading.absent(_STAGE):
        return 0
    found = str(reading.value(_STAGE)).removesuffix(".0")
    if found not in ("0", "1", "2", "3"):
        reading.wrong(_STAGE, "is 0, 1, 2 or 3", ["zero=1", "zero=2", "zero=3"])
        return 0
    reading.ledger.say(_STAGE, "parallel")
    return int(found)


def _counts(reading: Reading, stage: int) -> None:
    for key, path in _COUNTS.items():
        reading.say_count(f"{BLOCK}.{key}", path, least=1)
    reading.say_flag(f"{BLOCK}.overlap_comm", "zero.overlap_comm")
    of_stage_3 = [*_COUNTS_OF_STAGE_3, *_USUAL_OF_STAGE_3, *_UNCOUNTED_OF_STAGE_3, *_QUANTIZED, *_GATHERED]
    of_stage_3 += ["zero_hpz_partition_size", "leaf_module"]
    if stage < 3:
        why = f"DeepSpeed reads it at stage 3 alone, and this is stage {stage}"
        reading.idle(why, *(f"{BLOCK}.{key}" for key in of_stage_3))
        return
    for key, path in _COUNTS_OF_STAGE_3.items():
        reading.say_count(f"{BLOCK}.{key}", path)
    for key, path in _QUANTIZED.items():
        reading.say_flag(f"{BLOCK}.{key}", path)
    if (ranks := reading.count(f"{BLOCK}.zero_hpz_partition_size")) is not None:
        reading.say(f"{BLOCK}.zero_hpz_partition_size", {"zero.hpz": max(1, ranks)})


def _offload(reading: Reading, name: str, path: str, stage: int) -> None:
    block = f"{BLOCK}.{name}"
    if name == "offload_param" and stage < 3:
        old = (f"{BLOCK}.{key}" for key, setting in _CPU_OFFLOAD.items() if setting == path)
        reading.idle(f"DeepSpeed offloads parameters at stage 3 alone, not at {stage}", block, *old)
        return
    for key, setting in _CPU_OFFLOAD.items():
        if setting == path and reading.value(f"{BLOCK}.{key}") is not None:
            reading.say(f"{BLOCK}.{key}", {path: "cpu" if reading.flag(f"{BLOCK}.{key}") else "none"})
    device = reading.value(f"{block}.device")
    if device not in (None, "none", "cpu", "nvme"):
        reading.wrong(f"{block}.device", "is none, cpu or nvme", [f"{path}=cpu"])
        device = None
    if device == "nvme" and stage < 3:
        reading.settings[path] = device = "cpu"
        why = f"DeepSpeed offloads to the CPU at stage {stage}, and so does this ({path}=cpu)"
        reading.idle(why, f"{block}.device")
    elif device is not None:
        reading.say(f"{block}.device", {path: device})
    _beside_device(reading, block, device or "none")


def _beside_device(reading: Reading, block: str, device: str) -> None:
    if device == "none":
        reading.idle("nothing is offloaded by this block", block)
        return
    if device == "nvme":
        _nvme_path(reading, f"{block}.nvme_path")
        for key, usual in _OF_NVME.items():
            reading.keep_unless(f"{block}.{key}", usual)
    keys = [f"{block}.{key}" for key in ("nvme_path", *_OF_NVME)]
    reading.idle("DeepSpeed reads it where it offloads to NVMe", *keys)
    reading.keep_unless(f"{block}.pin_memory", usual=True)
    _partly(reading, block)
    reading.idle("of the time that the start takes alone", f"{block}.fast_init")


def _partly(reading: Reading, block: str) -> None:
    ratio = f"{block}.ratio"
    if reading.number(ratio) == 1:
        reading.ledger.default(ratio)
    reading.leave("all optimizer states are offloaded here, not a part of them", ratio)
    if not reading.flag(f"{block}.super_offload"):
        reading.ledger.default(f"{block}.super_offload")
        reading.idle("DeepSpeed reads it beside super_offload alone", f"{block}.cpuadam_cores_perc")
    effect = "optimizer states are offloaded as on any machine here, without SuperOffload"
    reading.leave(effect, f"{block}.super_offload", f"{block}.cpuadam_cores_perc")


def _nvme_path(reading: Reading, key: str) -> None:
    path, before = reading.value(key), reading.settings.get("zero.nvme_path")
    if path is None:
        return
    if before not in (None, str(path)):
        reading.idle(f"zero.nvme_path is one folder for both kinds of offload, and {before} is taken", key)
        return
    reading.say(key, {"zero.nvme_path": str(path)})


def _others(reading: Reading, stage: int) -> None:
    for key in _GATHERED:
        if reading.value(f"{BLOCK}.{key}") is not None:
            if reading.flag(f"{BLOCK}.{key}"):
                reading.say(f"{BLOCK}.{key}", {"save.export": "safetensors"})
            else:
                reading.ledger.default(f"{BLOCK}.{key}")
    usual = _USUAL if stage < 3 else {**_USUAL, **_USUAL_OF_STAGE_3}
    if stage == 3:
        reading.idle("DeepSpeed reads it at stages 1 and 2", f"{BLOCK}.round_robin_gradients")
    for key, value in usual.items():
        reading.keep_unless(f"{BLOCK}.{key}", value)
    for key, (value, effect) in {**_UNCOUNTED, **({} if stage < 3 else _UNCOUNTED_OF_STAGE_3)}.items():
        reading.leave_unless(f"{BLOCK}.{key}", value, effect)
    reading.leave(_MODULES, f"{BLOCK}.leaf_module")
    reading.idle("of checkpoints and of what others report", *(f"{BLOCK}.{key}" for key in _OF_FILES))
    mics = (f"{BLOCK}.mics_shard_size", f"{BLOCK}.mics_hierarchical_params_gather")
    if (reading.number(mics[0]) or 0) <= 0:
        reading.default(*mics)
    reading.leave("parameters are sharded over all ranks here: DeepSpeed 0.19.8 has MiCS no more", *mics)
    effect = "gradients lack the correction of their quantization: DeepSpeed 0.19.8 has LoCo no more"
    reading.leave(effect, f"{BLOCK}.zeropp_loco_param")
    reading.leave("every update is applied at once here: ZenFlow lets some lag behind", f"{BLOCK}.zenflow")
