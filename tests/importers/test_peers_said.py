"""Words of peers' files that were refused, or lost, and what says them now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.actions import importing
from launcher.base import registry
from launcher.config.ledger import Imported
from launcher.config.request import request
from launcher.importers._reading import content_of, flat
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


def grouped(*groups: str) -> Imported:
    """A configuration whose optimizer has groups of parameters, each with a pattern, a name and arguments."""
    made = ", ".join(
        f"ParamGroupConfig(pattern={pattern}, optimizer_name='{name}', optimizer_kwargs={arguments})"
        for pattern, name, arguments in (group.rsplit("|", 2) for group in groups)
    )
    return torchtitan(
        "def one():\n    return Trainer.Config(hf_assets_path='./assets/hf/Llama-3.1-8B', "
        f"model_spec=model_registry('8B'), optimizer=OptimizersContainer.Config(param_groups=[{made}]))\n"
    )


OF_ADAMW = "'betas': (0.95, 0.99), 'weight_decay': 0.1}"
OF_MUON = "'weight_decay': 0.1, 'foreach': False, 'adjust_lr_fn': 'match_rms_adamw'}"


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (("r'.*'|AdamW|{'lr': 1e-4, 'betas': (0.8, 0.9)}",),
         "optimizer.lr=0.0001 optimizer.beta1=0.8 optimizer.weight_decay=0.01"),
        (("r'.*'|AdamW|{}",), "optimizer.lr=0.001 optimizer.beta2=0.999"),
        (("r'norm|bias'|AdamW|{'lr': 1e-4, 'weight_decay': 0.0}", "r'.*'|AdamW|{'lr': 1e-4, 'weight_decay': 0.2}"),
         "optimizer.lr=0.0001 optimizer.weight_decay=0.2"),
        (("r'tok_emb|lm_head|norm|bias'|AdamW|{'lr': 1e-4, " + OF_ADAMW, "r'.*'|DistMuon|{'lr': 2e-4, " + OF_MUON),
         "optimizer=muon optimizer.lr=0.0002 optimizer.adamw_lr=0.0001 optimizer.beta1=0.95"),
        ((r"r'(?:attention\.(?:qkv_linear|wo)|feed_forward)\.'|DistMuon|{'lr': 2e-4, " + OF_MUON,
          "r'.*'|AdamW|{'lr': 2e-4, " + OF_ADAMW),
         "optimizer=muon optimizer.lr=0.0002 optimizer.beta2=0.99"),
    ],
)  # fmt: skip
def test_groups_of_parameters_that_step_as_an_optimizer_here_are_said(groups: tuple[str, ...], words: str) -> None:
    found = grouped(*groups)
    assert set(words.split()) <= set(found.overrides)
    assert left(found) == []


@pytest.mark.parametrize(
    "groups",
    [
        ("r'embed'|AdamW|{'lr': 1e-4}",),
        ("r'.*'|Adam|{'lr': 1e-4, 'weight_decay': 0.1}",),
        ("r'.*'|Lion|{'lr': 1e-4}",),
        ("r'tok_embeddings'|AdamW|{'lr': 1e-3}", "r'.*'|AdamW|{'lr': 1e-4}"),
        ("r'router'|AdamW|{'lr': 1e-3}", "r'.*'|AdamW|{'lr': 1e-4}"),
        ("r'wo'|AdamW|{'lr': 1e-4, " + OF_ADAMW, "r'.*'|DistMuon|{'lr': 2e-4, " + OF_MUON),
        ("r'tok_embeddings|lm_head|norm'|AdamW|{'lr': 1e-4}", "r'.*'|DistMuon|{'lr': 2e-4, " + OF_MUON),
        ("r'layers.*weight'|DistMuon|{'lr': 2e-4, " + OF_MUON, "r'.*'|AdamW|{'lr': 1e-4, " + OF_ADAMW),
        ("r'('|AdamW|{'lr': 1e-4}",),
        ("r'(.+)+!'|AdamW|{'lr': 1e-4}", "r'.*'|AdamW|{'lr': 1e-4}"),
    ],
)
def test_other_groups_of_parameters_are_refused_in_words(groups: tuple[str, ...]) -> None:
    found = grouped(*groups)
    assert {key.split(".")[1] for key in left(found)} == {"param_groups"}
    assert all("set optimizer.name" in each.effect for each in found.left_out if each.matters)


@pytest.mark.parametrize(
    ("group", "keys"),
    [
        ("made()", {"param_groups"}),
        ("ParamGroupConfig(pattern='.*', optimizer_name=made(), optimizer_kwargs={})", {"param_groups"}),
        ("ParamGroupConfig(pattern='.*', optimizer_name='AdamW', optimizer_kwargs={'betas': pair})", {"betas"}),
        ("ParamGroupConfig(pattern='.*', optimizer_name='AdamW', optimizer_kwargs={'amsgrad': True})", {"amsgrad"}),
    ],
)
def test_what_a_group_of_parameters_leaves_open_or_has_beside_is_not_lost(group: str, keys: set[str]) -> None:
    optimizer = f"OptimizersContainer.Config(param_groups=[{group}])"
    found = torchtitan(
        f"def one():\n    return Trainer.Config(model_spec=model_registry('8B'), optimizer={optimizer})\n"
    )
    assert {key.split(".")[1] for key in left(found) if key.startswith("optimizer")} == keys


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


BASE = """
def llama3_own(flavor="1B", rows=1) -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry(flavor), hf_assets_path="./assets/hf/Llama-3.1-8B",
        training=TrainingConfig(local_batch_size=rows, seq_len=4096, steps=1000), activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, components=["model"]),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
    )
