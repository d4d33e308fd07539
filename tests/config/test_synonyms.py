"""Words of other tools, bare last parts of keys and words that are no verbs: each finds the word that is meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from launcher.base import machine
from launcher.cli import VERBS, main
from launcher.config import synonyms
from launcher.config.catalog import Catalog
from launcher.spec.parse import OPEN_NODES, accepts, known_keys
from tests.support.helpers import CPU_HOST


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)


def ways(words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The ways out of the first error of a command line."""
    assert main([*words.split(), "--json"]) == 2
    found: list[str] = json.loads(capsys.readouterr().out)["errors"][0]["way_out"]
    return found


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("check hardware=h100", ["hardware=h100_80g"]),
        ("check hardware=A100", ["hardware=a100_40g", "hardware=a100_80g"]),
        ("check nodes=2", ["cluster.nodes=2"]),
        ("check gpus=8", ["cluster.gpus_per_node=8"]),
        ("check disk_bytes=50e9", ["hardware.disk_bytes=50e9"]),
        ("check hardware.disk_bytes=50GB", ["hardware.disk_bytes=50000000000"]),
        ("check batch_size=8", ["train.micro_batch_size=8", "train.global_batch_size=8"]),
        ("check lr=1e-4", ["optimizer.lr=1e-4"]),
        ("check Learning-Rate=1e-4", ["optimizer.lr=1e-4"]),
        ("check seq_len=2048", ["train.sequence_length=2048"]),
        ("check tp=2", ["parallel.tensor=2"]),
        ("check pp=2", ["parallel.pipeline=2"]),
        ("check parallel.tp=3", ["parallel.tensor=3"]),
        ("check parallel.pp=5 parallel=fsdp", ["parallel.pipeline=5"]),
        ("check parallel.cp=3 hardware=h100_80g", ["parallel.context=3"]),
        ("check train.seq_len=2048", ["train.sequence_length=2048"]),
        ("check parallel=zero++", ["parallel=zero3 zero.quantized_weights=true zero.hpz=8"]),
        ("check hardware=h100 parallel=zero3 precision=mxfp8", ["hardware=h100_80g", "hardware=h100_96g"]),
        ("check train.loss=CCE hardware=h100_80g", ["train.loss=fused", "train.loss=chunked"]),
        ("check use_cut_cross_entropy=true hardware=h100_80g", ["train.loss=fused", "train.loss=chunked"]),
        ("check train.loss=cut hardware=cpu", ["train.loss=chunked"]),
        ("check train.loss=liger hardware=h100_80g", ["train.loss=fused"]),
        ("check train.kernels=unsloth hardware=h100_80g", ["train.kernels=liger"]),
        ("check parallel.schedule=dualpipe", ["parallel.schedule=dualpipe_v parallel.virtual_pipeline=2"]),
        ("check zero.offload_optimizer=disk parallel=zero3", ["zero.offload_optimizer=nvme"]),
        ("check precision.optimizer_states=int8", ["optimizer=adamw_8bit"]),
        ("check parallel=zero2 optimizer=adamw_4bit", ["optimizer=adamw_8bit", "optimizer=paged_adamw_8bit"]),
        ("check optimizer=galore", ["adapter=lora"]),
        ("check enable_activation_offloading=true", ["checkpointing=full checkpointing.offload=true"]),
        ("check mics_shard_size=8", ["parallel=hsdp"]),
        ("check dp=4", ["cluster.gpus_per_node=4"]),
        ("check zero_stage=3", ["zero=3"]),
        ("check time=24h", ["cluster.time_limit_min=1440"]),
        ("check cluster.time=24h", ["cluster.time_limit_min=1440"]),
        ("check cluster.walltime=1-12", ["cluster.time_limit_min=2160"]),
        ("check cluster.time_limit=soon", ["cluster.time_limit_min=soon"]),
        ("check cluster.time_limit_min=24h", ["cluster.time_limit_min=1440"]),
        ("check cluster.time_limit_min=24:00:00", ["cluster.time_limit_min=1440"]),
        ("check cluster.time_limit_min=1-12", ["cluster.time_limit_min=2160"]),
        ("check cluster.save_margin_s=5m", ["cluster.save_margin_s=300"]),
        ("check cluster.mail_user=me@lab.org", ["cluster.mail=me@lab.org"]),
        ("check epochs=3", ["train.epochs=3"]),
        ("check bf16=true", ["precision=bf16"]),
        ("check --nodes 2 model=7b", ["cluster.nodes=2"]),
        ("check --lr=3e-4", ["optimizer.lr=3e-4"]),
        ("check +optimizer.betas=[0.9,0.95]", ["optimizer.beta1=0.9 optimizer.beta2=0.95"]),
        ("check adam_beta2=0.95", ["optimizer.beta2=0.95"]),
        ("check optimizer.eps=1e-6", ["optimizer.epsilon=1e-6"]),
        ("check task=orpo", ["task=dpo"]),
        ("check task=ppo", ["task=grpo"]),
        ("check plot", ["--plot FILE.png"]),
        ("check adapter=DoRA", ["adapter=lora adapter.dora=true"]),
        ("check optimizer=adam8bit", ["optimizer=adamw_8bit"]),
        ("check model=Llama3-8B", ["model=llama3_8b"]),
        ("chekc model=7b", ["launch check model=7b --json"]),
        ("start", ["launch run --json", "launch status --json"]),
        ("stop", ["launch cancel --json"]),
        ("plot model=7b", ["launch check model=7b --json --plot FILE.png"]),
        ("7b", ["model=7b"]),
    ],
)
def test_a_word_of_another_tool_finds_ours(words: str, meant: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = ways(words, capsys)
    assert found[: len(meant)] == meant
    assert len(found) <= 4


def test_no_recomputation_is_chosen_for_a_run_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "checkpointing=auto", "parallel=megatron"]) == 2
    assert "checkpointing=auto is" not in capsys.readouterr().err


