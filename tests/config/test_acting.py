"""Settings that act: every key is decided, and what a key does is seen in each form that a file can give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.config import recipes
from launcher.config.trust import privileged_settings
from launcher.spec.parse import known_keys
from tests.support.helpers import composed_once

HARMLESS = {
    "adapter": "alpha block_size dora double_quant dropout lora_plus modules_to_save name parameters pissa quant_type "
    "rank rslora targets",
    "backend": "bucket_cap_mb bucket_view micro_step_sync name reshard_after_forward",
    "checkpointing": "layers method mode modules offload offload_modules",
    "cluster": "account constraint container cpus_per_node dependency exclusive gpu_request gpu_type gpus_per_node "
    "interface kind licenses memory memory_request network_bandwidth network_latency nodelist nodes partition "
    "price_per_gpu_hour probe qos requeues reservation save_margin_s shared_folder storage_bandwidth time_limit_min",
    "data": "column columns config eval_config eval_fraction eval_split max_samples on_bad_row packing preview "
    "revision samples shuffle special_tokens split stages template template_values token_dtype train_on "
    "workers",
    "hardware": "card compute_capability cores device disk_bytes dtypes flops_bf16 flops_fp16 flops_fp32 flops_fp4 "
    "flops_fp8 host_memory_bytes link_bandwidth link_gpus memory_bandwidth memory_bytes name network_bandwidth "
    "nvme_bandwidth pcie_bandwidth reserved_bytes source title",
    "eval": "limit num_fewshot",
    "model": "attention attention_bias attention_output_bias dropout extra family first_dense_layers gated head_dim "
    "hidden_act hidden_size initializer_range intermediate_size kv_lora_rank max_position_embeddings "
    "mlp_bias model_type mtp_layers moe_intermediate_size n_group name norm_epsilon norm_topk_prob normalization "
    "num_attention_heads num_experts num_experts_per_tok num_hidden_layers num_key_value_heads "
    "num_shared_experts position_embedding q_lora_rank qk_nope_head_dim qk_norm qk_rope_head_dim "
    "rope_parameters rope_theta routed_scaling_factor router_aux_loss_coef sliding_window source "
    "tie_word_embeddings topk_group v_head_dim vocab_size weights",
    "optimizer": "adamw_lr beta1 beta2 clip decay_steps epsilon foreach fused lr min_lr name schedule "
    "stochastic_rounding warmup warmup_lr warmup_ratio warmup_steps weight_decay wsd_decay wsd_decay_steps",
    "parallel": "async_tensor context expert expert_tensor first_stage_layers last_stage_layers layout name pipeline "
    "replicate schedule sequence shard tensor ulysses virtual_pipeline",
    "precision": "accumulate compute gradients initial_loss_scale loss_scale loss_scale_window master "
    "name optimizer_states parameters qat qat_after qat_group_size recipe reduce",
    "run": "name partial record_diff",
    "save": "async every export keep last per_epoch reshardable",
    "sweep": "budget parallelism sampler",
    "task": "beta center_rewards completion_length desirable_weight generations label_smoothing loss name "
    "precompute_reference temperature undesirable_weight vllm",
    "tracking": "project",
    "train": "allocator compile cuda_graphs epochs eval_every eval_steps evals_per_epoch global_batch_size "
    "gradient_accumulation hang_factor kernels label_smoothing log_every enforce_memory log_memory_every loss "
    "loss_chunk neftune_alpha patience z_loss "
    "micro_batch_size on_hang on_spike profile rollbacks seed sequence_length spike_deviations steps timeout_s tokens",
    "zero": "allgather_bucket_size gather_16bit_weights_on_save hpz max_live_parameters max_reuse_distance nvme_path "
    "offload_optimizer offload_parameters overlap_comm param_persistence_threshold prefetch_bucket_size "
    "quantized_gradients quantized_weights reduce_bucket_size stage sub_group_size",
}
"""Keys that do nothing by themselves as long as their value stays in the working folder, which is asked of all."""


def test_every_key_of_a_run_acts_or_is_known_to_be_harmless() -> None:
    harmless = {f"{group}.{key}" for group, keys in HARMLESS.items() for key in keys.split()}
    assert len(harmless) > 100
    undecided = known_keys() - harmless - set(privileged_settings.ACTS)
    assert not undecided, (
        f"decide of {sorted(undecided)}: into privileged_settings.ACTS, or into the harmless ones here"
    )
    assert not harmless & set(privileged_settings.ACTS)
    assert not (harmless | set(privileged_settings.ACTS)) - known_keys()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tracking": "wandb"}, "tracking=wandb sends settings and metrics to a tracker"),
        ({"tracking.kind": ["none", "mlflow"]}, "tracking.kind=['none', 'mlflow'] sends settings and metrics"),
        ({"data": "huggingface"}, "data=huggingface may fetch from the Hugging Face Hub"),
        ({"data.path": "owner/name"}, "data.path=owner/name may be fetched from the Hugging Face Hub"),
        ({"model": "owner/name"}, "model=owner/name reads this model, and fetches it if it is on the Hub"),
        ({"model.trust_remote_code": True}, "model.trust_remote_code=True runs the code of a checkpoint"),
        ({"save.load": "runs/a"}, "save.load=runs/a reads this checkpoint, whose files may hold code"),
        ({"script": "/x.py"}, "script=/x.py runs this program and leaves the working folder"),
        ({"script_args": ["--rm"]}, "script_args=['--rm'] passes these arguments to a program"),
        ({"data.path": "out/of/here"}, "data.path=out/of/here leaves the working folder"),
        ({"cluster.shared_folder": "out"}, "cluster.shared_folder=out leaves the working folder"),
    ],
)
def test_a_setting_that_acts_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "out").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "here")
    [setting] = privileged_settings.needs(settings)
    assert str(setting).startswith(sentence)


def test_settings_without_a_deed_need_no_word() -> None:
    harmless = {"tracking": "none", "tracking.kind": "tensorboard", "data": "text", "model": "tiny", "cluster": "slurm"}
    assert not [
        *privileged_settings.needs({**harmless, "cluster.setup": [], "data.path": "texts/*.txt", "run.name": "a"})
    ]
    assert not privileged_settings.of_spec(composed_once("model=tiny", "data=synthetic"))


@pytest.mark.parametrize(
    ("words", "fetched"),
    [
        (("data=text", "data.path=owner/name", "data.eval_path=owner/other"), []),
        (("data=tokens", "data.path=owner/name"), []),
        (("data=chat", "data.path=owner/name"), ["data.path"]),
        (("data=text", "data.mix=[{path: a/b, weight: 1},{path: c/d, weight: 1, source: huggingface}]"), ["data.mix"]),
    ],
)
def test_a_lock_whose_data_are_only_read_fetches_nothing_unless_a_word_changes_the_source(
    words: tuple[str, ...], fetched: list[str]
) -> None:
    spec = composed_once("model=tiny", *words)
    assert [setting.key for setting in privileged_settings.of_spec(spec)] == fetched
    for_another = [setting.key for setting in privileged_settings.of_spec(spec, ["data.source"])]
    assert {"data.path", "data.mix"} & {*for_another}


def test_what_a_recipe_sweeps_over_acts_too() -> None:
    content = {"schema": 1, "summary": "s", "sweep": {"tracking": ["none", "wandb"], "train.seed": [1, 2]}}
    assert [setting.key for setting in privileged_settings.of_recipe(recipes.check(content, "a.yaml"))] == ["tracking"]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("cluster/ours.yaml", "setup: [ls]", ["cluster.setup"]),
        ("launch.yaml", "defaults: [{override /tracking: wandb}]\nscript: a.py", ["tracking", "script"]),
        ("tracking/_base.yaml", "kind: ${oc.env:WHAT}", ["tracking.kind", "${...}"]),
        ("x/a.yaml", "# @package cluster\nsetup: [ls]", ["cluster.setup"]),
        ("x/a.yaml", "# @package cluster.environment\nLD_PRELOAD: x.so", ["cluster.environment"]),
        ("cluster/a.yaml", "environment: {LD_PRELOAD: x.so}", ["cluster.environment"]),
        ("cluster/environment/a.yaml", "LD_PRELOAD: x.so", ["cluster.environment.LD_PRELOAD"]),
        ("x/a.yaml", 'defaults: ["b\\x40cluster"]\nsetup: [ls]', ["cluster.setup"]),
        ("run/a.yaml", "name: ${oc.env:SECRET}", ["${...}"]),
        ("run/a.yaml", "name: ${model.name}", []),
        ("cluster/a.yaml", "a: &x 1", ["cannot be inspected"]),
        ("cluster/a.yaml", "nodes: 2\nmodules: []", []),
    ],
)
def test_groups_of_a_folder_are_looked_through_wherever_they_place_their_keys(
    tmp_path: Path, name: str, text: str, found: list[str]
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    privileged = [
        f"{setting.key} {setting.does}" for acts in privileged_settings.of_conf(tmp_path).values() for setting in acts
    ]
    assert len(privileged) == len(found)
    assert all(key in setting for key, setting in zip(found, privileged, strict=True))
