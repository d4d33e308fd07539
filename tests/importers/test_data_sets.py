"""Several data sets in files of other programs are a mix here, and a set of their own for evaluations is one."""

from __future__ import annotations

import importlib
from textwrap import dedent
from typing import Any

import pytest

from launcher.data import task_rows
from launcher.data.chat import mapped
from launcher.importers import Imported
from tests.support.helpers import make_spec

FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "axolotl": (
        """
        base_model: NousResearch/Llama-3.2-1B
        datasets:
          - {path: json, data_files: [a.jsonl, b.jsonl], type: chat_template}
          - {path: Open-Orca/SlimOrca, type: chat_template, field_messages: conversations, shards: 10}
          - {path: tatsu-lab/alpaca, type: alpaca, split: "train[:20%]"}
        test_datasets:
          - {path: json, data_files: c.jsonl, ds_type: json, split: train, type: chat_template}
        streaming: false
        """,
        {
            "data.mix": [
                {"path": "a.jsonl"},
                {"path": "b.jsonl"},
                {"path": "Open-Orca/SlimOrca", "split": "train[0%:10%]"},
                {"path": "tatsu-lab/alpaca", "split": "train[:20%]", "template": "alpaca"},
            ],
            "data.eval_path": "c.jsonl",
        },
    ),
    "llamafactory": (
        """
        model_name_or_path: Qwen/Qwen2.5-7B
        stage: pt
        do_train: true
        finetuning_type: full
        dataset: c4_demo,wiki_demo
        mix_strategy: interleave_over
        interleave_probs: 0.7,0.3
        lr_scheduler_type: warmup_stable_decay
        lr_scheduler_kwargs: {num_stable_steps: 1500, num_decay_steps: 400}
        max_steps: 2000
        warmup_steps: 100
        """,
        {"data.mix": [{"path": "data/c4_demo.jsonl", "weight": 0.7}, {"path": "data/wiki_demo.txt", "weight": 0.3}]},
    ),
    "torchtune": (
        """
        tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
        dataset:
          - {_component_: torchtune.datasets.alpaca_cleaned_dataset, train_on_input: false}
          - _component_: torchtune.datasets.chat_dataset
            source: json
            data_files: own.jsonl
            conversation_column: turns
            conversation_style: openai
        model: {_component_: torchtune.models.llama3_1.llama3_1_8b}
        checkpointer: {checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}
        """,
        {
            "data.mix": [
                {"path": "yahma/alpaca-cleaned", "template": "alpaca+llama3"},
                {"path": "own.jsonl", "column": "turns"},
            ]
        },
    ),
    "megatron_bridge": (
        """
        train: {train_iters: 100, global_batch_size: 8, micro_batch_size: 1}
        model: {seq_length: 128}
        dataset: {blend: [[/d/web, /d/code], [0.7, 0.3]], split: "999,1,0"}
        """,
        {
            "data.mix": [{"path": "/d/web", "weight": 0.7}, {"path": "/d/code", "weight": 0.3}],
            "data.eval_fraction": 0.001,
        },
    ),
}


def read(kind: str, text: str) -> Imported:
    found: Imported = importlib.import_module(f"launcher.importers.{kind}").read(dedent(text), f"{kind}.yaml")
    return found


@pytest.mark.parametrize("kind", FILES)
def test_several_data_sets_are_a_mix(kind: str) -> None:
    text, expected = FILES[kind]
    found = read(kind, text)
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    settings = found.recipe["set"]
    assert {key: settings.get(key) for key in expected} == expected
    mix = next(word for word in found.overrides if word.startswith("data.mix="))
    spec = make_spec("model=tiny", "data=text", mix)
    assert [part.path for part in spec.data.mix] == [part["path"] for part in expected["data.mix"]]


def test_prompts_that_are_trained_in_some_sets_alone_are_told() -> None:
    text = FILES["torchtune"][0].replace("train_on_input: false", "train_on_input: true")
    left = [each for each in read("torchtune", text).left_out if each.matters]
    assert [each.effect for each in left] == ["launch trains prompts in all sets or in none: set data.mix"]


