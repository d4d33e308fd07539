"""A file of one program that is given to the importer of another is named for what it looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.actions.importing import read
from launcher.base.errors import ConfigErrors
from launcher.cli import main
from tests.support.foreign_files import LLAMA3_8B, ZERO3_OFFLOAD

AXOLOTL = """\
base_model: NousResearch/Llama-3.2-1B
# tokens and templates of its own
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
sequence_len: 2048
micro_batch_size: 2
deepspeed: zero2.json
special_tokens: {pad_token: "<|end_of_text|>"}
"""
FILES = {
    "axolotl.yml": (AXOLOTL, "a configuration of axolotl"),
    "sft.yaml": ("### model\nmodel_name_or_path: org/m\nstage: sft\nfinetuning_type: lora\n", "LLaMA-Factory"),
    "trl.yaml": ("model_name_or_path: org/m\ndataset_name: org/d\nlearning_rate: 2e-5\n", "TRL"),
    "accelerate.yaml": (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\n",
        "accelerate",
    ),
    "train.toml": ('[job]\ndump_folder = "out"\n\n[model]\nname = "llama3"\n\n[training]\nsteps = 10\n', "torchtitan"),
    "bridge.yaml": ("model:\n  _target_: a.B\ntrain: {}\ncheckpoint: {}\n", "Megatron Bridge"),
    "nemo.yaml": ("trainer:\n  devices: 8\nexp_manager: {}\nmodel: {}\n", "NeMo"),
    "training_args.json": (
        json.dumps({"output_dir": "out", "per_device_train_batch_size": 1, "learning_rate": 1e-4}),
        "the TrainingArguments of Hugging Face's Trainer",
    ),
    "yaml_cfg.yaml": ("language_model: {}\nmodel_parallel: {}\n", "Megatron-LM's --yaml-cfg"),
    "recipe.yaml": ("type: basic\nspec: {}\nproducts: []\n", "Megatron-LM's test recipes"),
}


FILES |= {
    "sft.py": ("from trl import SFTConfig\nargs = SFTConfig()\n", "TRL"),
    "registry.py": ("def one() -> Trainer.Config:\n    return Trainer.Config()\n", "torchtitan"),
    "recipe.py": ("def one() -> ConfigContainer:\n    return _pretrain_common()\n", "Megatron Bridge"),
}
READ = {
    "sft.py": "trl",
    "registry.py": "torchtitan",
    "recipe.py": "megatron_bridge",
    "axolotl.yml": "axolotl",
    "sft.yaml": "llamafactory",
    "trl.yaml": "trl",
    "accelerate.yaml": "accelerate",
    "train.toml": "torchtitan",
    "bridge.yaml": "megatron_bridge",
    "training_args.json": "trl",
}
"""Those that an importer reads."""


@pytest.mark.parametrize("kind", ["deepspeed", "hf", "megatron", "torchtune"])
@pytest.mark.parametrize("name", READ)
def test_a_file_of_a_program_that_is_read_is_told_its_importer(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FILES[name][0])
    with pytest.raises(ConfigErrors) as caught:
        read(kind, path, {})
    [error] = caught.value.errors
    assert FILES[name][1] in error.rule
    assert error.way_out == (f"launch import {READ[name].replace('_', '-')} {path}",)


@pytest.mark.parametrize("kind", ["deepspeed", "hf", "megatron"])
@pytest.mark.parametrize("name", [name for name in FILES if name not in READ])
def test_a_file_of_another_program_is_named_with_what_can_be_done_with_it(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, called = FILES[name]
    (tmp_path / name).write_text(text)
    assert main(["import", kind, str(tmp_path / name), "--json"]) == 2
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert error["rule"].startswith("this looks like ")
    assert called in error["rule"]
    assert "which is not read here: " in error["rule"]
    assert "JSON" not in error["rule"].replace("config.json", "")


@pytest.mark.parametrize(
    ("content", "kind", "right"),
    [
        (ZERO3_OFFLOAD, "hf", "deepspeed"),
        (ZERO3_OFFLOAD, "megatron", "deepspeed"),
        (LLAMA3_8B, "deepspeed", "hf"),
        (LLAMA3_8B, "megatron", "hf"),
        ({"MODEL_ARGS": {"--num-layers": 2}}, "hf", "megatron"),
    ],
)
def test_a_file_that_another_importer_reads_names_its_command(
    content: dict[str, object], kind: str, right: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigErrors) as caught:
        read(kind, path, {})
    assert [error.way_out for error in caught.value.errors] == [(f"launch import {right} {path}",)]


@pytest.mark.parametrize(("recipe", "said"), [("", True), ('recipe_name = "rowwise"\n', False)])
def test_torchtitan_s_all_gather_in_fp8_is_ours_with_one_scale_a_weight(
    recipe: str, said: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n\n[training]\nsteps = 10\n\n'
        f"[float8]\nenable_fsdp_float8_all_gather = true\n{recipe}"
    )
    assert ("zero.quantized_weights=true" in read("torchtitan", path, {}).overrides) == said
