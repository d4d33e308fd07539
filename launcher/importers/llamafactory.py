"""LLaMA-Factory's YAML: keys and defaults of LLaMA-Factory 0.9.5 (``hparams``), beside those of the Trainer.

Parameters that are trained whole are in fp32 (``pure_bf16`` apart), those that LoRA leaves alone in 16 bits,
    and blocks are recomputed unless the file says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.base.errors import ConfigError
from launcher.config.ledger import Ledger, name_from
from launcher.importers import Imported, _adapters, _data, _foreign, _sharding, _trainer
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
    other,
    revision,
    switch,
    text,
    usual,
    words,
)  # fmt: skip

_STAGES: Mapping[str, Any] = {
    "pt": None,
    "sft": None,
    "dpo": {"task": "dpo"},
    "kto": {"task": "kto"},
    "rm": {"task": "reward"},
}
_KERNELS: Mapping[str, Any] = {
    "auto": None, "disabled": "eager", "sdpa": "sdpa", "fa2": "flash",
}  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    **_trainer.DEFAULTS, "train.sequence_length": 2048, "checkpointing": "full",
}  # fmt: skip
_LORA: Mapping[str, Any] = {"adapter.rank": 8, "adapter.dropout": 0.0}

_FILES = {
    "identity": "identity.json", "alpaca_en_demo": "alpaca_en_demo.json", "alpaca_zh_demo": "alpaca_zh_demo.json",
    "glaive_toolcall_en_demo": "glaive_toolcall_en_demo.json",
    "glaive_toolcall_zh_demo": "glaive_toolcall_zh_demo.json",
    "dpo_en_demo": "dpo_en_demo.json", "dpo_zh_demo": "dpo_zh_demo.json", "kto_en_demo": "kto_en_demo.json",
    "wiki_demo": "wiki_demo.txt", "c4_demo": "c4_demo.jsonl", "system_chat": None,
}  # fmt: skip
_ON_THE_HUB = {
    **{name: f"llamafactory/{name}" for name in (
        "alpaca_en", "alpaca_zh", "alpaca_gpt4_en", "alpaca_gpt4_zh", "glaive_toolcall_en", "glaive_toolcall_zh",
        "lima", "tiny_supervised_dataset")},
    "ultrachat_200k": "HuggingFaceH4/ultrachat_200k", "slimorca": "Open-Orca/SlimOrca",
    "openorca": "Open-Orca/OpenOrca",
    "mathinstruct": "TIGER-Lab/MathInstruct", "open_platypus": "garage-bAInd/Open-Platypus",
    "dolly_15k_en": "databricks/databricks-dolly-15k", "fineweb": "HuggingFaceFW/fineweb",
    "fineweb_edu": "HuggingFaceFW/fineweb-edu", "cosmopedia": "HuggingFaceTB/cosmopedia", "c4": "allenai/c4",
    "refinedweb": "tiiuae/falcon-refinedweb", "starcoder_python": "bigcode/starcoderdata",
    "ultrafeedback": "llamafactory/ultrafeedback_binarized", "dpo_mix_en": "llamafactory/DPO-En-Zh-20k",
    "orca_pairs": "Intel/orca_dpo_pairs", "kto_mix_en": "argilla/kto-mix-15k",
    "open_thoughts": "llamafactory/OpenThoughts-114k",
    "openr1_math": "llamafactory/OpenR1-Math-94k", "tulu_v2": "allenai/tulu-v2-sft-mixture",
}  # fmt: skip
"""Names of the ``data/dataset_info.json`` that is shipped, and where those data are."""


def read(text: str, path: str) -> Imported:
    """Read a LLaMA-Factory configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = _foreign.content_of(text, path, "a configuration of LLaMA-Factory")
    reading = Reading(path=path, lenient=True, file="LLaMA-Factory's YAML", ledger=Ledger(_foreign.flat(content)))
    apply(TABLE, reading)
    _evaluates_on(reading)
    if not reading.flag("do_train"):
        rule = "LLaMA-Factory trains where it is true: this predicts, evaluates or exports"
        reading.errors.append(ConfigError(f"{path}: do_train", reading.value("do_train"), rule))
    _sharding.finish(reading)
    adapter = _adapter(reading)
    _trainer.precision(reading, pure=reading.flag("pure_bf16") or bool(adapter))
    _trainer.finish(reading, {**_DEFAULTS, **adapter})
    if reading.choose.get("adapter") == "none":
        del reading.choose["adapter"]
    if "model" in reading.choose:
        reading.settings.setdefault("data.tokenizer", reading.choose["model"])
    return imported(
        reading,
        summary=f"{name_from(str(content.get('model_name_or_path', path)))} by LLaMA-Factory",
        source="a LLaMA-Factory configuration",
    )