def test_rows_of_a_validation_are_those_of_a_set_of_its_own() -> None:
    rows = "{_component_: torchtune.datasets.chat_dataset, source: json, data_files: own.jsonl, split: %s}"
    text = f"""
        model: {{_component_: torchtune.models.llama3_1.llama3_1_8b}}
        checkpointer: {{checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}}
        dataset: {rows % "'train[:95%]'"}
        dataset_val: {rows % "'train[95%:]'"}
        run_val_every_n_steps: 50
        batch_size_val: 4
        """
    found = read("torchtune", text)
    wanted = {"data.split": "train[:95%]", "data.eval_split": "train[95%:]", "train.eval_every": 50}
    assert wanted.items() <= found.recipe["set"].items()
    assert not any(left.matters for left in found.left_out)


@pytest.mark.parametrize("inside", [False, True])
def test_a_configuration_that_a_script_makes_and_does_not_return_is_read(inside: bool) -> None:
    made = """
        bridge = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B")
        model = bridge.to_megatron_provider(load_weights=False)
        model.seq_length = 2048
        blend = [["/d/a", "/d/b"], [1, 3]]
        cfg = ConfigContainer(
            model=model, train=TrainingConfig(train_iters=10), dataset=GPTDatasetConfig(blend=blend, split="9,1,0")
        )
        """
    head = "from megatron.bridge import AutoBridge\n"
    text = f"{head}def main():{made}" if inside else head + dedent(made)
    found = importlib.import_module("launcher.importers.megatron_bridge").read(text, "train.py")
    assert found.recipe["choose"]["model"] == "meta-llama/Llama-3.2-1B"
    wanted = {"train.sequence_length": 2048, "train.steps": 10, "data.eval_fraction": 0.1}
    mix = [{"path": "/d/a", "weight": 1}, {"path": "/d/b", "weight": 3}]
    assert (wanted | {"data.mix": mix}).items() <= found.recipe["set"].items()


def test_the_length_of_an_epoch_that_is_cut_off_is_said_once() -> None:
    found = read("torchtune", dedent(FILES["torchtune"][0]) + "max_steps_per_epoch: 50\nepochs: 2\n")
    assert found.recipe["set"]["train.steps"] == 100
    assert "train.epochs" not in found.recipe["set"]


