"""Megatron-LM's own validator behind ``check``: what it says in the words of our settings, and when it is not asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import cli
from launcher.backends import Judgement
from launcher.backends.megatron import installed, validator
from launcher.backends.megatron.validator import explained
from launcher.base.errors import ConfigError
from launcher.preflight import assess
from launcher.spec import RunSpec
from tests.support import hostile
from tests.support.helpers import make_spec

TP = ("model=7b", "parallel=tp", "hardware=h100_80g", "cluster.gpus_per_node=8")
NEEDS = pytest.mark.skipif(installed.found_version() is None, reason="the validator is of the extra 'megatron'")


def said(text: str, *overrides: str, near: tuple[str, ...] = ()) -> ConfigError:
    return explained(make_spec(*TP, *overrides), {"text": text, "near": list(near)}, "0.19.2")


@pytest.mark.parametrize(
    ("text", "overrides", "path", "found", "way_out"),
    [
        (
            "num_attention_heads (32) must be a multiple of tensor_model_parallel_size (3).",
            (),
            "model.num_attention_heads",
            32,
            ("launch show model",),
        ),
        (
            "num_layers_in_first_pipeline_stage must be larger than 0",
            (),
            "parallel.first_stage_layers",
            None,
            ("launch show parallel",),
        ),
        (
            "Must use --overlap-param-gather with --overlap-grad-reduce",
            ("+backend.extra.overlap_grad_reduce=false",),
            "backend.extra.overlap_grad_reduce",
            False,
            ("+backend.extra.overlap_grad_reduce=true",),
        ),
        (
            "--qk-clip is only supported with TE >= 2.9.0.",
            ("+backend.extra.qk-clip=true",),
            "backend.extra.qk-clip",
            True,
            ("+backend.extra.qk-clip=null",),
        ),
        ("something else", (), "backend", "megatron", ("--no-native",)),
    ],
)
def test_what_megatron_says_is_said_of_our_setting(
    text: str, overrides: tuple[str, ...], path: str, found: object, way_out: tuple[str, ...]
) -> None:
    error = said(text, *overrides)
    assert (error.path, error.found, error.way_out) == (path, found, way_out)
    assert error.rule == f"Megatron-LM 0.19.2 refuses it: {text}"


def test_an_argument_of_another_version_is_named_with_those_that_are_spelt_alike() -> None:
    error = said(
        "unrecognized arguments: --moe-grouped-gem",
        "+backend.extra.moe-grouped-gem=true",
        near=("--moe-grouped-gemm",),
    )
    assert error.path == "backend.extra.moe-grouped-gem"
    assert error.rule == "megatron-core 0.19.2 has no argument --moe-grouped-gem"
    assert error.way_out == ("+backend.extra.moe-grouped-gemm=true", "+backend.extra.moe-grouped-gem=null")


@NEEDS
def test_check_reports_the_validator_s_answer_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    imported = hostile.plant(tmp_path, *hostile.MODULES, "megatron")
    wrong = ["check", "--json", *TP, "+backend.extra.overlap_grad_reduce=false"]
    assert cli.main(wrong) == 2
    first = json.loads(capsys.readouterr().out)
    assert [error["path"] for error in first["errors"]] == ["backend.extra.overlap_grad_reduce"]
    assert first["errors"][0]["rule"].startswith("Megatron-LM 0.19.2 refuses it: Must use --overlap-param-gather")
    assert not imported.exists(), "the validator imports nothing from the working folder"

    def never(*_: object, **__: object) -> list[None]:
        raise AssertionError("the answer is in the cache")

    monkeypatch.setattr(validator, "answers", never)
    assert cli.main(wrong) == 2
    assert json.loads(capsys.readouterr().out) == first
    assert cli.main([*wrong, "--no-native"]) == 0


@pytest.mark.parametrize(
    ("version", "rule"),
    [
        (None, "megatron-core is not installed here, so its own validator was not run; the launcher's own rules"),
        (
            "0.18.2",
            "megatron-core 0.18.2 is installed, and this version supports from 0.19, below 0.20, so its own validator "
            "was not run; the launcher's own rules",
        ),
    ],
)
def test_without_a_supported_megatron_our_rules_answer_alone_and_say_so(
    version: str | None, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "found_version", lambda: version)
    found = assess.assess(make_spec(*TP), native=assess.judge)
    assert not found.errors
    about = [warning for warning in found.warnings if warning.path == "backend.name"]
    assert len(about) == 1
    assert about[0].rule.startswith(rule)
    assert about[0].way_out == (f"{sys.executable} -m pip install 'llm-launch[megatron]'",)


def test_a_validator_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("no answer in 120 s")

    monkeypatch.setattr(installed, "found_version", lambda: "0.19.2")
    monkeypatch.setattr(validator, "asked", fails)
    found = assess.assess(make_spec(*TP), native=assess.judge)
    rules = [warning.rule for warning in found.warnings if warning.path == "backend.name"]
    assert rules == ["megatron-core's own validator did not answer: no answer in 120 s"]


def test_several_runs_wait_once_for_a_validator_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def late(questions: list[Any], **_: object) -> Any:
        waits.append(len(questions))
        raise TimeoutError("no answer in 120 s")

    monkeypatch.setattr(installed, "found_version", lambda: "0.19.2")
    monkeypatch.setattr(validator, "answers", late)
    found = validator.natives([make_spec(*TP, f"train.seed={number}") for number in (901, 902)])
    assert waits == [2]
    rules = [warning.rule for judgement in found for warning in judgement.warnings]
    assert rules == ["megatron-core's own validator did not answer: no answer in 120 s"] * 2


def test_a_program_that_takes_too_long_is_an_error_with_the_limit() -> None:
    with pytest.raises(TimeoutError, match="no answer in 0 s"):
        validator.answers([], timeout_s=0)


def test_a_program_that_gives_no_answer_is_an_error_with_its_last_line() -> None:
    with pytest.raises(RuntimeError, match=r"No module named launcher[.]worker[.]no_such"):
        validator.answers([], module="launcher.worker.no_such")


def test_the_validator_is_not_asked_about_a_run_that_our_rules_refuse_or_that_has_a_script() -> None:
    def never(spec: RunSpec) -> Judgement:
        raise AssertionError("it is refused already")

    assert assess.assess(make_spec(*TP, "parallel.tensor=3"), native=never).errors
    assert assess.judge(make_spec(*TP, "script=train.py")) == Judgement()
    assert assess.judge(make_spec("parallel=fsdp")) == Judgement()


def obstacles(*overrides: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {error.path: (error.rule, error.way_out) for error in installed.obstacles(make_spec(*overrides))}


CPU = ("model=tiny", "parallel=tp", "data=synthetic")


@pytest.mark.parametrize(
    ("version", "rule"),
    [
        (None, "megatron-core is not installed for this Python"),
        (
            "0.18.2",
            "megatron-core 0.18.2 is installed; this version of launch supports megatron-core from 0.19, below 0.20",
        ),
        (
            "0.20.0",
            "megatron-core 0.20.0 is installed; this version of launch supports megatron-core from 0.19, below 0.20",
        ),
    ],
)
def test_a_missing_megatron_or_one_of_another_version_stops_a_run(
    version: str | None, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "found_version", lambda: version)
    found = obstacles(*CPU)["backend.name"]
    assert found[0] == rule
    assert found[1][0] == f"{sys.executable} -m pip install 'llm-launch[megatron]'"


def test_a_gpu_run_needs_transformer_engine_or_megatron_s_own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "found_version", lambda: "0.19.2")
    monkeypatch.setattr(installed, "find_spec", lambda _: None)
    rule, ways = obstacles(*TP)["backend.name"]
    assert rule == "Megatron-LM's GPU modules need Transformer Engine, which is not installed for this Python"
    assert ways == ('pip install "transformer_engine[pytorch]"', "+backend.extra.transformer-impl=local")
    local = (*TP, "+backend.extra.transformer-impl=local")
    assert obstacles(*local) == {}
    rule = "Megatron-LM's fused AdamW needs Transformer Engine or Apex, and neither is installed for this Python"
    assert obstacles(*local, "optimizer.fused=true") == {"optimizer.fused": (rule, ("optimizer.fused=null",))}


def test_a_checkout_that_is_not_there_and_its_data_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "Megatron-LM"
    found = obstacles(*CPU, f"backend.path={missing}", "data=tokens", f"data.path={tmp_path}/words")
    assert found["backend.path"] == (
        "it has no pretrain_gpt.py: set it to a checkout of Megatron-LM",
        (f"git clone --branch core_v0.19.0 https://github.com/NVIDIA/Megatron-LM {missing}", "backend.path=null"),
    )
    assert (
        found["data.path"][0]
        == f"pretrain_gpt.py reads PREFIX.bin and PREFIX.idx, and {tmp_path}/words.idx does not exist"
    )
    missing.mkdir()
    (missing / "pretrain_gpt.py").touch()
    (tmp_path / "words.idx").touch()
    assert obstacles(*CPU, f"backend.path={missing}", "data=tokens", f"data.path={tmp_path}/words") == {}


def test_a_tokenizer_that_is_not_there_is_named() -> None:
    rule, ways = obstacles(
        *CPU, "+backend.extra.tokenizer-type=HuggingFaceTokenizer", "+backend.extra.tokenizer_model=no/such"
    )["backend.extra.tokenizer_model"]
    assert rule == "no such file or folder: name a tokenizer that is on this machine"
    assert ways == ("+backend.extra.tokenizer_model=path/to/tokenizer",)


@NEEDS
def test_code_that_a_recipe_from_elsewhere_names_is_not_imported_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign.py").write_text("open('imported', 'w')\nx = None\n")
    key = "backend.extra.tp-comm-overlap-cfg"
    (tmp_path / "foreign.yaml").write_text(
        "schema: 1\nsummary: x\nchoose: {model: tiny, zero: 0}\n"
        f"set: {{backend.name: megatron, parallel.shard: false, {key}: foreign.py}}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert cli.main(["check", "recipe=foreign.yaml"]) == 0
    said = f"the engine's own validator runs without {key} unless you pass --trust"
    assert said in " ".join(capsys.readouterr().err.split())
    assert cli.main(["check", "recipe=foreign.yaml", "+backend.extra.spec=[foreign,x]"]) == 2
    assert not (tmp_path / "imported").exists()
