"""Words of peers' files that were refused, or lost, and what says them now."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.base import registry
from launcher.config.ledger import Imported
from launcher.config.request import request
from launcher.preflight import findings

RECIPE = """
LAYERS = 8

def _layout(pp, vp):
    known = {(1, 1): None, (2, 1): [["embedding"] + ["decoder"] * (LAYERS // 2), ["decoder"] * 4 + ["loss"]]}
    vp = 1 if vp is None else vp
    layout = known[(pp, vp)]
    if layout is not None:
        layout = list([list(stage) for stage in layout])
    return layout

def one():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("o/m").to_megatron_provider(load_weights=False)
    BODY
    return cfg
"""


def bridge(body: str) -> Imported:
    found = registry.load("importers", "megatron_bridge").read(RECIPE.replace("BODY", body), "own.py")
    assert isinstance(found, Imported)
    return found


def left(found: Imported) -> list[str]:
    return [each.key for each in found.left_out if each.matters]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("cfg.model.pipeline_model_parallel_size = 2; cfg.model.pipeline_model_parallel_layout = _layout(2, None)",
         {"parallel.layout=[Etttt,ttttL]"}),
        ("cfg.train.train_iters = 100_000 // 10 + 5 - 1", {"train.steps=10004"}),
        ("cfg.optimizer.lr = 3e-4 * 0.1; cfg.optimizer.min_lr = 3e-4 / 100", {"optimizer.lr=3e-05"}),
        ("cfg.scheduler.lr_warmup_fraction = 0.01", {"optimizer.warmup_ratio=0.01"}),
        ("cfg.optimizer.optimizer = 'sgd'; cfg.optimizer.sgd_momentum = 0.8", {"optimizer=sgd", "optimizer.beta1=0.8"}),
        ("cfg.model.mtp_num_layers = 1; cfg.model.mtp_loss_scaling_factor = 0.3",
         {"backend.extra.mtp-loss-scaling-factor=0.3"}),
        ("cfg.model.position_embedding_type = 'rope'; cfg.model.share_embeddings_and_output_weights = True",
         {"model.position_embedding=rope", "model.tie_word_embeddings=true"}),
        ("text = AutoConfig.from_pretrained('o/other').text_config; text.architectures = ['A']; "
         "cfg.model = AutoBridge.from_hf_config(text).to_megatron_provider(load_weights=False)", {"model=o/other"}),
    ],
)  # fmt: skip
def test_a_recipe_of_megatron_bridge_that_computes_its_values_is_followed(body: str, words: set[str]) -> None:
    found = bridge(body)
    assert words <= set(found.overrides)
    assert left(found) == []


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("cfg.train.train_iters = 7 // 0", "train.train_iters"),
        ("cfg.train.train_iters = 2 ** 9", "train.train_iters"),
        ("cfg.optimizer.lr = 1e300 * 1e300", "optimizer.lr"),
        ("cfg.model.pipeline_model_parallel_size = 2; "
         "cfg.model.pipeline_model_parallel_layout = [['decoder'] * 9999, ['loss'] * 9999] * 99",
         "model.pipeline_model_parallel_layout"),
        ("cfg.model.pipeline_model_parallel_size = 2; cfg.model.pipeline_model_parallel_layout = [['head']]",
         "model.pipeline_model_parallel_layout"),
    ],
)  # fmt: skip
def test_what_no_arithmetic_here_computes_stays_open(body: str, key: str) -> None:
    assert left(bridge(body)) == [key]


def test_what_a_recipe_sets_to_none_is_not_what_the_common_recipe_has() -> None:
    assert "save.every=500" in bridge("pass").overrides
    assert "save.every=500" not in bridge("cfg.checkpoint.save_interval = None").overrides
    assert "optimizer.warmup_steps=500" in bridge("pass").overrides
    assert not any("warmup_steps" in word for word in bridge("cfg.scheduler.lr_warmup_fraction = 0.1").overrides)


MCA = """
model_name_or_path: llama3_8b
do_train: true
stage: sft
finetuning_type: full
dataset: alpaca_en_demo
template: llama3
bf16: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
max_steps: 100
"""


def llama_factory(more: str) -> Imported:
    found = registry.load("importers", "llamafactory").read(MCA + more, "file.yaml")
    assert isinstance(found, Imported)
    return found


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\nsequence_parallel: true\n",
         {"parallel=tp_pp", "parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true", "zero=0"}),
        ("expert_model_parallel_size: 8\nuse_distributed_optimizer: true\nrecompute_granularity: full\n",
         {"parallel=ep", "parallel.expert=8", "zero=1", "checkpointing=full", "parallel.sequence=false"}),
        ("tensor_model_parallel_size: 2\noverlap_grad_reduce: true\nmoe_token_dispatcher_type: alltoall\n",
         {"parallel=tp", "backend.extra.overlap-grad-reduce=true", "checkpointing=none"}),
    ],
)  # fmt: skip
def test_megatron_core_under_llama_factory_is_megatron_lm_here(more: str, words: set[str]) -> None:
    found = llama_factory(more)
    assert words <= set(found.overrides)
    assert left(found) == []


def test_a_run_of_megatron_core_under_llama_factory_keeps_every_rule() -> None:
    found = llama_factory("tensor_model_parallel_size: 2\npipeline_model_parallel_size: 2\nsequence_parallel: true\n")
    typed = [word for word in found.overrides if not word.startswith("data.tokenizer")]
    asked = request([*typed, "hardware=h100_80g", "cluster.gpus_per_node=8"])
    assert [str(error) for error in findings.broken_rules(asked.require())] == []


def test_without_degrees_of_megatron_core_a_file_of_llama_factory_trains_as_before() -> None:
    assert {"parallel=ddp", "checkpointing=full"} <= set(llama_factory("").overrides)


@pytest.mark.parametrize(
    ("kind", "name", "text", "keys"),
    [
        ("axolotl", "a.yaml", "datasets: [{path: o/d, data_files: [a.json], type: chat_template}]\n",
         ["datasets.0.data_files"]),
        ("axolotl", "a.yaml", "datasets: [{path: o/d, drop_system_message: true, type: chat_template}]\n",
         ["datasets.0.drop_system_message"]),
        ("axolotl", "a.yaml", "group_by_length: true\n", ["group_by_length"]),
        ("axolotl", "a.yaml", "group_by_length: true\nsample_packing: true\n", []),
        ("torchtitan", "a.toml", "[float8]\nenable_float8_linear = true\nscaling_type_weight = 'delayed'\n",
         ["float8.scaling_type_weight"]),
    ],
)  # fmt: skip
def test_a_word_that_changes_the_data_or_the_maths_is_not_lost(
    kind: str, name: str, text: str, keys: list[str]
) -> None:
    assert left(registry.load("importers", kind).read(text, name)) == keys


GROUP = "ParamGroupConfig(pattern=PATTERN, optimizer_name='AdamW', optimizer_kwargs={'lr': 1e-4, 'betas': (0.8, 0.9)})"


@pytest.mark.parametrize(("pattern", "said"), [("r'.*'", True), ("r'embed'", False)])
def test_one_group_of_all_parameters_is_the_optimizer_of_torchtitan(pattern: str, said: bool) -> None:
    groups = GROUP.replace("PATTERN", pattern)
    text = (
        "def one():\n    return Trainer.Config(hf_assets_path='./assets/hf/Llama-3.1-8B', "
        f"model_spec=model_registry('8B'), optimizer=OptimizersContainer.Config(param_groups=[{groups}]))\n"
    )
    found: Any = registry.load("importers", "torchtitan").read(text, "own.py")
    assert ({"optimizer.lr=0.0001", "optimizer.beta1=0.8"} <= set(found.overrides)) is said
    assert (left(found) == []) is said


TITAN = """
def turns(row):
    return [{"role": "user", "content": row["q"]}, {"role": "assistant", "content": row["a"]}]

def one() -> Trainer.Config:
    return Trainer.Config(
        hf_assets_path="./assets/hf/Llama-3.1-8B",
        model_spec=model_registry("8B", converters=[LoRAConverter.Config(rank=4, alpha=8.0, target_modules=TARGETS)]),
        dataloader=ChatDataLoader.Config(
            dataset_path="o/rows", load_dataset_kwargs={"split": "train"}, sample_processor=turns
        ),
    )
"""


def torchtitan(text: str, name: str = "own.py") -> Imported:
    found = registry.load("importers", "torchtitan").read(text, name)
    assert isinstance(found, Imported)
    return found


def test_lora_and_rows_by_a_function_of_the_module_are_said_of_torchtitan() -> None:
    found = torchtitan(TITAN.replace("TARGETS", "['wq', 'wkv', 'w2']"))
    words = (
        "data=chat data.path=o/rows data.columns={prompt:q,completion:a} adapter=lora adapter.rank=4 adapter.alpha=8"
    )
    assert {*words.split(), "adapter.targets=[q_proj,k_proj,v_proj,down_proj]"} <= set(found.overrides)
    assert left(found) == []
    for targets in ("['router']", "None"):  # None is all linears, also the output projection.
        assert left(torchtitan(TITAN.replace("target_modules=TARGETS", f"target_modules={targets}"))) == [
            "lora.target_modules"
        ]


def test_what_a_file_of_torchtitan_leaves_to_it_are_its_own_test_assets() -> None:
    found = torchtitan("[model]\nname = 'llama3'\nflavor = '8B'\n", "own.toml")
    words = {"data=text", "data.path=tests/assets/c4_test", "data.tokenizer=./tests/assets/tokenizer"}
    assert words <= set(found.overrides)
    named = torchtitan("[model]\nname = 'llama3'\nflavor = '8B'\n[training]\ndataset = 'c4'\n", "own.toml")
    assert {"data=huggingface", "data.path=allenai/c4"} <= set(named.overrides)


def test_further_tokens_of_a_hybrid_are_said_by_its_letters() -> None:
    body = (
        "cfg.model = HybridModelProvider(hybrid_layer_pattern='MEM*E', num_layers=5, hidden_size=64, "
        "num_moe_experts=4, hf_model_id='o/m', mtp_num_layers=2, mtp_hybrid_override_pattern='*E', "
        "mtp_use_repeated_layer=True); cfg.tokenizer.vocab_size = 1000"
    )
    found = bridge(body)
    assert {"model.family=hybrid", "model.mtp_layers=2"} <= set(found.overrides)
    assert "model.extra={pattern:'MEM*E',mtp:'*E',mtp_shared:true}" in found.overrides
    assert left(found) == []
