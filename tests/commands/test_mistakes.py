"""What someone types who does not know the launcher yet: each mistake has an answer that says what to type instead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base import machine, registry
from launcher.base.errors import ConfigErrors
from launcher.cli import VERBS, main
from launcher.preflight import saving, this_machine
from launcher.sweeping import samplers
from tests.support.helpers import CPU_HOST, make_spec


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with files that are none of ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    Path("empty.yaml").touch()
    Path("words.yaml").write_text("hello\n")
    Path("binary.yaml").write_bytes(bytes(range(200, 256)))
    Path("broken.yaml").write_text("schema: [1\n")
    Path("list.json").write_text("[1]")
    Path("text.txt").write_text("hi\n")
    Path("tab.yaml").write_text("choose:\n\tmodel: tiny\n")
    Path("lora.yml").write_text("base_model: a/b\nadapter: lora\noptimiser: lion\n")
    return tmp_path


def answer(words: str | list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status, and all that was said with its lines joined."""
    status = main(words.split() if isinstance(words, str) else words)
    printed = capsys.readouterr()
    return status, " ".join((printed.out + printed.err).split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check recipe=empty.yaml", "empty.yaml=nothing: a recipe is a mapping of schema, summary,"),
        ("check recipe=words.yaml", "words.yaml=hello: a recipe is a mapping of schema, summary,"),
        ("check recipe=empty.yaml", "sweep try launch recipe save mine model=tiny"),
        ("check recipe=binary.yaml", "binary.yaml: it cannot be read: it is not UTF-8 text"),
        ("check recipe=broken.yaml", "did not find expected ',' or ']', line 2, column 1"),
        ("check recipe=tab.yaml", "line 2, column 1: YAML indents with spaces, not tabs"),
        ("check recipe=lora.yml", "summary, source, choose, set, sweep; another program's file is imported try launch"),
        ("check --config lora.yml", "unrecognized arguments: --config try recipe=lora.yml"),
        ("check --megatron text.txt", "unrecognized arguments: --megatron try --megatron-args"),
        (
            "import axolotl empty.yaml",
            "error: empty.yaml: a configuration of axolotl is a mapping of keys, and this is empty",
        ),
        ("import axolotl lora.yml", "launch does not know this key; it knows optimizer"),
        ("import Axolotl lora.yml", "torchtune, trl) try launch import axolotl lora.yml"),
        ("import axolotl", "the following arguments are required: FILE try launch import --help"),
        ("recipe lsit", "trust) try launch recipe list"),
        ("check recipe=nope", "tiny_cpu try launch recipe list"),
        ("import hf nope.json", "nope.json: the file cannot be read: No such file or directory"),
        ("import hf binary.yaml", "binary.yaml: the file cannot be read: it is not UTF-8 text"),
        ("import hf list.json", "list.json=[1]: a config.json must be one JSON object: {...}"),
        ("import megatron empty.yaml", "empty.yaml=nothing: an argument list is a mapping of arguments"),
        ("check --points nope.jsonl", "--points=nope.jsonl: the file cannot be read: No such file or directory"),
        ("run --from nope", "nope: it cannot be read: No such file or directory"),
        ("logs --lines 0", "--lines=0: must be at least 1 try --lines 1"),
        ("check --from runs/a", "launch check: unrecognized arguments: --from try launch check --help"),
        ("check -json", "launch check: unrecognized arguments: -json try --json"),
    ],
)
def test_a_wrong_file_or_option_is_named_with_what_is_wrong(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = answer(words, capsys)
    assert status == 2
    assert "".join(said.split()) in "".join(found.split())  # A long path is broken between two lines.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "script=train.py --epochs 2 model=tiny",
            "unrecognized arguments: --epochs 2; the script's arguments come after --"
            " try launch run script=train.py model=tiny -- --epochs 2",
        ),
        (
            "script=train.py epochs=2 lr 0.1",
            "error: epochs=2: there is no such group or key; the script's own arguments come after --"
            " try -- epochs=2 lr 0.1",
        ),
        ("script=train.py train.stps=4", "error: train.stps=4: there is no such group or key try train.steps=4"),
        ("epochs=2", "error: epochs=2: there is no such group or key"),
    ],
)
def test_words_for_the_script_that_stand_before_the_dashes_are_put_behind_them(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = answer(words, capsys)
    assert status == 2
    assert said in found
    assert "script=" in words or "--" not in found


def test_a_script_beside_which_no_model_is_named_is_not_judged_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = answer("check script=train.py", capsys)
    assert status == 0
    assert said.startswith("UNKNOWN: launch does not know which model train.py builds, so nothing is refused")
    assert "train.py; 2 CPU ranks on this machine's CPU, 24.0 GiB" in said
    assert "its memory is not checked try model=llama3_8b or model=./folder" in said
    assert "tiny" not in said
    assert "FITS" not in said
    assert "tiny, fsdp, fp32" in answer("check script=train.py model=tiny", capsys)[1]
    assert main(["check", "script=train.py", "hardware.memory_bytes=1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["peak"], found["piles"], found["fixes"]) == ("unknown", None, None, [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model", "=", "tiny"], "error: =: a group or key must precede =, without a space"),
        (["model=tiny train.steps=5"], "the quotes that join them try model=tiny train.steps=5"),
        (["train.steps=5 model=tiny"], "the quotes that join them try train.steps=5 model=tiny"),
        (["precision=frob"], "precision has bf16, fp16, fp32, fp8, mxfp8, nvfp4 try launch show precision"),
        (["data.path='it's'"], """token recognition error at: ''' try 'data.path="it'"'"'s"'"""),
        (["-m", "train.seed=range(1,4"], "the value cannot be parsed: no viable alternative at input 'range(1,4'"),
        (["~model"], "error: ~model: keys cannot be deleted or moved to another package"),
    ],
)
def test_a_mistake_in_spaces_or_quotes_is_explained(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = answer(["check", *words], capsys)
    assert status == 2
    assert said in found


def test_the_way_out_of_an_unreadable_text_is_one_that_a_shell_and_the_launcher_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["check", "--json", "data.path='it's'"])
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    typed = subprocess.run(["sh", "-c", f"printf %s {error['way_out'][0]}"], capture_output=True, text=True, check=True)
    assert make_spec(typed.stdout).data.path == "it's"


