"""What shards the model in files of the Trainer and of accelerate: ``deepspeed``, ``fsdp`` and ``fsdp_config``."""

from __future__ import annotations

import re

from launcher.importers._reading import Reading
from launcher.importers._table import Row, by, choose, idle, off, words

_STAGE = re.compile(r"(?:zero|stage|ds_?z|_z)[_-]?([0-3])", re.IGNORECASE)
_OFFLOAD = re.compile(r"offload", re.IGNORECASE)
_PARAMS = re.compile(r"offload_params?\b|offload_parameters", re.IGNORECASE)


def deepspeed(reading: Reading, key: str) -> None:
    """A DeepSpeed file by its name (``zero3_bf16.json``, ``ds_z2_offload_config.json``): its stage and its offload."""
    value = reading.value(key)
    name = str(value).rpartition("/")[2]
    found = _STAGE.search(name)
    if not isinstance(value, str) or found is None:
        effect = f"launch import deepspeed {value} reads it: set zero.stage (with parallel=zero3)"
        reading.ledger.leave(key, effect)
        return
    stage = int(found[1])
    said: dict[str, object] = {"parallel": f"zero{stage}"}
    if _OFFLOAD.search(name) and stage:
        if not _PARAMS.search(name):
            said["zero.offload_optimizer"] = "cpu"
        if stage == 3:
            said["zero.offload_parameters"] = "cpu"
    choose(reading, key, said)
    reading.notes.append(f"{value} is taken by its name; launch import deepspeed reads what else it says")


def fsdp(reading: Reading, key: str) -> None:
    """``fsdp``: a list or a line of words."""
    value = reading.value(key)
    words_ = [str(each) for each in value] if isinstance(value, list) else re.split(r"[\s,]+", str(value))
    found = {word for word in words_ if word}
    if found <= {"", "False", "false"}:
        reading.ledger.default(key)
        return
    shard = {"shard_grad_op": {"parallel": "fsdp", "zero": "2"}, "hybrid_shard": {"parallel": "hsdp"},
             "no_shard": {"parallel": "ddp"}}  # fmt: skip
    said: dict[str, object] = {"parallel": "fsdp"}
    for word in found:
        said |= shard.get(word, {})
    if "offload" in found:
        said |= {"zero.offload_optimizer": "cpu", "zero.offload_parameters": "cpu"}
    choose(reading, key, said)


def _offloads(reading: Reading, key: str) -> None:
    if reading.flag(key):
        choose(reading, key, {"parallel": "fsdp", "zero.offload_optimizer": "cpu", "zero.offload_parameters": "cpu"})
    else:
        reading.ledger.default(key)


def _recomputes(reading: Reading, key: str) -> None:
    if reading.flag(key):
        choose(reading, key, {"checkpointing": "full"})
    else:
        reading.ledger.default(key)


def _reshards(reading: Reading, key: str) -> None:
    """``reshard_after_forward`` of FSDP2, a switch; of FSDP1 the sharding strategy by its word or number."""
    word = str(reading.value(key)).lower()
    said = {"true": {}, "full_shard": {}, "1": {}, "false": {"zero": "2"}, "shard_grad_op": {"zero": "2"},
        "2": {"zero": "2"},
            "no_shard": {"parallel": "ddp"}, "3": {"parallel": "ddp"}, "hybrid_shard": {"parallel": "hsdp"},
            "4": {"parallel": "hsdp"}, "hybrid_shard_zero2": {"parallel": "hsdp", "zero": "2"}}.get(word)  # fmt: skip
    if said is None:
        reading.wrong(key, "is true, false, or a sharding strategy of FSDP")
    elif said:
        choose(reading, key, said)
    else:
        reading.ledger.default(key)


def _named(names: str, prefixes: tuple[str, ...]) -> str:
    return " ".join(f"{prefix}{name}" for prefix in prefixes for name in names.split())


def rows(*prefixes: str) -> tuple[Row, ...]:
    """Rows of ``fsdp_config``, whose keys stand behind one of these prefixes."""
    return (
        by(_named("offload_params", prefixes), "zero.offload_parameters=cpu", "the optimizer's states go with them",
            _offloads),
        by(_named("reshard_after_forward sharding_strategy", prefixes), "zero=2, parallel=hsdp", "", _reshards),
        by(_named("activation_checkpointing", prefixes), "checkpointing=full", "", _recomputes),
        words(_named("auto_wrap_policy", prefixes), "", {"transformer_based_wrap": None, "no_wrap": None},
              "each block is a unit here: {} has others"),
        idle(_named("fsdp_version version state_dict_type final_state_dict_type cpu_ram_efficient_loading"
            " sync_module_states"
                    " use_orig_params transformer_layer_cls_to_wrap transformer_cls_names_to_wrap backward_prefetch"
                    " backward_prefetch_policy forward_prefetch limit_all_gathers cpu_offload_pin_memory min_num_params"
                    " ignored_modules xla xla_fsdp_v2 xla_fsdp_grad_ckpt xla_fsdp_settings mixed_precision_policy",
                    prefixes),
             "FSDP2 shards each block here, and checkpoints are sharded"),
        off(_named("enable_gradient_checkpointing", prefixes), "there is no such thing here"),
    )  # fmt: skip


FSDP: tuple[Row, ...] = (
    *rows("fsdp_config.", "fsdp_config.fsdp_", "fsdp_"),
    off("fsdp_config", "there is no such thing here"),
)
DEEPSPEED = by("deepspeed", "parallel=zero1 to zero3, zero.offload_*",
               "taken by the file's name; launch import deepspeed reads it", deepspeed)  # fmt: skip
FSDP_WORDS = by("fsdp", "parallel=fsdp, hsdp", "FSDP2 in place of FSDP1", fsdp)


def finish(reading: Reading) -> None:
    """Choose what shards the model, where the keys so far did not: FSDP beside a block of it, else whole copies."""
    beside = any(key.startswith("fsdp_config.") for key in reading.ledger.values)
    reading.choose.setdefault("parallel", "fsdp" if beside else "ddp")
