"""Words of other programs that switch something off, or that another word switches off: none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.base import registry
from launcher.importers import Imported, _table

TABLES = sorted(path.stem for path in Path(_table.__file__).with_name("tables").glob("*.yaml"))


def read(kind: str, text: str) -> Imported:
    found: Imported = registry.load("importers", kind).read(text, "file.yaml")
    return found


def words_of(content: Any) -> Iterator[Any]:
    """All keys of nested mappings."""
    if isinstance(content, dict):
        yield from content
    for each in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from words_of(each)


@pytest.mark.parametrize("name", TABLES)
def test_every_word_of_a_table_is_text(name: str) -> None:
    """YAML reads a key ``off`` as false, and a row whose word is none acts on nothing."""
    found = list(words_of(_table.table(name)))
    assert found
    assert [word for word in found if not isinstance(word, str)] == []


DPO = "base_model: a/b\nrl: dpo\n"


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("torchtune", "batch_size: 2\nfsdp_reshard_after_forward: false\n", {"zero=2"}),
        ("torchtune", "context_parallel_dim: 2\nsave_every_n_steps: 9\nkeep_last_n_checkpoints: 3\n",
         {"parallel.context=2", "save.every=9", "save.keep=3"}),
        ("megatron_bridge", "ddp: {use_distributed_optimizer: false}\n", {"zero=0"}),
        ("megatron_bridge", "mixed_precision: {grad_reduce_in_fp32: false}\n",
         {"precision.gradients=bf16", "precision.accumulate=bf16", "precision.reduce=bf16"}),
        ("megatron_bridge", "validation: {eval_interval: 0}\n", {"train.eval_every=null"}),
        ("nanotron", "optimizer: {accumulate_grad_in_fp32: false}\n", {"precision.gradients=bf16"}),
        ("axolotl", "torch_compile: auto\n", {"train.compile=true"}),
        ("axolotl", "use_wandb: true\nwandb_project: one\nmlflow_experiment_name: other\n", {"tracking.project=one"}),
        ("axolotl", "datasets: [{path: ./own, data_files: [a.jsonl, b.jsonl], type: chat_template}]\n",
         {"data.mix=[{path:./own/a.jsonl},{path:./own/b.jsonl}]"}),
        ("torchtune", "optimizer: {_component_: torchao.optim.AdamW4bit, bf16_stochastic_round: true}\n",
         {"optimizer=adamw_4bit", "optimizer.stochastic_rounding=true"}),
        ("trl", "dataset_name: c/d\ncompletion_only_loss: false\n", {"data.train_on=all"}),
        ("trl", "dataset_name: c/d\ncompletion_only_loss: true\nassistant_only_loss: false\n",
         {"data.train_on=assistant"}),
        ("axolotl", "micro_batch_size: 2\nbatch_size: 16\n", {"train.gradient_accumulation=8"}),
        ("axolotl", f"{DPO}dpo_loss_type: [hinge]\n", {"task.loss=hinge"}),
        ("axolotl", "chat_template_kwargs: {enable_thinking: false, effort: high}\n",
         {"data.template_values={enable_thinking:false,effort:high}"}),
        ("trl", "num_generations: 4\nchat_template_kwargs: {enable_thinking: false}\n",
         {"data.template_values={enable_thinking:false}"}),
        ("axolotl", "rl: ipo\n", {"task=dpo", "task.loss=ipo"}),
    ],
)  # fmt: skip
def test_a_word_that_switches_something_off_is_said(kind: str, text: str, words: set[str]) -> None:
    assert words <= set(read(kind, text).overrides)


@pytest.mark.parametrize(
    ("kind", "text", "setting"),
    [
        ("axolotl", "save_strategy: 'no'\nsave_steps: 100\n", "save.every"),
        ("axolotl", "eval_strategy: 'no'\neval_steps: 100\n", "train.eval_every"),
        ("axolotl", "torch_compile: true\nliger_rope: true\nplugins: [x.LigerPlugin]\n", "train.kernels"),
        ("llamafactory", "stage: dpo\npref_loss: simpo\n", "task.loss"),
        ("nanotron", "model: {dtype: float32}\noptimizer: {accumulate_grad_in_fp32: false}\n", "precision.gradients"),
    ],
)
def test_a_word_that_another_switches_off_sets_nothing(kind: str, text: str, setting: str) -> None:
    assert not [word for word in read(kind, text).overrides if word.startswith(f"{setting}=")]


@pytest.mark.parametrize(
    ("kind", "text", "note"),
    [
        ("trl", "dataset_name: c/d\n", "data.train_on=all trains every token"),
        ("axolotl", "micro_batch_size: 4\nsample_packing: true\nflash_attention: true\n",
         "4 rows are packed into one;"),
    ],
)  # fmt: skip
def test_what_a_run_here_does_in_another_way_is_said(kind: str, text: str, note: str) -> None:
    assert any(note in each for each in read(kind, text).not_understood)
    assert not any(note in each for each in read(kind, f"{text}completion_only_loss: true\nmicro_batch_size: 1\n"
                                                 if kind == "trl" else "base_model: a/b\n").not_understood)  # fmt: skip


KEPT = {"backend.extra.first-last-layers-bf16=true", "backend.extra.fp8-param-gather=true"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mixed_precision: bf16_with_fp8_current_scaling_mixed\n", {"precision=fp8", *KEPT}),
        ("mixed_precision: bf16_with_mxfp8_mixed\n", {"precision=mxfp8", "backend.extra.fp8-param-gather=true"}),
        ("mixed_precision: nemotron_h_bf16_with_fp8_current_scaling_mixed\n",
         {"precision.recipe=tensorwise", "backend.extra.num-layers-at-end-in-bf16=2", *KEPT}),
        ("mixed_precision: nanov2_bf16_with_fp8_current_scaling_mixed\n",
         {"precision.recipe=blockwise", "backend.extra.num-layers-at-start-in-bf16=2", *KEPT}),
        ("mixed_precision: {_target_: a.MixedPrecisionConfig, bf16: true, fp8: hybrid, fp8_recipe: delayed,"
         " first_last_layers_bf16: true, num_layers_at_end_in_bf16: 4, fp8_param_gather: false}\n",
         {"precision=fp8", "precision.recipe=delayed", "backend.extra.num-layers-at-end-in-bf16=4",
          "backend.extra.first-last-layers-bf16=true"}),
        ("scheduler: {lr_decay_style: WSD, lr_wsd_decay_style: cosine, lr_wsd_decay_iters: 7}\n",
         {"optimizer.schedule=wsd", "optimizer.wsd_decay=cosine", "optimizer.wsd_decay_steps=7"}),
        ("peft: {_target_: megatron.bridge.peft.lora.LoRA, dim: 4}\n", {"adapter=lora", "adapter.rank=4"}),
        ("model: {num_moe_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 64}\n",
         {"model.num_experts=8", "model.num_experts_per_tok=2", "model.moe_intermediate_size=64"}),
    ],
)  # fmt: skip
def test_formats_and_sections_of_megatron_bridge_are_said(text: str, words: set[str]) -> None:
    found = read("megatron_bridge", f"{text}ddp: {{use_distributed_optimizer: true}}\n")
    assert words <= set(found.overrides)
    assert [left for left in found.left_out if left.matters] == []


def test_values_of_a_template_that_are_no_words_are_left_out() -> None:
    found = read("axolotl", "chat_template_kwargs: {a: [1], b: {c: 1}}\n")
    assert [left.key for left in found.left_out if left.matters] == [
        "chat_template_kwargs.a",
        "chat_template_kwargs.b.c",
    ]


def test_whole_parameters_are_not_gathered_in_fp8_and_plain_mlps_are_told() -> None:
    found = read("megatron_bridge", "mixed_precision: bf16_with_mxfp8_mixed\nddp: {use_distributed_optimizer: false}\n")
    assert not any("param-gather" in word for word in found.overrides)
    plain = read("megatron_bridge", "model: {gated_linear_unit: false, hidden_size: 64}\n")
    assert [left.key for left in plain.left_out if left.matters] == ["model.gated_linear_unit"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("model: {model_config: {is_qwen2_config: true, _use_doc_masking: true}}\n",
         "model.model_config._use_doc_masking"),
        ("data: {dataset: {dataset_folder: /a, skip_tokens: 900}}\n", "data.dataset.skip_tokens"),
    ],
)  # fmt: skip
def test_a_switch_of_nanotron_that_changes_what_is_read_is_not_lost(text: str, key: str) -> None:
    assert key in [left.key for left in read("nanotron", text).left_out if left.matters]
    off = text.replace("true}}", "false}}").replace("900", "0")
    assert key not in [left.key for left in read("nanotron", off).left_out if left.matters]