def test_a_set_without_a_weight_beside_one_with_it_weighs_one() -> None:
    text = FILES["axolotl"][0].replace("path: tatsu-lab/alpaca,", "path: tatsu-lab/alpaca, weight: 2.0,")
    assert [part["weight"] for part in read("axolotl", text).recipe["set"]["data.mix"]] == [1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize(("second", "matters"), [("/d/a", False), ("/d/b", True)])
def test_a_later_stage_matters_where_its_data_are_others(second: str, matters: bool) -> None:
    stages = [
        f"  - {{name: s{n}, start_training_step: {1 + 9 * n}, data: {{dataset: {{dataset_folder: {path}}}, seed: 1}}}}"
        for n, path in enumerate(("/d/a", second))
    ]
    found = read("nanotron", "\n".join(["data_stages:", *stages, "tokens: {train_steps: 15}"]))
    assert any(each.matters for each in found.left_out if each.key.startswith("data_stages.1")) == matters
    assert found.recipe["set"]["data.path"] == "/d/a"


STAGES = """tokens: {train_steps: 40, micro_batch_size: 2, batch_accumulation_per_replica: 3, sequence_length: 8}
parallelism: {dp: 4}
data_stages:
  - {name: a, start_training_step: 1, data: {dataset: {dataset_folder: [/d/a], dataset_weights: null}, seed: 1}}
  - {name: b, start_training_step: 11, data: {dataset: {dataset_folder: [/d/a, /d/b], dataset_weights: [0.7, 0.3]}}}
  - {name: c, start_training_step: 21, data: {dataset: {dataset_folder: [/d/b, /d/c], dataset_weights: [1, 0]}}}
  - {name: d, start_training_step: 31, data: {dataset: {dataset_folder: [/d/a]}}}
  - {name: e, start_training_step: 41, data: {dataset: {dataset_folder: [/d/e]}}}
"""


def test_stages_of_other_data_are_said_by_the_tokens_trained_before_each() -> None:
    found = read("nanotron", STAGES)
    assert found.recipe["set"]["data.mix"] == [{"path": f"/d/{name}"} for name in "abc"]
    assert found.recipe["set"]["data.stages"] == [
        {"after_tokens": 0, "weights": [1.0, 0.0, 0.0]},
        {"after_tokens": 10 * 192, "weights": [0.7, 0.3, 0.0]},
        {"after_tokens": 20 * 192, "weights": [0.0, 1, 0]},
        {"after_tokens": 30 * 192, "weights": [1.0, 0.0, 0.0]},
    ]
    assert not [each for each in found.left_out if each.matters]
    assert not [each for each in found.said if each.key.startswith("data_stages.4")], "the run ends before it"


@pytest.mark.parametrize("change", ["parallelism: {dp: 4}", "[0.7, 0.3]"])
def test_stages_without_a_batch_or_weights_are_left_out(change: str) -> None:
    found = read("nanotron", STAGES.replace(change, "" if change.startswith("parallelism") else "null"))
    assert "data.stages" not in found.recipe["set"]
    assert found.recipe["set"]["data.path"] == "/d/a"
    assert {each.key for each in found.left_out if each.matters} >= {"data_stages.1.data.dataset.dataset_folder"}


COLUMNS: dict[str, tuple[str, str, dict[str, str]]] = {
    "torchtune": (
        "checkpointer: {checkpoint_dir: /tmp/Qwen2.5-7B}\nmodel: {_component_: torchtune.models.qwen2_5.qwen2_5_7b}\n"
        "dataset: {_component_: torchtune.datasets.stack_exchange_paired_dataset, column_map: {prompt: ask}}\n",
        "lvwerra/stack-exchange-paired",
        {"prompt.user": "ask", "chosen.assistant": "response_j", "rejected.assistant": "response_k"},
    ),
    "axolotl": (
        "base_model: o/m\nrl: dpo\ndatasets:\n  - {path: Intel/orca_dpo_pairs, type: chatml.intel, split: train}\n",
        "Intel/orca_dpo_pairs",
        {
            "prompt.system": "system",
            "prompt.user": "question",
            "chosen.assistant": "chosen",
            "rejected.assistant": "rejected",
        },
    ),
    "megatron_bridge": (
        "train: {train_iters: 5}\ncheckpoint: {save: /own}\n"
        "dataset: {class: FinetuningDatasetConfig, dataset_root: /rows}\n",
        "/rows/training.jsonl",
        {"prompt": "input", "completion": "output"},
    ),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_of_other_names_are_said(kind: str) -> None:
    text, path, columns = COLUMNS[kind]
    found = importlib.import_module(f"launcher.importers.{kind}").read(text, "a.yaml")
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    assert (found.recipe["set"]["data.path"], found.recipe["set"]["data.columns"]) == (path, columns)


@pytest.mark.parametrize(
    ("pattern", "targets"),
    [
        (r"model.language_model.layers.[\d]+.(mlp|self_attn).(up|down|q)_proj", ["q_proj", "up_proj", "down_proj"]),
        (r".*\.layers\.(3|7)\.self_attn\.q_proj", None),
        (r"(model.layers.\d+.mlp.up_proj|model.visual.blocks.\d+.qkv)", None),
        (r"(\w+)+x", None),
    ],
)
def test_a_pattern_of_modules_is_those_that_it_matches_in_every_block(pattern: str, targets: list[str] | None) -> None:
    text = f"base_model: o/m\nadapter: lora\nsequence_len: 8\nlora_target_modules: '{pattern}'\n"
    found = importlib.import_module("launcher.importers.axolotl").read(text, "a.yaml")
    assert found.recipe["set"].get("adapter.targets") == targets
    assert ("lora_target_modules" in [left.key for left in found.left_out if left.matters]) == (targets is None)


def test_data_sets_that_llama_factory_knows_have_their_splits_configurations_and_columns() -> None:
    text = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: dpo\ndo_train: true\nfinetuning_type: lora\n"
        "dataset: dpo_mix_en,dpo_en_demo,orca_pairs\neval_dataset: dpo_mix_zh\neval_strategy: epoch\n"
    )
    found = importlib.import_module("launcher.importers.llamafactory").read(text, "a.yaml")
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    turns = {"prompt": "conversations", "chosen": "chosen", "rejected": "rejected"}
    mixed, demo, orca = found.recipe["set"]["data.mix"]
    assert mixed == {"path": "llamafactory/DPO-En-Zh-20k", "config": "en", "columns": turns}
    assert demo == {"path": "data/dpo_en_demo.json", "columns": turns}
    assert orca["columns"]["prompt.user"] == "question"
    assert found.recipe["set"]["data.eval_config"] == "zh"
    turn = {"from": "gpt", "value": "better"}
    row = {"conversations": [{"from": "human", "value": "a"}], "chosen": turn, "rejected": {**turn, "value": "worse"}}
    assert task_rows.read(mapped(row, turns), "dpo", 1)["chosen"] == [{"role": "assistant", "content": "better"}]


def test_several_sets_of_evaluations_are_named_by_their_paths() -> None:
    text = (
        "base_model: Qwen/Qwen2.5-0.5B\ndatasets: [{path: a/b, type: chat_template}]\neval_steps: 5\n"
        "test_datasets:\n"
        "  - {path: json, data_files: own/held out.jsonl.gz, split: train, type: chat_template}\n"
        "  - {path: org/Name-1.5, name: en, split: test, type: chat_template}\n"
        "  - {path: org/Name-1.5, name: de, split: test, type: chat_template}\n"
    )
    found = importlib.import_module("launcher.importers.axolotl").read(text, "a.yaml")
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    assert found.recipe["set"]["data.eval_sets"] == [
        {"name": "held-out", "path": "own/held out.jsonl.gz", "split": "train"},
        {"name": "Name-1.5", "path": "org/Name-1.5", "config": "en", "split": "test"},
        {"name": "Name-1.5-2", "path": "org/Name-1.5", "config": "de", "split": "test"},
    ]
    text = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: dpo\ndo_train: true\nfinetuning_type: lora\n"
        "dataset: dpo_mix_en\neval_dataset: dpo_mix_zh, orca_pairs\neval_strategy: epoch\n"
    )
    found = importlib.import_module("launcher.importers.llamafactory").read(text, "a.yaml")
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    mixed, orca = found.recipe["set"]["data.eval_sets"]
    assert (mixed["name"], mixed["config"], orca["name"]) == ("DPO-En-Zh-20k", "zh", "orca_dpo_pairs")
    assert orca["columns"]["prompt.user"] == "question"
    left = importlib.import_module("launcher.importers.llamafactory").read(
        text.replace("orca_pairs", "of_my_own"), "a.yaml"
    )
    assert [each.key for each in left.left_out if each.matters] == ["eval_dataset"]