def test_a_number_that_cannot_be_read_gets_no_text_for_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--json", "-m", "train.seed=range(a,b)"])
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["way_out"] == []


@pytest.mark.parametrize("words", ["--jsn", "--hf nope", "--points nope", "recipe=empty.yaml", "model=frob", "-m x=1"])
def test_the_document_of_a_wrong_check_is_whole_whatever_is_wrong(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--json", "precison=fp8"]) == 2
    keys = set(json.loads(capsys.readouterr().out))
    assert {"verdict", "warnings", "errors", "peak", "fixes"} <= keys
    assert main(["check", "--json", *words.split()]) == 2
    assert set(json.loads(capsys.readouterr().out)) == keys


def test_logs_that_are_empty_say_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "runs" / "a" / "logs" / "ranks" / "rank1").mkdir(parents=True)
    (folder / "runs" / "a" / "spec.json").write_text("{}")
    assert answer("logs a", capsys) == (0, "launch: a is prepared, and nothing was printed")
    assert answer("logs a --rank 1", capsys) == (0, "launch: a is prepared, and nothing was printed by rank 1")


def test_nothing_is_written_over_by_an_import_or_a_saved_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").write_text("{}")
    assert answer("recipe save mine model=tiny", capsys)[0] == 0
    status, said = answer("recipe save mine model=7b", capsys)
    assert (status, said.endswith("recipes/mine.yaml exists and is not overwritten: choose another name")) == (4, True)
    status, said = answer("import deepspeed ds.json --recipe text.txt", capsys)
    assert (status, said.partition(" left out ")[2]) == (
        4,
        "launch: text.txt exists and is not overwritten: choose another --recipe",
    )
    assert Path("text.txt").read_text() == "hi\n"


