"""accelerate's YAML (``accelerate config``): keys of accelerate 1.15 (``commands/config``, ``utils/dataclasses.py``).

It says ranks, number format and what shards the model; model, data and batch are those of the script that it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.config.ledger import Ledger
from launcher.importers import Imported, _foreign, _sharding
from launcher.importers._reading import Reading
from launcher.importers._table import (
    Row,
    apply,
    by,
    choose,
    count,
    flag,
    idle,
    imported,
    number,
    off,
    switch,
    usual,
    words,
)  # fmt: skip

_D, _M, _T = "deepspeed_config", "megatron_lm_config.megatron_lm", "parallelism_config.parallelism_config"
_TYPES: Mapping[str, Any] = {
    "no": {"parallel": "ddp"}, "multi_gpu": {"parallel": "ddp"}, "multi_cpu": {"parallel": "ddp",
    "hardware.device": "cpu"},
    "fsdp": {"parallel": "fsdp"}, "deepspeed": {"parallel": "zero2"}, "megatron_lm": {"parallel": "3d"},
}  # fmt: skip


def read(text: str, path: str) -> Imported:
    """Read an accelerate configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = _foreign.content_of(text, path, "a configuration of accelerate")
    reading = Reading(path=path, lenient=True, file="accelerate's YAML", ledger=Ledger(_foreign.flat(content)))
    apply(TABLE, reading)
    reading.choose.setdefault("parallel", "ddp")
    if reading.choose["parallel"] == "3d":  # Whose degrees are others.
        reading.settings = {"parallel.tensor": 1, "parallel.pipeline": 1, **reading.settings}
    return imported(
        reading, summary=f"accelerate with {reading.choose['parallel']}", source="an accelerate configuration"
    )