@pytest.mark.parametrize(
    ("degree", "preset"), [("tensor_model_parallel_size = 1", "ddp"), ("tensor_model_parallel_size = 8", "fsdp"),
                           ("expert_model_parallel_size = 4", "fsdp"), ("context_parallel_size = 2", "ddp")]
)  # fmt: skip
def test_an_adapter_of_megatron_bridge_trains_on_whole_copies_or_shards(degree: str, preset: str) -> None:
    text = (
        "def peft():\n    cfg = _peft_common()\n"
        "    cfg.model = AutoBridge.from_hf_pretrained('meta-llama/Llama-3.2-1B').to_megatron_provider()\n"
        f"    cfg.model.{degree}\n    cfg.model.apply_rope_fusion = True\n"
        "    cfg.dataset.offline_packing_specs.pad_seq_to_mult = cfg.model.context_parallel_size * 2\n"
        "    cfg.model.cuda_graph_impl = 'transformer_engine'\n"
        "    cfg.peft = LoRA(target_modules=['linear_qkv', 'linear_fc1'], dim=8, alpha=16)\n    return cfg\n"
    )
    found = importlib.import_module("launcher.importers.megatron_bridge").read(text, "a.py")
    assert [each.key for each in found.left_out if each.matters] == []
    assert (found.recipe["choose"]["adapter"], found.recipe["choose"]["parallel"]) == ("lora", preset)
    said = found.recipe["set"]
    assert said["adapter.targets"] == ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
    assert (said["adapter.rank"], said["adapter.alpha"], said["data.path"]) == (8, 16, "rajpurkar/squad")
    kept = {key: value for key, value in said.items() if key.startswith(("parallel.", "backend."))}
    assert kept == ({"parallel.context": 2} if "context" in degree else {})
    key = f"model.{degree.split()[0]}"
    by = {each.key: each.overrides for each in found.said}
    assert by.get(key, ()) == {"ddp": (), "fsdp": ("parallel=fsdp",)}[preset] or by[key] == ("parallel.context=2",)
    cut = f"({key[6:-20]}" if preset == "fsdp" else "no rank"
    assert any(cut in note for note in found.not_understood) is (preset == "fsdp")