def _adapter(reading: Reading) -> dict[str, Any]:
    """LoRA is what a file trains that does not say."""
    reading.choose.setdefault("adapter", "lora")
    if reading.choose["adapter"] == "none":
        return {}
    rank = reading.settings.get("adapter.rank", _LORA["adapter.rank"])
    return {**_LORA, "adapter.alpha": 2 * rank}


def _tunes(reading: Reading, key: str) -> None:
    """``finetuning_type``; with ``quantization_bit: 4`` LoRA is QLoRA."""
    word = str(reading.value(key)).lower()
    if word == "lora":
        choose(reading, key, {"adapter": "qlora" if reading.value("quantization_bit") else "lora"})
    elif word == "full":
        reading.choose["adapter"] = "none"
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, f"{word} trains other weights than LoRA or all of them: set adapter.name")


def _quantizes(reading: Reading, key: str) -> None:
    if reading.number(key) == 4 and str(reading.value("finetuning_type") or "lora").lower() == "lora":
        choose(reading, key, {"adapter": "qlora"})
    else:
        reading.ledger.leave(
            key, "frozen weights stay in 16 bits here, or are in 4: set adapter.name (with adapter=qlora)"
        )


def _data_sets(reading: Reading, key: str) -> None:
    """``dataset``: names of ``dataset_info.json``, of the Hub, or files of ``dataset_dir``."""
    value = reading.value(key)
    names = value if isinstance(value, list) else [each.strip() for each in str(value).split(",") if each.strip()]
    sets = []
    pretrains = str(reading.value("stage") or "sft") == "pt"
    weights = [each.strip() for each in str(reading.value("interleave_probs") or "").split(",") if each.strip()]
    for place, name in enumerate(map(str, names)):
        path = _place(reading, name)
        if path is None:
            effect = f"dataset_info.json says where {name} is, which is not read here: set data.path"
            reading.ledger.leave(key, effect)
            return
        said = {"path": path, "weight": float(weights[place]) if place < len(weights) else None}
        prefers = str(reading.value("stage")) in ("dpo", "kto", "rm")
        source = "rows" if prefers else _data.source_of(path, chat=not pretrains)
        sets.append(_data.DataSet(keys=(key, *(("interleave_probs",) if weights else ())), source=source, said=said))
    _data.say(reading, sets)


def _place(reading: Reading, name: str) -> str | None:
    """Where a data set is by its name; None where that is not known."""
    if name in _ON_THE_HUB:
        return _ON_THE_HUB[name]
    folder = str(reading.value("dataset_dir") or "data")
    if _FILES.get(name):
        return f"{folder}/{_FILES[name]}"
    if "/" in name or name.endswith((".json", ".jsonl", ".parquet", ".csv", ".txt")):
        return name if "/" in name else f"{folder}/{name}"
    return None


def _evaluates_on(reading: Reading) -> None:
    """``eval_dataset``: an evaluation set of its own."""
    key = "eval_dataset"
    if reading.value(key) is None:
        return
    names = [each.strip() for each in str(reading.value(key)).split(",")]
    path = _place(reading, names[0]) if len(names) == 1 else None
    if path is None:
        reading.ledger.leave(key, "one set evaluates here, whose place is not known: set data.eval_path")
    else:
        reading.say(key, {"data.eval_path": path})