def test_an_unknown_verb_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc", "model=7b"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: chekc: there is no such verb, and an override is group=option or group.key=value")


@pytest.mark.parametrize("word", ["model=llama4", "modle=7b", "hardware=h100"])
def test_a_run_that_could_not_be_read_is_not_answered_as_another_one(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", word, "parallel=tp", "parallel.tensor=2"]) == 2
    text = capsys.readouterr().out
    assert text.startswith("INVALID: 1 error\n\nerror: ")
    assert "in tiny, " not in text
    assert "warning" not in text


def test_nothing_is_asked_of_the_default_that_stands_in_for_an_unknown_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["check", "model=llama4", "parallel=tp", "parallel.tensor=3", "--json"])
    assert [error["path"] for error in json.loads(capsys.readouterr().out)["errors"]] == ["model"]


def test_bytes_may_be_typed_with_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "hardware=h100_80g", "cluster.gpus_per_node=1", "hardware.disk_bytes=50e9", "--json"])
    assert json.loads(capsys.readouterr().out)["disk"]["capacity_bytes"] == 50_000_000_000
    assert main(["check", "train.steps=1.5", "--json"]) == 2


def test_another_tools_word_for_the_accumulation_is_answered_with_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = "check hardware=h100_80g cluster.gpus_per_node=8 parallel.tensor=2 train.micro_batch_size=2"
    [way] = ways(f"{run} gradient_accumulation_steps=4", capsys)
    assert way == "train.gradient_accumulation=4"
    main([*run.split(), way, "--json"])
    assert json.loads(capsys.readouterr().out)["world"]["gradient_accumulation"] == 4


def test_every_word_of_the_tables_leads_to_something_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    groups = Catalog(folder=Path.cwd()).groups
    keys = {way.partition("=")[0] for words in synonyms.by_word() for way in synonyms.ways(words, "x") if "=" in way}
    assert len(keys) > 30
    assert [
        key for key in keys if key not in known_keys() and key not in groups and not key.startswith(OPEN_NODES)
    ] == []
    assert not set(synonyms.by_word()) & {*groups, *known_keys()}
    assert {*synonyms.table()["verbs"]} <= {*VERBS, "check -m", "--help", "--version"}
    options = {word for ways in synonyms.table()["options"] for way in ways.split("; ") for word in way.split()}
    chosen = [word.partition("=") for word in options if "." not in word]
    assert [f"{key}={value}" for key, _, value in chosen if value not in groups[key]] == []
    assert {word.partition("=")[0] for word in options} <= {*groups, *known_keys()}
    typed = [word.partition("=") for words in synonyms.table()["options"].values() for word in words.split()]
    assert [f"{key}={value}" for key, _, value in typed if value in groups.get(key, ())] == []
    settings = [word.partition("=") for word in options if "." in word]
    assert [f"{key}={value}" for key, _, value in settings if not accepts(key, yaml.safe_load(value))] == []
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    helped = capsys.readouterr().out
    assert all(option.split()[0] in helped for option in synonyms.table()["switches"].values())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dtype=bfloat16", ["precision=bf16"]),
        ("torch_dtype=float16", ["precision=fp16"]),
        ("optim=adamw_bnb_8bit", ["optimizer=adamw_8bit"]),
        ("strategy=FULL_SHARD", ["parallel=fsdp"]),
        ("framework=torchtitan", ["parallel=fsdp"]),
        ("attn_implementation=flash_attention_2", ["model.attention=flash"]),
        ("lr_scheduler_type=cosine_with_restarts", ["optimizer.schedule=cosine"]),
        ("lora_target_modules=q_proj", ["adapter.targets=[q_proj]"]),
        ("max_tokens=1B", ["train.tokens=1000000000"]),
        ("seq_len=4k", ["train.sequence_length=4096"]),
        ("train.tokens=1.5T", ["train.tokens=1500000000000"]),
        ("cluster.time_limit_min=30m", ["cluster.time_limit_min=30"]),
        ("gpu=h100", ["hardware=h100_80g", "hardware=h100_96g"]),
    ],
)
def test_a_value_of_another_tool_is_answered_by_one_that_the_key_takes(
    typed: str, meant: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ways(f"check {typed}", capsys) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("check --model llama3_8b", ["model=llama3_8b"]),
        ("check --parallel=fsdp2 --dtype bfloat16", ["parallel=fsdp", "precision=bf16"]),
        ("run --resume model=tiny", ["save.load=..."]),
        ("run --dry-run model=tiny", ["launch check model=tiny"]),
        ("check --jsn", ["--json"]),
        ("sweep model=tiny", ["launch check -m model=tiny", "launch show sweep"]),
        ("help", ["launch --help"]),
        ("version", ["launch --version", "launch show precision"]),
    ],
)
def test_options_and_verbs_of_another_tool_are_answered_by_ours(
    typed: str, meant: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("try " + " or ".join(meant))


def test_why_there_is_no_cut_cross_entropy_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "train.loss=cut", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["rule"] == (
        "launch has no cut cross entropy, since its package on PyPI is not Apple's own; Liger's fused loss and the "
        "chunked loss do not hold all logits either"
    )
