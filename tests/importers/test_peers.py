"""Files of axolotl, LLaMA-Factory, TRL, accelerate, torchtitan, torchtune, nanotron and Megatron Bridge as runs here.

The files are written for these tests, with the keys that the examples of each program have; the lists of keys in
``keys/`` are those of its schema (releases as the importers name them).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from launcher.actions.importing import kinds, read
from launcher.base import registry
from launcher.base.errors import ConfigErrors
from launcher.config.ledger import UNKNOWN, Imported
from launcher.config.request import request
from launcher.data.chat import conversation
from launcher.data.rendering import writer, written
from launcher.preflight import findings
from launcher.spec.parse import OPEN_NODES, accepts
from tests.support.coming_from import page
from tests.support.helpers import ROOT, make_spec
from tests.support.peer_files import FILES, KINDS, content_of, files

FOLDER = Path(__file__).parent
SCHEMAS = sorted((FOLDER / "keys").glob("*.txt"))


def leaves(content: object, prefix: str = "") -> set[str]:
    """Dotted paths of all leaves; mappings in a list are told by their place."""
    if isinstance(content, list) and any(isinstance(each, dict) for each in content):
        content = {str(place): each for place, each in enumerate(content)}
    if not isinstance(content, dict) or not content:
        return {prefix[:-1]}
    return {path for key, value in content.items() for path in leaves(value, f"{prefix}{key}.")}


def lists_of(found: Imported) -> list[str]:
    left = [each.key for each in found.left_out]
    return [*(each.key for each in found.said), *found.default, *found.kept, *left]


def test_there_are_ten_files_of_each_program() -> None:
    assert {path.parent.name: len(files(path.parent.name)) for path in FILES} == dict.fromkeys(KINDS, 10)
    assert "megatron-bridge" in kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_is_said_in_full_and_no_key_is_in_two_lists_or_in_none(kind: str) -> None:
    for path in files(kind):
        found = read(kind, path, {})
        entered, content = lists_of(found), content_of(path)
        assert len(entered) == len(set(entered)), path
        assert content is None or set(entered) == leaves(content), path
        assert [str(error) for error in found.errors] == [], path
        mattering = [
            left for left in found.left_out if left.matters and not left.effect.startswith("launch has no setting")
        ]
        assert [(left.key, left.effect) for left in mattering] == [], path
        settings = {**found.recipe["set"]}
        assert [
            key for key, value in settings.items() if not key.startswith(OPEN_NODES) and not accepts(key, value)
        ] == [], path


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("axolotl", "load_in_8bit: true\nadapter: lora\n"),
        ("llamafactory", "finetuning_type: lora\nquantization_bit: 8\n"),
        ("trl", "use_peft: true\nload_in_8bit: true\n"),
    ],
)
def test_frozen_weights_in_8_bits_are_said(kind: str, text: str) -> None:
    found = registry.load("importers", kind).read(text, "file.yaml")
    assert {"adapter=qlora", "adapter.quant_type=int8"} <= set(found.overrides)
    assert not {left.key for left in found.left_out}


SMALL_AXOLOTL = "base_model: o/m\nbf16: true\n"
LEFT = (
    ("axolotl", f"{SMALL_AXOLOTL}load_in_4bit: true\n", "load_in_4bit"),
    ("axolotl", f"{SMALL_AXOLOTL}adapter: qlora\nload_in_4bit: false\n", "load_in_4bit"),
    ("axolotl", f"{SMALL_AXOLOTL}adapter: lora\nlora_target_linear: false\n", "lora_target_linear"),
    *(
        ("torchtune", f"model: {{_component_: models.{builder}}}\ncheckpointer: {{checkpoint_dir: /tmp/{folder}}}\n",
         "model._component_")
        for builder, folder in (("qwen2_5_7b", "Qwen2.5-14B"), ("llama3_8b", "Qwen3-8B"), ("mine", "Qwen3-8B"))
    ),
)  # fmt: skip
"""Files whose key makes another training than the rest of them, and that key."""


@pytest.mark.parametrize(("kind", "text", "key"), LEFT)
def test_a_key_that_the_others_contradict_is_left_out_and_never_lost(kind: str, text: str, key: str) -> None:
    found = registry.load("importers", kind).read(text, "file.yaml")
    assert key in [left.key for left in found.left_out if left.matters]


def test_frozen_weights_of_lora_in_4_bits_are_those_of_qlora_and_all_linear_layers_hold_over_a_list() -> None:
    text = (
        f"{SMALL_AXOLOTL}adapter: lora\nload_in_4bit: true\nlora_target_modules: [q_proj]\nlora_target_linear: true\n"
    )
    found = registry.load("importers", "axolotl").read(text, "file.yaml")
    assert {"adapter=qlora", "adapter.targets=[all-linear]"} <= set(found.overrides)
    assert not any(left.matters for left in found.left_out)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda path: path.stem)
def test_every_key_of_a_programs_schema_is_in_its_table(schema: Path) -> None:
    known = {key for row in registry.load("importers", schema.stem).TABLE for key in row.keys}
    keys = schema.read_text().split()
    assert len(keys) > 20
    missing = [
        key for key in keys if not known & {key[:end] for end in range(len(key) + 1) if key[end : end + 1] in ".."}
    ]
    assert missing == []


def test_a_key_that_nobody_knows_matters() -> None:
    for kind in KINDS:
        [path, *_] = [path for path in files(kind) if path.suffix in (".yaml", ".yml", ".toml")]
        found = registry.load("importers", kind).read(changed(path), str(path))
        assert ("unheard_of", UNKNOWN, True) in [(left.key, left.effect, left.matters) for left in found.left_out], kind


def changed(path: Path) -> str:
    line = "unheard_of = 7\n" if path.suffix == ".toml" else "unheard_of: 7\n"
    return line + path.read_text()


def test_a_python_file_with_several_functions_asks_for_one(tmp_path: Path) -> None:
    path = tmp_path / "registry.py"
    path.write_text("def one():\n    return Trainer.Config()\n\n\ndef two():\n    return one()\n")
    with pytest.raises(ConfigErrors) as caught:
        read("torchtitan", path, {})
    [error] = caught.value.errors
    assert error.way_out == ("--set config=one", "--set config=two")
    assert read("torchtitan", path, {"config": "two"}).overrides


def test_python_is_read_as_text_and_never_run(tmp_path: Path) -> None:
    path = tmp_path / "sft.py"
    mark = tmp_path / "ran"
    path.write_text(
        f"from trl import SFTConfig\nopen({str(mark)!r}, 'w')\nrate = compute()\n"
        "args = SFTConfig(learning_rate=rate, max_steps=2 * 5)\n"
    )
    found = read("trl", path, {})
    assert not mark.exists()
    assert "train.steps=10" in found.overrides
    [open_one] = [left for left in found.left_out if left.matters]
    assert (open_one.key, open_one.effect) == ("learning_rate", "the file leaves it open: set optimizer.lr")


SMALL_FILES = {
    ("llamafactory", "y.yaml", "stage: sft\ndo_train: true\nlabel_smoothing_factor: 0.1\nneftune_noise_alpha: 5\n"):
        "train.label_smoothing=0.1 train.neftune_alpha=5",
    ("trl", "g.yaml", "model_name_or_path: o/m\ntorch_dtype: bfloat16\nnum_generations: 4\nepsilon: 0.2\n"
     "max_prompt_length: 512\nmax_completion_length: 1536\n"):
        "task=grpo precision.parameters=bf16 train.sequence_length=2048 backend.extra.epsilon=0.2",
    ("trl", "l.yaml", "model_name_or_path: o/m\nuse_liger_kernel: true\ntrust_remote_code: true\nmax_length: 64\n"):
        "train.kernels=liger",
    ("trl", "f.yaml", "model_name_or_path: o/m\ntorch_dtype: bfloat16\nfsdp: full_shard\nmax_length: 64\n"):
        "parallel=fsdp",
    ("llamafactory", "d.yaml", "stage: sft\ndo_train: true\nuse_dft_loss: true\n"): "task=sft task.loss=dft",
    ("axolotl", "d.yml", "base_model: o/m\nuse_dft: true\nbf16: true\n"):
        "task=sft task.loss=dft precision=bf16",
    ("torchtitan", "g.py", "from torchtitan.models.gpt_oss import model_registry\n\ndef one():\n"
     "    return Trainer.Config(model_spec=model_registry('debugmodel'))\n"):
        "model=openai/gpt-oss-20b model.num_experts=8 model.hidden_size=256",
    ("axolotl", "u.yml", "base_model: o/m\nbf16: true\nadapter: qlora\nload_in_4bit: true\ncurriculum_sampling: true\n"
     "unfrozen_parameters: ['^model.language_model.*', '^lm_head.*']\ncontext_parallel: {size: 4, backend: auto}\n"):
        "adapter=qlora data.shuffle=false parallel.ulysses=4 precision=bf16 precision.parameters=bf16",
    ("torchtitan", "s.py", "def one():\n    def turns(row):\n        return [{'role': 'user', 'content': row['ask']}, "
     "{'role': 'assistant', 'content': row['say']}]\n    return Trainer.Config(dataloader=ChatDataLoader.Config("
     "dataset_path='json', load_dataset_kwargs={'data_files': 'a.json', 'split': 'test'}, sample_processor=turns))\n"):
        "data=chat data.path=a.json data.split=test data.columns={prompt:ask,completion:say}",
    ("torchtitan", "v.py", "from torchtitan.models.deepseek_v3 import model_registry\n\ndef one():\n"
     "    return Trainer.Config(model_spec=model_registry('16B', moe_comm_backend='hybridep', "
     "non_blocking_capacity_factor=1.0))\n"):
        "model=deepseek_v3 model.family=deepseek_v2 model.norm_topk_prob=false model.routed_scaling_factor=1.0",
    ("axolotl", "r.yml", "base_model: o/m\nbf16: true\nadapter: lora\noptimizer: adamw_torch_8bit\n"
     "optim_args:\n  bf16_stochastic_round: true\n"):
        "optimizer=adamw_8bit optimizer.stochastic_rounding=true precision.parameters=bf16",
    ("axolotl", "m.yml", "base_model: mistralai/Mixtral-8x7B-v0.1\nmodel_config:\n  output_router_logits: true\n"):
        "model.router_aux_loss_coef=0.02 precision=bf16 precision.parameters=bf16",
    ("megatron_bridge", "r.py", "def one():\n    optimizer, schedule = distributed_fused_adam_with_cosine_annealing("
     "max_lr=3e-4, lr_warmup_iters=7)\n    return ConfigContainer(optimizer=optimizer, scheduler=schedule)\n"):
        "optimizer.lr=0.0003 optimizer.min_lr=3e-05 optimizer.warmup_steps=7 optimizer.weight_decay=0.033 zero=1",
    ("megatron_bridge", "p.py", "def one():\n    cfg = _pretrain_common()\n"
     "    cfg.optimizer.use_precision_aware_optimizer = True\n    cfg.optimizer.exp_avg_dtype = torch.bfloat16\n"
     "    cfg.model.rotary_base = float(10000)\n    cfg."
     "mixed_precision = MixedPrecisionConfig(bf16=True, params_dtype=torch.bfloat16)\n    return cfg\n"):
        "precision=bf16 precision.optimizer_states=bf16 model.rope_theta=10000.0 optimizer.weight_decay=0.033",
    ("nanotron", "n.py", "from nanotron.config import Config\nmodel = ModelArgs(init_method=RandomInit(std=0.025), "
     "model_config=LlamaConfig(hidden_size=16))\ntokens = TokensArgs(train_steps=15, micro_batch_size=2)\n"
     "config = Config(model=model, tokens=tokens, parallelism=ParallelismArgs(dp=2, pp=1, tp=1))\n"):
        "model.hidden_size=16 model.initializer_range=0.025 train.global_batch_size=4 model.family=llama",
    ("torchtitan", "t.toml", "[model]\nname = 'llama3'\nflavor = 'debugmodel'\n[activation_checkpoint]\n"
     "mode = 'selective'\nselective_ac_option = '2'\n"):
        "checkpointing=full checkpointing.method=block checkpointing.layers=3",
    ("torchtitan", "c.py", "def one():\n    return Trainer.Config(hf_assets_path='./assets/hf/Llama-3.1-8B', "
     "model_spec=model_registry('8B'), model_converters=ModelConvertersContainer.Config(converters=["
     "Float8LinearConverter.Config(filter_fqns=['output'])]))\n"):
        "model=llama3_8b precision=fp8",
    ("torchtitan", "m.py", "def one():\n    return Trainer.Config(hf_assets_path='./assets/hf/Llama-3.1-8B', "
     "model_spec=model_registry('8B', converters=[MXFP8LinearConverter.Config(model_compile_enabled=True, "
     "fqns=['layers'])]))\n"):
        "model=llama3_8b precision=mxfp8",
    ("torchtitan", "n.py", "def one():\n    return Trainer.Config(hf_assets_path='./assets/hf/Llama-3.1-8B', "
     "model_spec=model_registry('8B', converters=[NVFP4LinearConverter.Config(fqns=['layers'])]))\n"):
        "model=llama3_8b precision=nvfp4",
    ("torchtitan", "m.toml", "[model]\nname = 'llama3'\nflavor = '8B'\nconverters = ['mx']\n[mx]\n"
     "recipe_name = 'mxfp8_cublas'\nfilter_fqns = ['output']\n"):
        "model=llama3_8b precision=mxfp8",
    ("torchtune", "p.yaml", "dataset: {_component_: torchtune.datasets.preference_dataset, source: o/pairs, name: en}\n"
     "checkpointer: {checkpoint_dir: /tmp/Qwen3-8B}\nref_checkpointer: {checkpoint_dir: /tmp/Qwen3-8B, model_type: Q}\n"
     "loss: {_component_: torchtune.rlhf.loss.DPOLoss}\n"):
        "task=dpo data=rows data.path=o/pairs data.config=en model=Qwen/Qwen3-8B",
}  # fmt: skip
"""Files of a few keys, and words that say them."""


@pytest.mark.parametrize("file", SMALL_FILES, ids=lambda file: file[0])
def test_keys_are_said_as_their_program_means_them(file: tuple[str, str, str], tmp_path: Path) -> None:
    kind, name, text = file
    (tmp_path / name).write_text(text)
    found = read(kind, tmp_path / name, {})
    assert set(SMALL_FILES[file].split()) <= set(found.overrides)
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    assert ("precision.parameters=bf16" in found.overrides) == ("precision.parameters=bf16" in SMALL_FILES[file])


@pytest.mark.parametrize(
    "body",
    [
        "question = row['a']\n        return [{'role': 'user', 'content': question}]",
        "return [{'role': 'user', 'content': row['a']}]",
        "return [{'role': 'user', 'content': row['a'].strip()}, {'role': 'assistant', 'content': row['b']}]",
        "return [{'role': 'user', 'content': other['a']}, {'role': 'assistant', 'content': row['b']}]",
    ],
)
def test_a_function_over_rows_that_does_more_than_name_columns_is_refused_by_its_key(body: str) -> None:
    text = (
        f"def one():\n    def turns(row):\n        {body}\n    return Trainer.Config(dataloader=ChatDataLoader.Config("
        "dataset_path='o/r', load_dataset_kwargs={'name': 'main'}, sample_processor=turns))\n"
    )
    found = registry.load("importers", "torchtitan").read(text, "s.py")
    left = {each.key for each in found.left_out if each.matters}
    assert left == {"dataloader.class", "dataloader.sample_processor", "dataloader.load_dataset_kwargs.name"}


@pytest.mark.parametrize(("flavor", "scale"), [("16B", 0.7), ("671B", 1.0)])
def test_torchtitans_deepseek_has_its_scaled_positions(flavor: str, scale: float) -> None:
    text = f"[model]\nname = 'deepseek_v3'\nflavor = '{flavor}'\n"
    found = registry.load("importers", "torchtitan").read(text, "v.toml")
    scaled = found.recipe["set"]["model.rope_parameters"]
    assert (scaled["rope_type"], scaled["factor"], scaled["mscale"]) == ("yarn", 40.0, scale)
    asked = request([*found.overrides, "hardware=h200", "cluster.gpus_per_node=8", "cluster.nodes=16"])
    assert [str(error) for error in findings.broken_rules(asked.require())] == []


@pytest.mark.parametrize(
    ("kind", "text", "key"),
    [
        ("axolotl", "base_model: o/m\nmax_steps: many\n", "max_steps"),
        ("nanotron", "tokens: {val_check_interval: often, limit_val_batches: 2}\n", "tokens.val_check_interval"),
        ("torchtitan", "parallelism: {data_parallel_shard_degree: all}\n", "parallelism.data_parallel_shard_degree"),
        ("deepspeed", '{"optimizer": true}', "optimizer"),
    ],
)
def test_a_value_that_is_an_error_is_told_once_and_is_no_default(kind: str, text: str, key: str) -> None:
    found = registry.load("importers", kind).read(text, f"{kind}.yaml")
    assert [error.path for error in found.errors if key in error.path] == [f"{kind}.yaml: {key}"]
    assert [(left.effect, left.matters) for left in found.left_out if left.key == key] == [
        ("its value is an error", True)
    ]
    assert key not in found.default


@pytest.mark.parametrize(("load", "left"), [("/own", []), ("/other", ["checkpoint.load"]), ("null", [])])
def test_weights_of_another_folder_are_no_checkpoints_of_the_run_itself(
    load: str, left: list[str], tmp_path: Path
) -> None:
    (tmp_path / "own.yaml").write_text(f"train: {{train_iters: 5}}\ncheckpoint: {{save: /own, load: {load}}}\n")
    found = read("megatron_bridge", tmp_path / "own.yaml", {})
    assert [each.key for each in found.left_out if each.matters] == left


def test_a_format_of_columns_is_a_template_that_writes_it(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text(
        "base_model: o/m\ndatasets:\n  - path: rows.jsonl\n    type:\n      field_instruction: instruction\n"
        "      field_output: output\n      system_format: '<<{system}>> '\n"
        '      format: "Q: {instruction}\\n({input})\\nA: "\n'
        "      no_input_format: 'Q: {instruction} A: '\n"
    )
    found = read("axolotl", tmp_path / "own.yml", {})
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == []
    data = replace(make_spec("data=chat", "data.path=a.jsonl").data, template=found.recipe["set"]["data.template"])
    asked = [
        {"instruction": "2+2?", "input": "now", "output": "4"},
        {"instruction": "b?", "output": "c", "system": "s"},
    ]
    rows = [conversation(row, number, None) for number, row in enumerate(asked, start=1)]
    texts = [written(each).text for each in writer(data).outcomes(rows, "assistant")]
    assert texts == ["Q: 2+2?\n(now)\nA: 4", "<<s>> Q: b? A: c"]


def test_the_page_of_their_keys_and_ours_is_made_of_the_tables() -> None:
    written = (ROOT / "docs" / "coming-from.md").read_text()
    assert written == page(), "python -c 'from tests.support.coming_from import page; print(page(), end=str())'"


NAMES_A_FILE = "base_model: org/m\nmicro_batch_size: 1\ndatasets: [{path: a/b, type: chat_template}]\nbf16: true\n"
BESIDE = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "of_no_version": 1},
    "steps_per_print": 2000,
}


@pytest.mark.parametrize("how", ["beside", "inline", "absent"])
def test_a_deepspeed_file_that_a_peers_file_names_is_read_where_it_is_here(tmp_path: Path, how: str) -> None:
    (tmp_path / "ds").mkdir()
    (tmp_path / "examples").mkdir()
    if how == "beside":
        (tmp_path / "ds" / "zero2.json").write_text(json.dumps(BESIDE))
    named = json.dumps(BESIDE) if how == "inline" else "ds/zero2.json"
    file = tmp_path / "examples" / "run.yaml"
    file.write_text(f"{NAMES_A_FILE}deepspeed: {named}\n")
    found = read("axolotl", file, {})
    chosen, settings = found.recipe["choose"], found.recipe["set"]
    assert (chosen["parallel"], chosen["precision"]) == ("zero2", "bf16")
    assert "train.log_every" not in settings
    left = [each.key for each in found.left_out if each.matters]
    if how == "absent":
        assert "does not exist here, so it is recognized by its name" in " ".join(found.not_understood)
    else:
        assert settings["zero.offload_optimizer"] == "cpu"
        assert left == ["deepspeed.zero_optimization.of_no_version"]


def test_a_schedule_of_nanotron_that_megatron_lm_lacks_is_said_with_what_it_changes() -> None:
    text = (FOLDER / "files" / "nanotron" / "pipelined.yaml").read_text().replace("pp_engine: 1f1b", "pp_engine: afab")
    found = registry.load("importers", "nanotron").read(text, "a.yaml")
    assert "parallel.schedule=gpipe" not in found.overrides
    assert ["micro-batch a stage" in each.effect for each in found.left_out if each.key == "parallelism.pp_engine"] == [
        True
    ]
    single = registry.load("importers", "nanotron").read(re.sub(r"\bpp: \d", "pp: 1", text), "a.yaml")
    assert [each.effect for each in single.left_out if each.key == "parallelism.pp_engine"] == [
        "no effect: the pipeline has one stage"
    ]
    assert not [each for each in (*found.left_out, *single.left_out) if each.matters]


@pytest.mark.parametrize(("length", "said"), [(None, True), (128, False)])
def test_a_stage_of_nanotron_with_a_length_of_its_own_is_not_read_at_the_run_s(length: int | None, said: bool) -> None:
    content = yaml.safe_load((FOLDER / "files" / "nanotron" / "pipelined.yaml").read_text())
    content["data_stages"][0]["sequence_length"] = length or content["tokens"]["sequence_length"]
    found = registry.load("importers", "nanotron").read(yaml.safe_dump(content), "a.yaml")
    assert ([each.key for each in found.left_out if each.matters] == []) is said