"""
OWN = """
from torchtitan.experiments.graph_trainer.configs import to_graph_trainer_config
from torchtitan.models.llama3.config_registry import llama3_own as base

def one() -> Trainer.Config:
    config = MADE
    config.training.steps = 5
    return config
"""


def beside(folder: Path, text: str, base: str = BASE) -> Imported:
    """A file in a folder of torchtitan's own tree, read from the disk as the command does."""
    whole = folder / "torchtitan" / "models" / "llama3" / "config_registry.py"
    whole.parent.mkdir(parents=True)
    whole.write_text(base)
    own = folder / "torchtitan" / "own.py"
    own.write_text(text)
    return importing.read("torchtitan", own, {})


def test_a_configuration_that_changes_one_of_a_module_beside_it_keeps_what_that_one_sets(tmp_path: Path) -> None:
    found = beside(tmp_path, OWN.replace("MADE", "base('8B', rows=2)"))
    words = "model=llama3_8b data.path=allenai/c4 train.micro_batch_size=2 train.sequence_length=4096 train.steps=5"
    assert {*words.split(), "checkpointing=full", "train.compile=true"} <= set(found.overrides)
    assert left(found) == []


@pytest.mark.parametrize("made", ["base('8B', rows=2)", "to_graph_trainer_config(base('8B', rows=2), model_registry)"])
def test_a_configuration_whose_base_is_nowhere_beside_it_is_not_said_in_part_and_in_silence(made: str) -> None:
    assert left(torchtitan(OWN.replace("MADE", made)))[-1] == "base"


def test_modules_that_import_one_function_from_each_other_end(tmp_path: Path) -> None:
    again = "from torchtitan.models.llama3.config_registry import llama3_own\n"
    assert left(beside(tmp_path, OWN.replace("MADE", "base()"), again)) == ["base"]


@pytest.mark.parametrize(
    ("compiled", "mode", "keys"),
    [
        ("", "selective", []),
        ("GraphTrainerCompileConfig(enable=True)", "selective", []),
        ("GraphTrainerCompileConfig(memory_policy='full')", "full", []),
        ("GraphTrainerCompileConfig(memory_policy='eager', disable_passes=['cudagraph_pass'])", "selective", []),
        ("GraphTrainerCompileConfig(enable=True, mode=None)", "none", []),
        ("GraphTrainerCompileConfig(enable_passes=False)", "none", []),
        ("GraphTrainerCompileConfig(memory_policy='sac_and_offload')", "selective", ["compile.memory_policy"]),
        ("GraphTrainerCompileConfig(disable_passes=['tag_pass'])", "selective", ["compile.disable_passes"]),
        ("GraphTrainerCompileConfig(enable_autoparallel=True)", "selective", ["compile.enable_autoparallel"]),
    ],
)
def test_what_a_step_traced_into_one_graph_recomputes_is_what_its_passes_choose(
    tmp_path: Path, compiled: str, mode: str, keys: list[str]
) -> None:
    made = "to_graph_trainer_config(base('8B', rows=2), model_registry)" + (
        f"\n    config.compile = {compiled}" if compiled else ""
    )
    found = beside(tmp_path, OWN.replace("MADE", made))
    assert {f"checkpointing={mode}", "train.micro_batch_size=2", "train.steps=5"} <= set(found.overrides)
    compiles = "enable=True" in compiled and "mode=None" not in compiled
    assert ("train.compile=true" in found.overrides) is compiles
    assert left(found) == keys
    every_product = [each.key for each in found.left_out if "every matrix product" in each.effect]
    kept = mode == "selective" and "memory_policy" not in compiled
    assert every_product == (["compile.memory_policy"] if kept else [])


def test_a_recipe_of_megatron_bridge_starts_from_one_that_a_package_beside_it_names(tmp_path: Path) -> None:
    package = tmp_path / "megatron" / "recipes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from megatron.recipes.small import small_config\n")
    base = RECIPE.replace("def one()", "def small_config() -> ConfigContainer").replace("BODY", "cfg.train.seed = 7")
    (package / "small.py").write_text(base)
    own = tmp_path / "own.py"
    text = "def one() -> ConfigContainer:\n    cfg = small_config()\n    cfg.train.train_iters = 3\n    return cfg\n"
    own.write_text(f"from megatron.recipes import small_config\n\n{text}")
    found = importing.read("megatron-bridge", own, {})
    assert {"model=o/m", "train.steps=3"} <= set(found.overrides)
    assert "recipe" not in left(found)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: &x {b: 1, c: [2]}\nd: {<<: *x, b: 3}\ne: *x\n",
         {"a.b": 1, "a.c": [2], "d.b": 3, "d.c": [2], "e.b": 1, "e.c": [2]}),
        ("a: &x {b: 1}\nc: &y {<<: *x, b: 2}\nd: {<<: [*y, {b: 4, e: 5}]}\n", {"a.b": 1, "c.b": 2, "d.b": 2, "d.e": 5}),
        ("a: {10: x, 1.5: y, on: z}\n7: w\n", {"a.10": "x", "a.1.5": "y", "a.on": "z", "7": "w"}),
    ],
)  # fmt: skip
def test_yaml_of_another_program_is_read_with_its_aliases_and_with_keys_that_are_no_text(
    text: str, values: dict[str, Any]
) -> None:
    assert flat(content_of(text, "a.yaml", "a file")) == values


def test_an_alias_says_its_key_as_the_text_that_it_stands_for_would() -> None:
    text = "base_model: o/m\nadapter: lora\nlora_r: &rank 16\nlora_alpha: {}\ndatasets: [{{path: o/r, type: alpaca}}]\n"
    read = registry.load("importers", "axolotl").read
    assert read(text.format("*rank"), "a.yaml").overrides == read(text.format("16"), "a.yaml").overrides
