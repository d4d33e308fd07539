"""axolotl's YAML: keys and defaults of axolotl 0.21 (``utils/schemas``), and older spellings.

Without a DeepSpeed file or FSDP it trains by DDP. The model is loaded in the format that it computes in, so that
without ZeRO parameters, gradients and optimizer states are in 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    later,
    number,
    off,
    other,
    revision,
    say_text,
    switch,
    text,
    usual,
    words,
)  # fmt: skip

_ATTENTION = {
    **dict.fromkeys(("flash_attention_2", "flash", "fa2", "flash_attn"), "flash"),
    **dict.fromkeys(("sdpa", "sdp", "xformers"), "sdpa"),
    "eager": "eager",
}
_TEMPLATED = ("chat_template", "sharegpt", "chatml")
_TASKS = {"dpo": "dpo", "kto": "kto", "grpo": "grpo"}
_EFFECT_OF_RL = "there is no such task here: set task"
_DEFAULTS: Mapping[str, Any] = {
    "optimizer.weight_decay": 0.0, "optimizer.beta2": 0.999, "optimizer.schedule": "cosine", "train.epochs": 1.0,
    "train.sequence_length": 512, "data.eval_fraction": 0.0,
}  # fmt: skip
_TOKENS = "the tokenizer is taken as it is: point at a folder whose tokenizer has them: set data.tokenizer"
_WARMUP_RATIO = 0.03  # What core/builders/base.py takes for what the file does not say.


def read(text: str, path: str) -> Imported:
    """Read an axolotl configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = _foreign.content_of(text, path, "a configuration of axolotl")
    reading = Reading(path=path, lenient=True, file="axolotl's YAML", ledger=Ledger(_foreign.flat(content)))
    _data_sets(reading)
    apply(TABLE, reading)
    if reading.has("datasets") and not reading.has("excess_length_strategy"):
        reading.notes.append("samples longer than sequence_len are left out there, and cut here")
    _sharding.finish(reading)
    _trainer.precision(reading, pure=True)
    warm = {} if {"optimizer.warmup_steps", "optimizer.warmup_ratio"} & reading.settings.keys() else _warmup(reading)
    reading.settings.setdefault("data.tokenizer", reading.choose.get("model"))
    _trainer.finish(reading, {**_DEFAULTS, **warm})
    return imported(
        reading,
        summary=f"{name_from(str(content.get('base_model', path)))} by axolotl",
        source="an axolotl configuration",
    )


def _warmup(reading: Reading) -> dict[str, Any]:
    """The ratio that stands in for both keys, where the file has none of them."""
    return (
        {} if reading.has("warmup_steps") or reading.has("warmup_ratio") else {"optimizer.warmup_ratio": _WARMUP_RATIO}
    )


def _often(steps: str, per_epoch: str) -> Any:
    return lambda reading, key: _trainer.often(reading, key, steps, per_epoch)