@pytest.mark.parametrize(
    ("words", "path", "rule", "ways"),
    [
        (
            ("tracking=mlflow",),
            "tracking.kind",
            "its package is not installed for this Python",
            (f"{sys.executable} -m pip install 'llm-launch[tracking]'", "tracking=none"),
        ),
        (
            ("data=huggingface", "data.path=x"),
            "data.source",
            "needs datasets, not installed for this Python",
            (f"{sys.executable} -m pip install 'llm-launch[fsdp]'", "data=synthetic"),
        ),
        (
            ("parallel=fsdp", "parallel.ulysses=2", "cluster.gpus_per_node=2"),
            "parallel.ulysses",
            "needs deepspeed, not installed for this Python",
            (f"{sys.executable} -m pip install 'llm-launch[deepspeed]'", "parallel.ulysses=1"),
        ),
        (
            ("parallel=ddp", "train.loss=fused"),
            "train.loss",
            "needs liger-kernel, not installed for this Python",
            (f"{sys.executable} -m pip install 'llm-launch[kernels]'", "train.loss=chunked"),
        ),
        (
            ("parallel=ddp", "adapter=qlora"),
            "adapter.name",
            "needs bitsandbytes, not installed for this Python",
            (f"{sys.executable} -m pip install 'llm-launch[fsdp]'", "adapter=lora"),
        ),
    ],
)
def test_what_a_run_lacks_is_said_before_it_starts(
    words: tuple[str, ...], path: str, rule: str, ways: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("mlflow", "datasets", "deepspeed", "liger_kernel", "bitsandbytes"):
        monkeypatch.setitem(sys.modules, package, None)  # To Python such a module cannot be found.
    (error,) = this_machine.obstacles(make_spec("model=tiny", *words), CPU_HOST)
    assert (error.path, error.rule, error.way_out) == (path, rule, ways)


def test_what_a_job_elsewhere_will_read_is_looked_for_before_the_queue(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data=text", "data.path=nowhere", "model.weights=7b", "save.load=text.txt")
    main(["check", "--json", "model=tiny", "cluster=slurm", *words])
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    found = {each["path"]: each for each in warnings if "this machine" in each["rule"]}
    assert found.keys() == {"data.path", "model.weights"}
    rule = "there is no such file or folder on this machine; the nodes of the job must have it"
    assert found["model.weights"]["rule"] == rule
    rule = "it is not on this machine, so it was not checked; the job checks it before it builds the model"
    expected = {"path": "data.path", "found": "nowhere", "rule": rule, "way_out": ["data=synthetic data.path=null"]}
    assert found["data.path"] == expected


def test_a_missing_sampler_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigErrors) as caught:
        samplers.require()
    (error,) = caught.value.errors
    assert error.rule == "a sampler needs optuna, which is not installed for this Python"
    assert error.way_out == (f"{sys.executable} -m pip install 'llm-launch[sweep]'", "sweep.sampler=grid")


def test_the_doctor_speaks_of_this_machine_also_where_slurm_is_silent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("sbatch", "scontrol", "sinfo", "squeue"):
        (folder / name).write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    status, said = answer("doctor", capsys)
    assert status == 4
    assert said.startswith("this machine: Python 3.")
    assert "Unable to contact slurm controller" in said
    assert answer("doctor --write ours", capsys)[0] == 4
    assert not Path("conf").exists()


def test_run_and_points_warn_of_what_check_warns_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(saving, "disk_free", lambda _: 40 * 2**30)  # Others write on this disk between two commands.
    words = ["model=175b", "hardware=rtx4090", "cluster.kind=slurm", "data=tokens", "data.path=nowhere.bin"]
    Path("points.jsonl").write_text(json.dumps({"id": 1, "overrides": words}))
    documents = []
    for command in (["check", *words], ["check", "--points", "points.jsonl"], ["run", *words]):
        assert main([*command, *(["--json"] if "--points" not in command else [])]) == 3
        documents.append(json.loads(capsys.readouterr().out))
    one, point, run = documents[0], documents[1], documents[2]["check"]
    found = {warning["path"] for warning in one["warnings"]}
    assert {"cluster.gpus_per_node", "data.path"} <= found
    assert one["warnings"] == point["warnings"] == run["warnings"]


def test_no_way_out_chooses_another_backend_than_the_one_that_was_chosen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = answer("check parallel=tp adapter=lora model=7b", capsys)
    assert status == 2
    assert "Megatron-LM has no adapters try adapter=none or parallel=fsdp" in said
    status, said = answer("check backend=megatron parallel=fsdp adapter=lora model=7b", capsys)
    assert status == 2
    assert "used only by backend=fsdp and backend=trl try parallel.shard=false error" in said
    assert "Megatron-LM has no adapters try adapter=none" in said
    assert "parallel=fsdp" not in said


@pytest.mark.parametrize(("typed", "meant"), [("chek", "check"), ("imprt", "import"), ("docter", "doctor")])
def test_a_misspelt_verb_is_answered_with_the_nearest(
    typed: str, meant: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(VERBS) == {name.rstrip("_") for name in registry.names("commands")}
    assert f"try launch {meant}" in answer(typed, capsys)[1]


def test_the_package_datasets_is_asked_for_where_nothing_else_reads_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}')
    for words in (("data=huggingface", f"data.path={tmp_path}/rows.jsonl"), ("data=chat", "data.path=/nowhere.jsonl")):
        assert this_machine.obstacles(make_spec("model=tiny", *words), CPU_HOST) == []
    (error,) = this_machine.obstacles(make_spec("model=tiny", "data=chat", "data.path=acme/talks"), CPU_HOST)
    assert (error.path, error.found) == ("data.source", "chat")
    assert error.rule == "needs datasets, not installed for this Python"


def test_a_sweep_of_which_nothing_fits_says_how_to_learn_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = answer("-m model=tiny train.seed=1,2 hardware.memory_bytes=20000000", capsys)
    assert status == 3
    assert "2 of 2 points left out:" in said
    assert said.endswith("`launch check` with the words of one point shows what would help")
    assert not Path("runs").exists()