def _ranks(reading: Reading, key: str) -> None:
    """All processes, which are shared out evenly over the machines."""
    ranks, nodes = reading.count(key, 1), reading.count("num_machines", 1) or 1
    if ranks is not None and ranks % nodes:
        reading.wrong(key, f"is a multiple of num_machines, {nodes}")
    elif ranks is not None:
        reading.say(key, {"cluster.nodes": nodes, "cluster.gpus_per_node": ranks // nodes})
        reading.ledger.say("num_machines", "cluster.nodes")


def _stage(reading: Reading, key: str) -> None:
    stage = reading.count(key)
    if stage is not None and stage <= 3:
        choose(reading, key, {"parallel": f"zero{stage}"})
    elif stage is not None:
        reading.wrong(key, "is 0, 1, 2 or 3")


def _file(reading: Reading, key: str) -> None:
    _sharding.deepspeed(reading, key)


def _compiles(reading: Reading, key: str) -> None:
    word = str(reading.value(key)).lower()
    if word == "no":
        reading.ledger.default(key)
    elif word == "inductor":
        reading.say(key, {"train.compile": True})
    else:
        reading.ledger.leave(key, f"blocks are compiled by inductor here, not {word}: set train.compile")


def _clips(reading: Reading, key: str) -> None:
    if str(reading.value(key)) == "auto":
        reading.idle("the program that reads the file fills it in: optimizer.clip decides here", key)
    else:
        reading.say_number(key, "optimizer.clip")


def _accumulates(reading: Reading, key: str) -> None:
    if str(reading.value(key)) == "auto":
        reading.idle("the program that reads the file fills it in: train.gradient_accumulation decides here", key)
    else:
        reading.say_count(key, "train.gradient_accumulation", 1)


_DEVICES = {"none": None, "cpu": "cpu", "nvme": "nvme"}
TABLE: tuple[Row, ...] = (
    words("distributed_type", "parallel", _TYPES, "{}: there are no such ranks here: set parallel.shard",
        "TPU, XPU and others are refused"),
    by("num_processes", "cluster.gpus_per_node, cluster.nodes", "a multiple of num_machines", _ranks),
    count("num_machines", "cluster.nodes", least=1),
    words("mixed_precision", "precision", {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"},
        "{}: set precision.compute"),
    by(f"{_D}.zero_stage", "parallel=zero0 to zero3", "", _stage),
    by(f"{_D}.deepspeed_config_file", "parallel=zero1 to zero3",
        "taken by the file's name; launch import deepspeed reads it", _file),
    words(f"{_D}.offload_optimizer_device", "zero.offload_optimizer", _DEVICES, "{}: set zero.offload_optimizer"),
    words(f"{_D}.offload_param_device", "zero.offload_parameters", _DEVICES, "{}: set zero.offload_parameters"),
    by(f"{_D}.offload_optimizer_nvme_path {_D}.offload_param_nvme_path", "zero.nvme_path", "", lambda reading,
        key: reading.say(
        key, {"zero.nvme_path": str(reading.value(key))})
       if "nvme" in (reading.value(f"{_D}.offload_optimizer_device"), reading.value(f"{_D}.offload_param_device"))
       else reading.idle("nothing is offloaded to NVMe", key)),
    by(f"{_D}.gradient_accumulation_steps gradient_accumulation_steps", "train.gradient_accumulation", "",
        _accumulates),
    by(f"{_D}.gradient_clipping", "optimizer.clip", "", _clips),
    by(f"{_D}.zero3_save_16bit_model", "save.export=safetensors", "", lambda reading, key: reading.say(
        key, {"save.export": "safetensors"}) if reading.flag(key) and reading.value(f"{_D}.zero_stage") == 3
            else reading.ledger.default(key)),
    count(f"{_D}.zero_hpz_partition_size", "zero.hpz", least=1),
    flag(f"{_D}.zero_quantized_weights", "zero.quantized_weights"),
    flag(f"{_D}.zero_quantized_gradients", "zero.quantized_gradients"),
    idle(f"{_D}.zero3_init_flag {_D}.deepspeed_multinode_launcher {_D}.deepspeed_hostfile"
        f" {_D}.deepspeed_exclusion_filter"
         f" {_D}.deepspeed_inclusion_filter {_D}.deepspeed_moe_layer_cls_names {_D}.deepspeed_bin",
         "of how ranks start and weights are loaded"),
    off(_D, "there is no such thing here: launch import deepspeed reads a ds_config.json"),
    *_sharding.FSDP,
    count(f"{_M}_tp_degree", "parallel.tensor", least=1),
    count(f"{_M}_pp_degree", "parallel.pipeline", least=1),
    count(f"{_M}_num_micro_batches", "train.gradient_accumulation", least=1),
    flag(f"{_M}_sequence_parallelism", "parallel.sequence"),
    number(f"{_M}_gradient_clipping", "optimizer.clip"),
    switch(f"{_M}_recompute_activations", {"checkpointing": "selective"}),
    switch(f"{_M}_use_distributed_optimizer", {"zero": "1"}),
    count(f"{_T}_tp_size", "parallel.tensor", least=1),
    count(f"{_T}_cp_size", "parallel.context", least=1),
    count(f"{_T}_sp_size", "parallel.ulysses", least=1),
    count(f"{_T}_dp_replicate_size", "parallel.replicate", least=1),
    idle(f"{_T}_dp_shard_size {_T}_cp_comm_strategy {_T}_sp_seq_length {_T}_sp_seq_length_is_variable"
         f" {_T}_sp_attn_implementation {_T}_sp_backend", "the ranks that are left shard the model"),
    by("dynamo_config.dynamo_backend dynamo_backend", "train.compile", "each block is compiled", _compiles),
    idle("dynamo_config", "of how blocks are compiled"),
    switch("use_cpu", {"hardware.device": "cpu"}),
    usual("compute_environment", ("LOCAL_MACHINE",), "the machine is that of cluster here: set cluster.kind"),
    off("fp8_config", "set precision.recipe (with precision=fp8)"),
    off("megatron_lm_config parallelism_config fsdp_config", "there is no such thing here"),
    idle("machine_rank main_process_ip main_process_port rdzv_backend same_network main_training_function gpu_ids"
         " enable_cpu_affinity debug downcast_bf16 tpu_env tpu_use_cluster tpu_use_sudo tpu_name tpu_zone tpu_commands"
         " command_file commands max_restarts monitor_interval ipex_config mpirun_config log_dir"
         " num_cpu_threads_per_process"
         " tpu_downcast_bf16 tpu_vm deepspeed_moe_layer_cls_names use_xpu",
         "of how ranks find each other; torchrun and Slurm start them here"),
)  # fmt: skip