def test_further_tokens_beside_an_adapter_are_left_out_by_their_key() -> None:
    text = "def peft():\n    cfg = _peft_common()\n    cfg.model.mtp_num_layers = 1\n    return cfg\n"
    found = importlib.import_module("launcher.importers.megatron_bridge").read(text, "a.py")
    assert [each.key for each in found.left_out if each.matters] == ["model.mtp_num_layers"]
    assert "model.mtp_layers" not in found.recipe["set"]


def test_the_alignment_handbooks_mixer_and_template_are_said() -> None:
    text = (
        "model_name_or_path: mistralai/Mistral-7B-v0.1\nevaluation_strategy: epoch\nmax_seq_length: 2048\n"
        "chat_template: \"{% for message in messages %}\\n{{ message['content'] }}\\n{% endfor %}\"\n"
        "dataset_mixer: {HuggingFaceH4/ultrachat_200k: 0.5}\ndataset_splits: [train_sft, test_sft]\n"
    )
    found = importlib.import_module("launcher.importers.trl").read(text, "a.yaml")
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    said = found.recipe["set"]
    assert (said["data.path"], said["data.split"]) == ("HuggingFaceH4/ultrachat_200k", "train_sft[:50%]")
    assert said["data.eval_split"] == "test_sft"
    body = "{% for message in messages %}{{ message['content'] }}{{ '\\n' }}{% endfor %}"
    assert said["data.template"] == body


@pytest.mark.parametrize(("family", "model"), [("qwen3", "qwen3_8b"), ("deepseek_v3", "deepseek_v3")])
def test_a_debug_model_of_torchtitan_is_one_of_its_own_family(family: str, model: str) -> None:
    text = (
        "from . import model_registry\n\ndef debugmodel() -> Trainer.Config:\n"
        "    spec = model_registry('debugmodel')\n"
        "    return Trainer.Config(model_spec=spec, hf_assets_path='./tests/assets/tokenizer')\n"
    )
    found = importlib.import_module("launcher.importers.torchtitan").read(text, f"models/{family}/config_registry.py")
    left = [each.key for each in found.left_out if each.matters]
    assert (found.recipe["choose"].get("model"), left) == (model, [])


def test_a_layout_of_one_stage_and_a_number_that_is_made_one_change_nothing() -> None:
    text = (
        "def pretrain():\n    cfg = _pretrain_common()\n"
        "    cfg.model = cast(Provider, AutoBridge.from_hf_pretrained('o/m').to_megatron_provider())\n"
        "    cfg.model.pipeline_model_parallel_size = 1\n    cfg.model.rotary_base = float(cfg.model.rotary_base)\n"
        "    cfg.model.pipeline_model_parallel_layout = layout_of(1, 1)\n    return cfg\n"
    )
    found = importlib.import_module("launcher.importers.megatron_bridge").read(text, "a.py")
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    assert found.recipe["choose"]["model"] == "o/m"


def test_presets_of_megatron_bridge_are_said_with_their_split_and_packing() -> None:
    text = (
        "def sft():\n    cfg = _sft_common()\n"
        "    cfg.model = AutoBridge.from_hf_pretrained('o/m').to_megatron_provider()\n"
        "    cfg.dataset = default_openmathinstruct2_config(seq_length=4096)\n"
        "    cfg.dataset.hf_dataset.split = 'train_2M'\n    cfg.dataset.max_train_samples = 9\n"
        "    cfg.dataset.preprocessing = OwnPreprocessing(columns=2)\n    return cfg\n"
    )
    found = importlib.import_module("launcher.importers.megatron_bridge").read(text, "a.py")
    left = [left.key for left in found.left_out if left.matters]
    assert left == ["dataset.preprocessing.class", "dataset.preprocessing.columns"]
    said = found.recipe["set"]
    assert (said["data.path"], said["data.split"]) == ("nvidia/OpenMathInstruct-2", "train_2M")
    assert (said["data.packing"], said["data.eval_fraction"], said["data.max_samples"]) == ("none", 0.05, 9)


@pytest.mark.parametrize(("said", "precision"), [("", "bf16"), ("bf16: false\n", "fp32"), ("fp16: true\n", "fp16")])
def test_axolotl_computes_in_bf16_where_its_file_says_nothing(said: str, precision: str) -> None:
    found = importlib.import_module("launcher.importers.axolotl").read(f"base_model: o/m\n{said}", "a.yaml")
    assert found.recipe["choose"]["precision"] == precision
    assert (found.recipe["set"].get("precision.parameters") == "bf16") == (precision == "bf16")
