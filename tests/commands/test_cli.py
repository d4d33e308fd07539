"""The border of the program: help, version, exit statuses, what is imported, and JSON that stands alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base import terminal
from launcher.base.machine import facts
from launcher.base.terminal import pasteable
from launcher.cli import VERBS, main
from launcher.config.catalog import Catalog
from launcher.rundir import state
from launcher.submission import interrupts

HEAVY = ("torch", "deepspeed", "megatron", "transformers", "submitit")
NOT_OF_A_CHECK: dict[str, tuple[str, ...]] = {
    "check": ("launcher.submission.slurm_jobs", "launcher.rundir", "concurrent.futures", "platformdirs"),
    "show": (),
}
"""Modules without which a check starts in half of the time of a bare Hydra composition."""


def test_help_shows_every_verb_group_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    groups = Catalog(folder=Path.cwd()).groups
    assert len(groups) >= 14
    words = set(said.split())
    assert set(VERBS) <= words
    for group, options in groups.items():
        assert {group, *options} <= words
    assert max(len(line) for line in said.splitlines()) <= 80


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"usage: launch {verb}" in said
    assert max(len(line) for line in said.splitlines()) <= 80


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "launch 0.1.0\n"


def test_a_wrong_command_line_is_explained_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "precison=fp8", "parallel.tensor=x"]) == 2
    said = capsys.readouterr()
    text = said.out + said.err
    assert "precison" in text
    assert "precision=fp8" in text
    assert "parallel.tensor" in text
    assert "must be an integer of at least 1" in text


def test_json_stands_alone_on_stdout_also_when_the_configuration_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["check"], ["show"], ["run"]):
        assert main([*words, "--json", "precison=fp8"]) == 2
        document = json.loads(capsys.readouterr().out)
        assert document["verdict"] == "invalid"
        assert [error["path"] for error in document["errors"]] == ["precison"]
        assert document["errors"][0]["way_out"] == ["precision=fp8"]


def test_show_with_the_name_of_a_group_explains_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "parallel"]) == 0
    said = capsys.readouterr().out
    assert "tensor: 1 # tensor parallel ranks (TP)" in said
    assert "zero3" in said


def test_points_are_answered_in_order_and_a_bad_one_is_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        '{"id": "fits", "overrides": ["model=tiny"]}',
        "not json",
        '{"id": 2, "overrides": ["model=tiny", "precison=fp8"]}',
        '{"id": 3, "overrides": ["model=175b", "hardware=rtx4090", "cluster.gpus_per_node=8"]}',
        '{"id": 4, "overrides": "model=tiny"}',
    ]
    (tmp_path / "points.jsonl").write_text("\n".join(lines))
    assert main(["check", "--points", str(tmp_path / "points.jsonl")]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["id"] for answer in answers] == ["fits", None, 2, 3, 4]
    assert [answer["verdict"] for answer in answers] == ["fits", "invalid", "invalid", "does_not_fit", "invalid"]
    (tmp_path / "points.jsonl").write_text(lines[3])
    assert main(["check", "--points", str(tmp_path / "points.jsonl")]) == 3
    capsys.readouterr()
    assert main(["check", "--points", str(tmp_path / "none.jsonl")]) == 2
    assert "the file cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["check", "show"])
def test_planning_imports_no_framework_and_a_check_nothing_of_runs(verb: str, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from launcher.cli import main\n"
        f"status = main([{verb!r}, 'model=tiny', 'parallel=zero3', 'precision=bf16'])\n"
        f"found = [name for name in {(*HEAVY, *NOT_OF_A_CHECK[verb])!r} if name in sys.modules]\n"
        "sys.exit(f'imported {found}' if found or status else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{Path(sys.executable).with_name('launch')} show parallel | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_what_a_foreign_file_asks_for_is_answered_by_the_setting_and_what_nobody_knows_by_partial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.sh"
    sizes = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512"
    file.write_text(f"{sizes} --tokenizer-type Llama2Tokenizer --no-such-argument 3\n")
    words = [
        "check",
        "--json",
        "--no-native",
        "--megatron-args",
        str(file),
        "hardware=h100_80g",
        "cluster.gpus_per_node=1",
    ]

    def found(name: str, *further: str) -> list[str]:
        main([*words, *further])
        findings = json.loads(capsys.readouterr().out)[name]
        return [finding["path"] for finding in findings if finding["path"].startswith(f"{file}: ")]

    tokenizer, unknown = f"{file}: --tokenizer-type", f"{file}: --no-such-argument"
    assert found("errors") == [tokenizer, unknown]
    assert found("errors", "model.vocab_size=1024") == [unknown]
    assert found("errors", "model.vocab_size=1024", "--partial") == []
    assert found("warnings", "model.vocab_size=1024", "--partial") == [unknown]


def test_words_that_are_shown_come_out_of_a_shell_as_they_were() -> None:
    words = ["model.source='a list of arguments'", "a=$HOME's", "b=[1, 2]", "c", 'd=it\'s "so"\\!']
    shown = pasteable(words)
    assert shown.startswith("\"model.source='a list of arguments'\" \\\n  ")
    done = subprocess.run(["bash", "-c", f"printf '%s\\n' {shown}"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == words


def test_run_draws_what_it_refuses_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=7b", "parallel=ddp", "hardware=cpu", "hardware.host_memory_bytes=1000000000"]
    assert main(["run", "--plot", "figure.html", *words]) == 3
    assert "<svg" in (tmp_path / "figure.html").read_text()
    assert main(["run", "-m", "--plot", "figure.html", *words]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model=tiny --jsno", "launch run: unrecognized arguments: --jsno try --json"),
        (
            "recipe lsit",
            "(choose from list, show, save, lock, verify, diff, fetch, trust) try launch recipe",
        ),
        ("check --hf", "launch check: argument --hf: expected one argument try launch check --help"),
        ("show paralel", "paralel: an override is group=option or group.key=value try launch show parallel"),
        ("show frobnicate", "an override is group=option or group.key=value try launch --help"),
        (
            "recipe save mine",
            "a recipe is made from overrides or from a run's command line try launch recipe save mine",
        ),
        ("status frobnicate", "or a run recorded elsewhere try launch status"),
    ],
)
def test_a_mistake_in_the_words_is_explained_on_stderr_and_as_json(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launcher.rundir.run_names.remembered", list)
    assert main([*words.split(), "--json"]) == 2
    printed = capsys.readouterr()
    assert said in " ".join(printed.err.split())
    assert len(json.loads(printed.out)["errors"]) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --from runs/a -m model=tiny", "--from=runs/a: -m does not use it: it applies to a single run"),
        ("run --debug -m model=tiny", "--debug: -m does not use it"),
        ("check -m --hf config.json", "try model=./config.json"),
        ("check --points p.jsonl --deepspeed ds.json", "--deepspeed=ds.json: --points does not use it"),
        ("check --points p.jsonl model=7b", "each point of --points holds all of its overrides"),
        ("check --points p.jsonl -m", "OVERRIDE=-m: each point of --points holds all of its overrides"),
        (
            "check -m model=tiny -- --epochs 2",
            "script_args=[--epochs,2]: -m does not use it: it applies to a single run try script_args=[--epochs,2]",
        ),
        ("check --points p.jsonl", "the file holds no point"),
    ],
)
def test_what_many_runs_would_drop_is_refused(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").touch()
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert said in " ".join(printed.err.split())
    assert printed.out == ""


def test_the_keys_of_a_group_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "parallel", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["show"]
    assert shown["group"] == "parallel"
    assert "zero3" in shown["options"]
    assert "tensor: 1 # tensor parallel ranks (TP)" in shown["keys"]


def test_logs_where_nothing_ran_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("launcher.rundir.run_names.remembered", list)
    assert main(["logs"]) == 0
    assert capsys.readouterr().err == "launch: no runs below runs/\n"


def test_the_runs_of_other_folders_are_shown_below_the_paths_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "elsewhere" / "runs" / "a"
    run.mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    monkeypatch.setattr("launcher.rundir.run_names.remembered", lambda: [run])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["status"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "launch: no runs below runs/; these were recorded in other folders\n"
    _, place, row = printed.out.splitlines()
    assert (place, row.split()[:2]) == (f"in {run.parent}:", ["a", "prepared"])
    monkeypatch.chdir(run.parents[1])
    assert main(["status"]) == 0
    printed = capsys.readouterr()
    assert (printed.out.splitlines()[1].split()[:2], printed.err) == (["a", "prepared"], "")


@pytest.mark.parametrize(("word", "warned"), [("train.steps=3", True), ("cluster.gpus_per_node=2", False)])
def test_gpus_that_nobody_counted_are_said_aloud(word: str, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--json", "model=tiny", "hardware=h100_80g", word])
    found = [w for w in json.loads(capsys.readouterr().out)["warnings"] if w["path"] == "cluster.gpus_per_node"]
    assert found == [
        {
            "path": "cluster.gpus_per_node",
            "found": None,
            "rule": "it is not set and this machine has no GPU to count: 2 assumed, as for its CPU ranks",
            "way_out": ["cluster.gpus_per_node=8"],
        }
    ] * (warned and not facts().gpus)


def test_a_benchmark_without_options_answers_help() -> None:
    command = [sys.executable, "-m", "benchmarks.largest_model", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "The largest model whose states fit an 80 GB card" in done.stdout


def test_logs_of_a_sweep_are_those_of_all_its_runs_and_json_is_one_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = tmp_path / "runs" / "s"
    for name in ("000", "001"):
        (sweep / name / "logs").mkdir(parents=True)
        (sweep / name / "spec.json").write_text("{}")
        (sweep / name / "logs" / "node.err").write_text(f"first\nlast of {name}\n")
        state.put(sweep / name, "failed", reason="it is a fish")
    (sweep / state.SWEEP).write_text("{}")
    assert main(["logs", "s", "--lines", "1", "--json"]) == 0
    documents = json.loads(capsys.readouterr().out)["logs"]
    assert [row["id"] for row in documents] == ["s/000", "s/001"]
    assert documents[0] == {
        "id": "s/000",
        "directory": str(sweep / "000"),
        "state": "failed",
        "reason": "it is a fish",
        "error": None,
        "steps": [],
        "files": [{"path": str(sweep / "000" / "logs" / "node.err"), "lines": ["last of 000"]}],
    }
    assert main(["logs", "s", "--lines", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"s/000 is failed: it is a fish\n==> {sweep}/000/logs/node.err <==\nlast of 000\ns/001 is ")
    assert main(["logs", "s", "--follow", "--json"]) == 2
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert error["rule"] == "it prints new output as it comes, but --json is a single document"


def test_an_interruption_before_a_command_has_begun_is_said_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "guarded", interrupted)
    monkeypatch.setattr(interrupts._noted, "begun", {})
    assert main(["run", "model=tiny"]) == 130
    assert capsys.readouterr().err == "launch: interrupted; nothing was started\n"