def _masks(reading: Reading, key: str) -> None:
    word = "all" if key == "train_on_prompt" else "last"
    if reading.flag(key):
        reading.say(key, {"data.train_on": word})
    else:
        reading.ledger.default(key)


def _packs(reading: Reading, key: str) -> None:
    """``packing`` fills a sequence across samples, and with ``neat_packing`` attention keeps them apart."""
    if not reading.flag(key):
        reading.ledger.default(key)
    elif key == "neat_packing" or reading.flag("neat_packing"):
        reading.say(key, {"data.packing": "documents"})
    else:
        reading.say(key, {"data.packing": "concat"})


def _interleaves(reading: Reading, key: str) -> None:
    if str(reading.value(key)) == "concat" or reading.has("interleave_probs"):
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, "data sets are mixed by their weights here: set data.mix")


def _whole(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.choose["checkpointing"] = "none"
        reading.ledger.say(key, "checkpointing")
    else:
        choose(reading, key, {"checkpointing": "full"})


TABLE: tuple[Row, ...] = (
    text("model_name_or_path", "model", "a name on the Hub, or a folder"),
    revision("model_revision"),
    words("stage", "task", _STAGES, "{}: there is no such task here: set task", "ppo is refused"),
    by("finetuning_type", "adapter", "left out it is lora; freeze and oft are refused", _tunes),
    by("quantization_bit", "adapter=qlora", "4 bits alone", _quantizes),
    flag("double_quantization", "adapter.double_quant"),
    usual("quantization_type", ("nf4",), "the 4 bits are NF4 here"),
    usual("quantization_method", ("bnb", "bitsandbytes", "BNB"), "the 4 bits are bitsandbytes' here"),
    count("lora_rank", "adapter.rank", "left out it is 8", least=1),
    count("lora_alpha", "adapter.alpha", "left out it is twice the rank"),
    number("lora_dropout", "adapter.dropout"),
    by("lora_target", "adapter.targets", "all linear layers are the default", _adapters.targets),
    by("additional_target", "adapter.modules_to_save", "", lambda reading, key: reading.say(
        key, {"adapter.modules_to_save": [each.strip() for each in str(reading.value(key)).split(",")]})),
    flag("use_dora", "adapter.dora"),
    flag("use_rslora", "adapter.rslora"),
    number("loraplus_lr_ratio", "adapter.lora_plus"),
    off("adapter_name_or_path pissa_init", "an adapter starts afresh here: set save.load"),
    idle("pissa_iter pissa_convert create_new_adapter loraplus_lr_embedding adapter_folder",
        "of adapters that are not made here"),
    by("template", "data.template", "names that are shipped; others by a Jinja file", _adapters.template),
    by("dataset", "data.path, data.mix", "names of the shipped dataset_info.json, of the Hub, or files", _data_sets),
    by("mix_strategy", "data.mix", "", _interleaves),
    count("cutoff_len", "train.sequence_length", "left out it is 2048", least=1),
    count("max_samples", "data.max_samples", "of each data set", least=1),
    by("val_size", "data.eval_fraction", "a number of samples is refused", _data.held_out),
    by("train_on_prompt mask_history", "data.train_on", "", _masks),
    by("packing neat_packing", "data.packing", "", _packs),
    flag("streaming", "data.streaming"),
    words("flash_attn", "model.attention", _KERNELS, "{} has no such kernel here: set model.attention"),
    switch("enable_liger_kernel", _trainer.LIGER),
    by("disable_gradient_checkpointing", "checkpointing=none", "left out, blocks are recomputed", _whole),
    switch("pure_bf16", {"precision": "bf16"}),
    switch("use_muon", {"optimizer": "muon"}),
    number("moe_aux_loss_coef", "model.router_aux_loss_coef"),
    usual("rope_scaling", (), "the model is what its config.json says: set model.rope_parameters"),
    off("upcast_layernorm upcast_lmhead_output shift_attn mixture_of_depths use_llama_pro use_adam_mini use_mca"
        " use_galore use_apollo use_badam use_dft_loss use_asft_loss use_eaft_loss use_hyper_parallel"
        " hyper_parallel_args"
        " use_kt use_unsloth_gc train_from_scratch resize_vocab add_tokens add_special_tokens new_special_tokens_config"
        " split_special_tokens fp8 fp8_enable_fsdp_float8_all_gather early_stopping_steps freeze_trainable_layers"
        " freeze_trainable_modules freeze_extra_modules default_system tool_format freeze_language_model",
        "there is no such thing here"),
    other("use_unsloth use_v1_kernels", "kernels with the same maths, which save less than is counted"),
    idle("galore_target galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise apollo_target"
         " apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type"
         " apollo_layerwise apollo_scale_front badam_mode badam_start_block badam_switch_mode badam_switch_interval"
         " badam_update_ratio badam_mask_mode badam_verbose asft_alpha eaft_alpha fp8_backend oft_rank oft_block_size"
         " oft_target module_dropout init_special_tokens",
         "it belongs to something that is switched on by another key"),
    number("pref_beta", "task.beta", "of dpo and kto"),
    text("pref_loss", "task.loss"),
    number("kto_chosen_weight", "task.desirable_weight"),
    number("kto_rejected_weight", "task.undesirable_weight"),
    off("ref_model ref_model_adapters ref_model_quantization_bit reward_model reward_model_adapters pref_ftx"
        " pref_bco_weight"
        " simpo_gamma ld_alpha dpo_label_smoothing",
        "the loss of that task has no such argument here"),
    idle("reward_model_quantization_bit reward_model_type ppo_buffer_size ppo_epochs ppo_score_norm ppo_target"
         " ppo_whiten_rewards", "of PPO"),
    idle("dataset_dir media_dir buffer_size overwrite_cache preprocessing_batch_size preprocessing_num_workers"
         " eval_num_beams ignore_pad_token_for_loss eval_on_each_dataset tokenized_path data_shared_file_system"
         " interleave_probs enable_thinking preserve_thinking",
         "of how the data are prepared; launch prepare keeps token ids"),
    idle("cache_dir use_fast_tokenizer low_cpu_mem_usage use_reentrant_gc infer_backend offload_folder use_kv_cache"
         " infer_dtype hf_hub_token ms_hub_token om_hub_token print_param_status device_map quantization_device_map"
         " model_max_length block_diag_attn compute_dtype upcast_lmhead",
         "of how weights are loaded, and of inference"),
    idle("image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels"
         " video_fps video_maxlen use_audio_in_video audio_sampling_rate freeze_vision_tower"
         " freeze_multi_modal_projector",
         "of images and sound, which are not read here"),
    idle("export_dir export_size export_device export_quantization_bit export_quantization_dataset"
         " export_quantization_nsamples export_quantization_maxlen export_legacy_format export_hub_model_id vllm_maxlen"
         " vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config sglang_maxlen sglang_mem_fraction"
         " sglang_tp_size sglang_config sglang_lora_backend kt_weight_path kt_expert_checkpoint_path"
         " kt_use_lora_experts kt_lora_expert_num kt_lora_expert_intermediate_size do_sample temperature top_p top_k"
         " num_beams max_length max_new_tokens repetition_penalty length_penalty skip_special_tokens",
         "of export and inference"),
    idle("disable_shuffling compute_accuracy include_effective_tokens_per_second use_swanlab swanlab_project"
         " swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir swanlab_lark_webhook_url"
         " swanlab_lark_secret ray_num_workers ray_init_kwargs ray_run_name ray_storage_path ray_storage_filesystem"
         " resources_per_worker placement_strategy master_addr master_port enable_torch_profiler profiler_output_dir"
         " profiler_wait_steps profiler_warmup_steps profiler_active_steps profiler_repeat profiler_record_shapes"
         " profiler_profile_memory profiler_with_stack profile_modules eval_dataset",
         "of trackers, logs and machines; ranks are those of cluster"),
    _sharding.DEEPSPEED,
    _sharding.FSDP_WORDS,
    *_sharding.FSDP,
    *_trainer.ROWS,
)  # fmt: skip