def _packs(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.say(key, {"data.packing": "documents"})
    else:
        reading.ledger.default(key)


def _attends(reading: Reading, key: str) -> None:
    """One switch a kernel; ``attn_implementation`` is the newer spelling."""
    kernel = {"flash_attention": "flash", "flash_attn": "flash", "sdp_attention": "sdpa", "eager_attention": "eager",
              "xformers_attention": "sdpa"}.get(key)  # fmt: skip
    if not reading.flag(key):
        reading.ledger.default(key)
    elif kernel is not None:
        reading.say(key, {"model.attention": kernel})
    else:
        reading.ledger.leave(key, "torch's scaled dot product takes its place, with the same maths", matters=False)


def _fused_loss(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.say(key, {"train.loss": "fused"})
    else:
        reading.ledger.default(key)


def _chunked_loss(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.say(key, {"train.loss": "chunked"})
    else:
        reading.ledger.default(key)


def _plugins(reading: Reading, key: str) -> None:
    """Plugins do what their own keys say; cut cross entropy is on where it is there."""
    value = reading.value(key)
    found = [str(each).rpartition(".")[2] for each in (value if isinstance(value, list) else [value])]
    unknown = [name for name in found if name not in ("LigerPlugin", "CutCrossEntropyPlugin", "SpectrumPlugin")]
    if unknown:
        reading.ledger.leave(key, f"{', '.join(unknown)} changes the training, and there is no such thing here")
    elif "CutCrossEntropyPlugin" in found and not reading.has("cut_cross_entropy"):
        reading.say(key, {"train.loss": "fused"})
    else:
        reading.ledger.default(key)


def _offloads(reading: Reading, key: str) -> None:
    """``activation_offloading`` moves what is kept for the backward pass to the host, beside recomputation too."""
    if str(reading.value(key)).lower() in ("true", "legacy", "hidden_states"):
        choose(reading, key, {"checkpointing.offload": True})
    else:
        off(key, "activations wait in host memory or on the GPU here, not on disk").enter(reading, key)


def _trains_on(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.say(key, {"data.train_on": "all"})
    else:
        reading.ledger.default(key)


def _learns(reading: Reading, key: str) -> None:
    """``rl``: the task, which TRL trains."""
    word = _TASKS.get(str(reading.value(key)).lower())
    if word is None:
        reading.ledger.leave(key, f"rl={reading.value(key)}: {_EFFECT_OF_RL}")
    else:
        choose(reading, key, {"task": word})


def _targets_all(reading: Reading, key: str) -> None:
    reading.flag(key)
    reading.ledger.default(key)


def _data_sets(reading: Reading) -> None:
    """Data sets and those of an evaluation; what a set has beside its path is said by columns and templates."""
    values = reading.ledger.values
    for block in ("datasets", "pretraining_dataset"):
        places = _foreign.parts(values, block)
        sets = [each for each in (_data_set(reading, place, block) for place in places) if each is not None]
        _data.say(reading, sets)
    if isinstance(values.get("pretraining_dataset"), str):
        path = values["pretraining_dataset"]
        said = {"path": path}
        _data.say(reading, [_data.DataSet(keys=("pretraining_dataset",), source="huggingface", said=said)])
    places = _foreign.parts(values, "test_datasets")
    for place in places[:1] if len(places) == 1 else ():
        path = reading.value(f"{place}.path")
        files = reading.value(f"{place}.data_files")
        found = _data.path_of(path, files)
        if isinstance(found, str):
            for name in ("path", "data_files"):
                reading.ledger.say(f"{place}.{name}", "data.eval_path")
            reading.settings["data.eval_path"] = found
        for name, setting in (("split", "data.eval_split"), ("name", "data.eval_config")):
            if reading.value(f"{place}.{name}") is not None:
                say_text(reading, f"{place}.{name}", setting)
        _data_rows(reading, place)


def _data_set(reading: Reading, place: str, block: str) -> _data.DataSet | None:
    """One data set, whose further keys are entered here."""
    value, kind = reading.value, reading.value(f"{place}.type")
    path = _data.path_of(value(f"{place}.path"), value(f"{place}.data_files"))
    if not isinstance(path, str):
        return None
    pretrains = block == "pretraining_dataset" or kind in ("completion", "pretrain")
    column = value(f"{place}.text_column") or value(f"{place}.field") if pretrains else value(f"{place}.field_messages")
    said = {
        "path": path,
        "config": value(f"{place}.name"),
        "split": value(f"{place}.split") if value(f"{place}.split") != "train" else None,
        "revision": value(f"{place}.revision"),
        "column": None if column in ("text", "messages", "conversations") else column,
        "weight": value(f"{place}.weight"),
    }
    names = {
        "path",
        "name",
        "split",
        "revision",
        "weight",
        *(("text_column", "field") if pretrains else ("field_messages",)),
    }
    keys = [f"{place}.{name}" for name in names if value(f"{place}.{name}") is not None]
    if (value(f"{place}.data_files") is not None and value(f"{place}.path") is None) or path != value(f"{place}.path"):
        keys.append(f"{place}.data_files")
    _type(reading, place, kind)
    _data_rows(reading, place)
    source = "rows" if value("rl") is not None else _data.source_of(path, chat=not pretrains)
    if value(f"{place}.split") == "train":
        keys.append(f"{place}.split")
    return _data.DataSet(keys=tuple(keys), source=source, said=said)


_OF_PAIRS = ("chat_template", "chatml.ultra", "llama3.ultra", "chat_template.default")
"""Types of a preference set whose rows have the columns that TRL reads."""


def _type(reading: Reading, place: str, kind: object) -> None:
    """``type``: which columns a row has, and the words between them."""
    key, word = f"{place}.type", str(kind).split(":")[0].split(".")[0]
    if kind is None or isinstance(kind, dict) or reading.has(f"{key}.field_instruction"):
        reading.leave("rows are written by a chat template here, not by a format of columns: set data.template", key)
    elif reading.value("rl") is not None and str(kind) not in _OF_PAIRS:
        reading.ledger.leave(key, "rows have the columns prompt, chosen and rejected here: set data.path to such a set")
    elif reading.value("rl") is not None or word in ("completion", "pretrain"):
        reading.ledger.default(key)
    elif word in ("alpaca", "alpaca_chat") and str(kind) in ("alpaca", "alpaca_chat.load_qa", "alpaca:instruct"):
        reading.say(key, {"data.template": "alpaca"})
    elif word in _TEMPLATED or str(kind) in ("alpaca:chat_template",):
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, f"rows of the type {kind} are not known here: set data.template")


def _data_rows(reading: Reading, place: str) -> None:
    """Further keys of a data set."""

    def names(text: str) -> str:
        return " ".join(f"{place}.{name}" for name in text.split())

    apply((
        by(names("chat_template conversation"), "", "", _adapters.template),
        usual(names("roles_to_train"), (["assistant"], ["gpt"], ["assistant", "gpt"]),
            "turns of the assistant are trained here"),
        usual(names("train_on_eos train_on_eot"), ("turn", "all"),
            "the token that ends a turn is trained with it here"),
        idle(names("ds_type data_files message_field_role message_field_content message_property_mappings roles"
                   " trust_remote_code preprocess_shards field_messages drop_system_message type"
                   " field_tools text_column field_human field_model input_format"),
             "what a row holds is found by its content"),
        usual(names("split name"), ("train", "test"), "the evaluation set is all of its own here"),
        off(names("shards shards_idx"), "all of the data are read here: set data.max_samples"),
        off(names("skip"), "the data are read from their beginning here"),
        off(names("message_field_training message_field_training_detail field_thinking template_thinking_key"
                  " split_thinking chat_template_jinja field field_chosen field_rejected input_transform"
                  " logprobs_field"),
            "which parts of a row are trained is said by its roles here: set data.train_on"),
    ), reading)  # fmt: skip


TABLE: tuple[Row, ...] = (
    text("base_model", "model", "a name on the Hub, or a folder"),
    idle("base_model_config base_model_ignore_patterns model_type tokenizer_type tokenizer_use_fast tokenizer_legacy"
         " is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_qwen_derived_model processor_type"
         " tokenizer_save_jinja_files tokenizer_use_mistral_common cls_model_config processor_kwargs",
         "classes follow from the model's own files"),
    text("tokenizer_config", "data.tokenizer"),
    revision("revision_of_model"),
    count("sequence_len", "train.sequence_length", "left out it is 512", least=1),
    count("micro_batch_size", "train.micro_batch_size", least=1),
    idle("eval_batch_size eval_sequence_len batch_size", "of evaluation, or what the other two make"),
    by("num_epochs", "train.epochs", "left out it is 1", _trainer._epochs),
    by("adapter", "adapter", "other adapters are refused",
       lambda reading, key: _adapters.kind(reading, key, {"lora": "lora", "qlora": "qlora", "": "none"})),
    count("lora_r", "adapter.rank", least=1),
    count("lora_alpha", "adapter.alpha"),
    number("lora_dropout", "adapter.dropout"),
    by("lora_target_modules", "adapter.targets", "patterns are refused", _adapters.targets),
    by("lora_target_linear", "adapter.targets", "all linear layers are the default", _targets_all),
    flag("peft_use_dora", "adapter.dora"),
    flag("peft_use_rslora", "adapter.rslora"),
    number("loraplus_lr_ratio", "adapter.lora_plus"),
    by("lora_modules_to_save", "adapter.modules_to_save", "",
       lambda reading, key: reading.say(key, {"adapter.modules_to_save": reading.value(key)}) if reading.value(key)
       else reading.ledger.default(key)),
    usual("load_in_4bit", (False, True), ""),
    off("load_in_8bit", "frozen weights stay in 16 bits here, or are in 4: adapter=qlora: set adapter.name"),
    usual("bnb_config_kwargs.bnb_4bit_quant_type", ("nf4",), "the 4 bits are NF4 here"),
    flag("bnb_config_kwargs.bnb_4bit_use_double_quant", "adapter.double_quant"),
    off("lora_model_dir", "an adapter starts afresh here: set save.load"),
    off("lora_fan_in_fan_out lora_rank_pattern lora_alpha_pattern peft_layers_to_transform peft_layers_pattern"
        " peft_layer_replication lora_target_parameters peft_trainable_token_indices peft gptq peft_init_lora_weights"
        " relora relora_steps relora_warmup_steps relora_anneal_steps relora_prune_ratio relora_cpu_offload"
        " relora_prune_method loraplus_lr_embedding nvfp4_merge_aware lisa_n_layers lisa_step_interval"
        " lisa_layers_attribute gptq_groupsize gptq_model_v1 unfrozen_parameters mora use_mora",
        "LoRA is the same in every layer here, and nothing else is frozen"),
    idle("lora_on_cpu qlora_sharded_model_loading merge_lora merge_method low_cpu_mem_usage peft_autocast_adapter_dtype"
         " peft_ensure_weight_tying nf4_backend lora_fp32_gradients",
         "of how weights are loaded and merged"),
    idle("lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel fused_attn_kernel use_kernels",
         "kernels with the same maths, which save less than is counted"),
    switch("liger_rope liger_rms_norm liger_swiglu liger_glu_activation", {"train.kernels": "liger"},
        "all of them at once"),
    idle("liger_layer_norm liger_rms_norm_gated liger_kernel_impl liger_use_token_scaling",
        "of kernels that no model here has"),
    by("liger_fused_linear_cross_entropy liger_cross_entropy cut_cross_entropy unsloth_cross_entropy_loss"
       " flash_attn_cross_entropy", "train.loss=fused", "Liger's kernel for all of them", _fused_loss),
    by("chunked_cross_entropy", "train.loss=chunked", "by tokens, not by a number of chunks", _chunked_loss),
    idle("chunked_cross_entropy_num_chunks cut_cross_entropy_accum_c_fp32 cut_cross_entropy_c_grad_chunk_size",
         "of how the loss is computed in parts"),
    by("plugins", "", "Liger's and cut cross entropy are read by their keys; others are refused", _plugins),
    by("flash_attention xformers_attention sdp_attention eager_attention flex_attention sage_attention",
       "model.attention", "", _attends),
    words("attn_implementation", "model.attention", _ATTENTION, "{} has no such kernel here: set model.attention",
          "other kernels are refused"),
    by("sample_packing pretraining_sample_concatenation", "data.packing=documents", "", _packs),
    by("val_set_size", "data.eval_fraction", "a number of samples is refused", _data.held_out),
    by("chat_template", "data.template", "names that are shipped; others by a Jinja file", _adapters.template),
    by("train_on_inputs", "data.train_on=all", "", _trains_on),
    by("rl", "task", "dpo, kto and grpo, by TRL; others are refused", _learns),
    number("rl_beta dpo_beta trl.beta", "task.beta", "of dpo, kto and grpo"),
    number("dpo_label_smoothing", "task.label_smoothing"),
    switch("precompute_ref_log_probs", {"task.precompute_reference": True}),
    number("kto_desirable_weight", "task.desirable_weight"),
    number("kto_undesirable_weight", "task.undesirable_weight"),
    count("trl.num_generations", "task.generations", least=1),
    count("trl.max_completion_length", "task.completion_length", least=1),
    number("trl.temperature", "task.temperature"),
    switch("trl.use_vllm", {"task.vllm": True}),
    by("trl.reward_funcs", "task.rewards", "functions of a module", lambda reading, key: reading.say(
        key, {"task.rewards": reading.value(key)})),
    flag("streaming", "data.streaming"),
    later("datasets pretraining_dataset", "data.path, data.mix", "with split, name, revision, type and columns"),
    later("test_datasets", "data.eval_path", "one of them"),
    count("evals_per_epoch", "train.evals_per_epoch"),
    by("eval_steps", "train.eval_every", "a share of the run is said where it is one of an epoch",
       _often("train.eval_every", "train.evals_per_epoch")),
    count("saves_per_epoch", "save.per_epoch"),
    by("save_steps", "save.every", "a share of the run is said where it is one of an epoch",
       _often("save.every", "save.per_epoch")),
    by("gradient_checkpointing", "checkpointing=full", "", _trainer.checkpoints),
    by("activation_offloading", "checkpointing.offload", "disk is refused", _offloads),
    by("cosine_min_lr_ratio", "optimizer.min_lr", "times the rate", lambda reading, key: reading.say(
        key, {"optimizer.min_lr": _trainer.times(reading.number(key), reading.number("learning_rate"))})),
    count("tensor_parallel_size", "parallel.tensor", least=1),
    count("context_parallel_size sequence_parallel_degree", "parallel.ulysses", "Ulysses in place of the ring",
        least=1),
    count("dp_replicate_size", "parallel.replicate", least=1),
    idle("dp_shard_size heads_k_stride ring_attn_func", "the ranks that are left shard the model"),
    _sharding.DEEPSPEED,
    _sharding.FSDP_WORDS,
    *_sharding.FSDP,
    words("wandb_mode", "", {"disabled": None, "online": None, "offline": None}, "{} is no mode here"),
    by("wandb_project", "tracking=wandb, tracking.project", "", lambda reading, key: choose(
        reading, key, {"tracking": "wandb", "tracking.project": str(reading.value(key))})),
    *(switch(f"use_{name}", {"tracking": name}) for name in ("wandb", "mlflow", "tensorboard")),
    text("mlflow_tracking_uri", "tracking.uri"),
    text("mlflow_experiment_name", "tracking.project"),
    idle("wandb_entity wandb_watch wandb_name wandb_run_id wandb_log_model mlflow_run_name hf_mlflow_log_artifacts"
         " use_comet comet_api_key comet_workspace comet_project_name comet_experiment_key comet_mode comet_online"
         " comet_experiment_config use_trackio trackio_project_name trackio_run_name gradio_title gradio_share"
         " gradio_server_name gradio_server_port gradio_max_new_tokens gradio_temperature use_otel_metrics"
         " otel_metrics_host otel_metrics_port use_swanlab swanlab_project swanlab_run_name",
         "of trackers and of what is shown"),
    idle("dataset_prepared_path dataset_processes dataset_num_proc dataset_keep_in_memory dataset_shard_num"
         " dataset_shard_idx num_dataset_shards_to_save push_dataset_to_hub hf_use_auth_token skip_prepare_dataset"
         " is_preprocess preprocess_iterable total_num_tokens total_supervised_tokens axolotl_config_path"
         " shuffle_merged_datasets shuffle_before_merging_datasets data_seed strict experimental_skip_move_to_device"
         " streaming_multipack_buffer_size pretrain_multipack_buffer_size dataset_exact_deduplication"
         " max_packed_sequence_len",
         "of how the data are prepared; launch prepare keeps token ids"),
    idle("sample_packing_eff_est sample_packing_group_size sample_packing_bin_size sample_packing_sequentially"
         " sample_packing_mp_start_method eval_sample_packing pad_to_sequence_len pad_to_multiple_of"
         " multipack_real_batches"
         " pretrain_multipack_attn batch_flattening fa_varlen_kwargs_in_collator group_by_length_multipack",
         "of how samples are laid out; padding is computed and not trained here"),
    usual("special_tokens.bos_token", ("<s>", "<|begin_of_text|>", "<bos>"), _TOKENS),
    usual("special_tokens.eos_token", ("</s>", "<|end_of_text|>", "<|endoftext|>", "<eos>", "<|eot_id|>"), _TOKENS),
    idle("special_tokens.pad_token special_tokens.unk_token default_system_message eot_tokens chat_template_kwargs",
         "padding is masked whatever its token, and turns end as the template says"),
    off("special_tokens tokens added_tokens_overrides resize_token_embeddings_to_32x shrink_embeddings"
        " mean_resizing_embeddings fix_untrained_tokens",
        _TOKENS),
    usual("excess_length_strategy", ("truncate",), "samples that are too long are cut here"),
    idle("min_sample_len max_memory gpu_memory_limit device device_map world_size gc_steps gc_collect_steps"
        " auto_resume_from_checkpoints"
         " local_rank ddp loss_watchdog_threshold loss_watchdog_patience save_first_step profiler_steps"
         " profiler_steps_start sync_profiler_steps sync_profiler_start_step use_ray ray_run_name ray_num_workers"
         " resources_per_worker cloud_config generate_samples num_generation_samples generation_max_new_tokens"
         " generation_temperature generation_top_p generation_top_k generation_prompt_ratio generation_do_sample"
         " do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset bench_split eval_table_size"
         " eval_max_new_tokens include_tkps dynamic_checkpoint early_stopping_patience flash_attn_fuse_mlp"
         " flash_attn_rms_norm flash_attn_fuse_qkv torchdistx_path sdpa_varlen large_head_attention"
         " flash_attn_d512 flash_optimum"
         " experts_implementation float32 embeddings_skip_upcast fsdp_final_state_dict_type debug",
         "of machines, logs and samples; ranks and time are those of cluster"),
    off("noisy_embedding_alpha", "embeddings get no noise here (NEFTune)"),
    off("overrides_of_model_config overrides_of_model_kwargs rope_scaling reinit_weights random_init_weights",
        "the model is what its config.json says: set model.rope_parameters"),
    off("lr_quadratic_warmup cosine_constant_lr_ratio lr_div_factor lr_groups embedding_lr embedding_lr_scale"
        " adam_epsilon2 adam_beta3 dion_lr dion_momentum jagged_restart_steps jagged_restart_warmup_steps"
        " jagged_restart_anneal_steps dion_rank_fraction dion_rank_multiple_of qgalore_update_proj_gap qgalore_scale"
        " qgalore_proj_type qgalore_proj_quant qgalore_proj_bits qgalore_proj_group_size qgalore_cos_threshold"
        " qgalore_gamma_proj qgalore_queue_size qgalore_rank optim_target_modules torchao_config",
        "the optimizer and its schedule have no such argument here: set optimizer.schedule"),
    off("fp8 fp8_config fp8_enable_fsdp_float8_all_gather", "set precision.compute (with precision=fp8)"),
    other("selective_checkpointing torch_compile_regional torch_compile_options deepcompile llama4_linearized_experts"
          " tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp layer_offloading"
          " expert_parallel_fallback_on_unsupported",
          "the same maths by less memory there: blocks are computed whole here, and counted so"),
    *_trainer.ROWS,
    off("trl vllm ebft qat quantization export reward_model process_reward_model center_rewards_coefficient num_labels"
        " dpo_use_weighting dpo_ld_alpha dpo_use_liger_kernel"
        " dpo_padding_free"
        " dpo_loss_type dpo_loss_weights orpo_alpha simpo_gamma cpo_alpha"
        " rpo_alpha dpo_norm_loss dpo_use_logits_to_keep dpo_generate_during_eval trainer_cls",
        "the loss of that task has no such argument here"),
    off("use_pose pose_split_on_token_ids pose_max_context_len pose_num_chunks curriculum_sampling s2_attention"
        " use_eaft eaft_alpha eaft_k use_dft scaling_softmax scaling_softmax_factor scaling_softmax_bias"
        " quantize_moe_experts model_quantization_config model_quantization_config_kwargs use_onebitllms"
        " ple_cpu_offload fp32_norms fp32_norm_classes image_size image_resize_algorithm role_boundaries"
        " freeze_mm_modules diffusion diffusion_lm chat_template_jinja spectrum_top_fraction spectrum_model_name"
        " mixlora_router_aux_loss_coef mixlora_router_init_range mixlora_jitter_noise mixlora_expert_lora_r"
        " mixlora_expert_lora_alpha mixlora_expert_lora_dropout type_of_model max_prompt_len balance_labels"
        " label_balance_window_optim_steps bnb_config_kwargs"
        " kd_trainer kd_ce_alpha kd_alpha kd_temperature mixlora_num_experts mixlora_top_k expert_parallel_size"
        " gemma4_hybrid_attn_impl flex_attn_compile_kwargs",
        "there is no such thing here"),
)  # fmt: skip
