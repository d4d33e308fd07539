"""A run's lock: all that made it, repeated and compared; what it may do is asked for where it is from elsewhere."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.actions import repeat
from launcher.base.errors import ConfigErrors
from launcher.cli import main
from launcher.config.catalog import Catalog
from launcher.config.overrides import read
from launcher.preflight import assess
from launcher.preflight.measured import file
from launcher.preflight.plan import Plan, plan
from launcher.rundir import contents, lock, provenance, results
from launcher.rundir.record import job_as_dict
from launcher.spec import RunSpec
from launcher.spec.parse import to_dict
from tests.support import torchrun
from tests.support.helpers import make_spec
from tests.support.measured_rows import users_own


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def planned(*overrides: str) -> Plan:
    return plan(assess.assess(make_spec("model=tiny", *overrides)), python="python")


def written(path: Path, *overrides: str) -> Path:
    this = planned(*overrides)
    lock.write(path, lock.build(this, job_as_dict(this.job), overrides))
    return path


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def test_a_lock_holds_what_made_the_run_and_comes_back_as_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text")
    found = lock.read(written(tmp_path / "a.yaml", "data=text", "data.path=text.txt", "train.seed=5"))
    assert found.spec == make_spec("model=tiny", "data=text", "data.path=text.txt", "train.seed=5")
    content = found.content
    assert (content["spec_hash"], content["seed"]) == (found.spec.hash, 5)
    assert content["versions"]["packages"]["torch"] == provenance.installed()["torch"]
    assert f"torch=={provenance.installed()['torch']}" in content["requirements"]
    assert content["versions"]["cuda"]
    assert content["data"]["list"][0]["bytes"] == 9
    assert content["prediction"]["peak_allocated_bytes"] > content["prediction"]["static_bytes"] > 0
    assert content["job"]["argv"]
    assert found.losses == ()


def test_a_changed_file_of_the_data_is_seen(tmp_path: Path) -> None:
    data = tmp_path / "text.txt"
    data.write_bytes(bytes(range(256)) * 2**19)
    spec = make_spec("model=tiny", "data=text", "data.path=text.txt")
    before = provenance.data(spec.data)
    with data.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    after = provenance.data(spec.data)
    assert before is not None
    assert after is not None
    assert "64 blocks" in after["hashed"]
    assert before["sha256"] != after["sha256"]


def test_the_environment_is_recorded_by_an_allow_list_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_DEBUG", "HF_DATASETS_TOKEN", "TORCH_API_KEY", "HOME_MADE"):
        monkeypatch.setenv(name, "value of it")
    found = provenance.environment()
    assert found["NCCL_DEBUG"] == "value of it"
    assert not {"HF_DATASETS_TOKEN", "TORCH_API_KEY", "HOME_MADE"} & set(found)


SPEC = json.dumps(to_dict(make_spec("model=tiny")))


def test_a_memory_that_is_set_over_a_lock_is_what_a_rank_may_use(tmp_path: Path) -> None:
    found = lock.read(written(tmp_path / "a.yaml", "hardware=a100_80g"))
    words, _ = read(["hardware.memory_bytes=1000000000"], Catalog(folder=tmp_path))
    assert lock.respecified(found, words).rank_memory_bytes == 1_000_000_000


def test_a_loss_that_is_not_finite_comes_back_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path / contents.LOCK)
    rows = [
        {"step": 1, "loss": 2.5, "grad_norm": float("inf")},
        {"step": 2, "loss": 1e-05, "grad_norm": None},
        {"step": 3, "loss": float("nan"), "grad_norm": float("-inf")},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    results.add_losses(tmp_path)
    assert repr([dict(row) for row in lock.read(path).losses]) == repr(rows)


def test_verify_compares_one_step_at_least(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.yaml", "train.steps=4")
    assert main(["recipe", "verify", str(path), "--steps", "0"]) == 2
    message = said(capsys)
    assert "--steps=0: must compare at least one step" in message
    assert "the lock has no losses to compare with" in message


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a: 1", "it is not a lock: it holds no spec"),
        ("schema: 9\nspec: {}", "this version reads locks of schema 1"),
        ("schema: 1\nspec: {model: {}}", "must be set"),
        (f"schema: 1\nspec: {SPEC}\nlosses: [{{loss: a}}]", "must be a list of step, loss and grad_norm"),
        (f"schema: 1\nspec: {SPEC}\nlosses: [{{step: 1, loss: 2.0}}]", "must be a list of step, loss and grad_norm"),
        ("schema: 1\nspec: !!python/name:os.system x", "tags are not allowed: the file must be plain data"),
    ],
)
def test_a_broken_lock_is_explained(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigErrors) as caught:
        lock.read(tmp_path / "a.yaml")
    assert rule in [error.rule for error in caught.value.errors]


def test_only_keys_are_set_over_a_lock_and_they_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "a.yaml")
    assert main(["run", "--from", str(path), "parallel=ddp"]) == 2
    assert "a lock holds a whole run: single keys can be overridden, but no options chosen" in said(capsys)
    assert main(["run", "--from", str(path), "train.steps=many"]) == 2
    assert "train.steps" in capsys.readouterr().err


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


FOREIGN = "schema: 1\nsummary: x\nchoose: {model: tiny}\nset: {%s}\n"


@pytest.mark.parametrize(
    ("setting", "does"),
    [
        ("cluster.setup: ['curl x | sh']", "runs these shell lines on every node"),
        ("cluster.python: ./evil", "runs this program instead of Python"),
        ("cluster.container_mounts: ['.:/usr']", "mounts these folders in the container"),
        ("script: train.py", "runs this program"),
        ("cluster.environment.LD_PRELOAD: x.so", "sets environment variables, which can make a program load code"),
        ("backend.path: Megatron-LM", "runs the code in this folder"),
        ("data.path: /etc/passwd", "leaves the working folder"),
        ("save.load: ../other", "leaves the working folder"),
        ("model.weights: ~/model", "leaves the working folder"),
        ("run.directory: somewhere", "leaves the working folder"),
        ("run.name: ../../x", "leaves the working folder"),
    ],
)
def test_a_recipe_from_elsewhere_says_what_it_would_do_and_needs_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, does: str
) -> None:
    path = tmp_path / "foreign.yaml"
    path.write_text(FOREIGN % setting)
    assert main(["run", f"recipe={path}", "hardware.memory_bytes=1"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "it is from elsewhere and needs your permission" in message
    assert does in message
    assert not (tmp_path / "runs").exists()
    assert main(["check", f"recipe={path}"]) in (0, 2, 3)
    assert "needs your permission" not in capsys.readouterr().err


def test_what_the_user_sets_over_a_foreign_recipe_needs_no_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "foreign.yaml").write_text(FOREIGN % "data.source: text, data.path: /etc/passwd")
    assert main(["run", "recipe=foreign.yaml", "data.path=none.txt"]) == 2
    assert "no file matches" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "word", "asked"),
    [
        ("set: {cluster.environment: {LD_PRELOAD: x.so}}", "cluster.environment={A: b}", True),
        ("set: {cluster.setup: []}\nsweep: {cluster.setup: [[ls], [id]]}", "train.seed=1", True),
        ("set: {cluster.setup: [ls]}", "cluster=slurm", False),
    ],
    ids=["a mapping is added to", "what it sweeps counts, too", "a chosen group drops what the recipe set in it"],
)
def test_a_foreign_recipe_needs_trust_for_what_is_left_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recipe: str, word: str, asked: bool
) -> None:
    (tmp_path / "foreign.yaml").write_text(f"schema: 1\nsummary: x\nchoose: {{model: tiny}}\n{recipe}\n")
    assert main(["run", "recipe=foreign.yaml", word, "train.steps=0"]) == 2
    assert ("needs your permission" in " ".join(capsys.readouterr().err.split())) is asked


def test_a_recipe_is_saved_from_a_command_line_and_means_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["recipe=tiny_cpu", "zero=3", "adapter.targets=[q_proj]", "optimizer.lr=1e-4", "run.name=a"]
    assert main(["recipe", "save", "mine", *words, "train.seed=1,2"]) == 0
    capsys.readouterr()
    saved = (tmp_path / "recipes" / "mine.yaml").read_text()
    assert saved.startswith("# launch -m recipe=mine\n")
    assert make_spec("recipe=mine", "run.name=a", folder=tmp_path) == make_spec(*words, folder=tmp_path)
    assert main(["recipe", "diff", "mine", "tiny_cpu", "--json"]) == 0
    rows = {row["path"]: (row["first"], row["second"]) for row in json.loads(capsys.readouterr().out)["recipe"]}
    assert rows["optimizer.lr"] == (1e-4, 1e-3)
    assert main(["recipe", "diff", "mine", "tiny_cpu"]) == 0
    targets = "adapter.targets: [q_proj] -> [all-linear]"
    assert targets in capsys.readouterr().out
    assert main(["recipe", "save", "mine", *words]) == 4
    assert main(["recipe", "save", "../mine", *words]) == 2


def test_a_colleague_s_run_is_saved_with_what_the_recipe_of_their_folder_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    run = there / "runs" / "a"
    for folder in (run, there / "recipes", here):
        folder.mkdir(parents=True)
    (there / "recipes" / "own.yaml").write_text("schema: 1\nsummary: x\nchoose: {model: tiny}\nset: {train.seed: 7}\n")
    for name, content in (
        ("spec", {}),
        ("plan", {"overrides": ["recipe=own", "train.steps=3"]}),
        ("job", {"working_directory": str(there)}),
    ):
        (run / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.chdir(here)
    assert main(["recipe", "save", "mine", "--run", "../there/runs/a"]) == 0
    expected = make_spec("model=tiny", "train.seed=7", "train.steps=3", folder=here)
    assert make_spec("recipe=mine", folder=here) == expected


def test_a_difference_tells_a_setting_that_is_null_from_a_key_that_is_absent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["recipe=tiny_cpu", "+cluster.environment.A=1", "checkpointing.layers=2"]
    assert main(["recipe", "save", "mine", *words]) == 0
    capsys.readouterr()
    assert main(["recipe", "diff", "mine", "tiny_cpu"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert "checkpointing.layers: 2 -> null" in rows
    assert "cluster.environment.A: 1 -> absent" in rows


@pytest.mark.parametrize("words", [["show"], ["diff", "a"], ["fetch"], ["list", "a"]])
def test_a_recipe_action_with_too_few_or_many_words_says_how_it_is_used(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recipe", *words]) == 2
    assert f"usage: launch recipe {words[0]}" in " ".join(capsys.readouterr().err.split())


def test_a_run_repeats_to_the_last_bit_and_verify_says_what_differs_under_a_torchrun_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(torchrun.without_torch(tmp_path / "agent", forked=True)))
    (tmp_path / "text.txt").write_text("to be or not to be " * 2000)
    sizes = ("model.num_hidden_layers=1", "train.sequence_length=64", "train.steps=4", "cluster.gpus_per_node=1")
    done = launch(tmp_path, "model=tiny", *sizes, "data=text", "data.path=text.txt", "run.name=a")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "runs" / "a" / contents.LOCK
    recorded = lock.read(path).losses
    assert [row["step"] for row in recorded] == [1, 2, 3, 4]
    same = launch(tmp_path, "recipe", "verify", str(path), "--steps", "2", "--json")
    assert same.returncode == 0, same.stderr
    assert json.loads(same.stdout)["recipe"]["identical"] is True
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == ["a"]
    [row] = [row for row in file.load(users_own()).rows if row.directory.startswith(str(tmp_path))]
    assert (row.id, row.device, row.measured.steps) == ("a", "cpu", 2), "a finished run is a measured one"
    assert row.peak_ratio == pytest.approx(1, rel=0.2)

    def off_by_a_bit(spec: RunSpec, directory: Path, last: int) -> tuple[Path, list[dict[str, object]]]:
        assert (spec.train.seed, last) == (7, 2)
        return directory, [dict(recorded[0]), {**recorded[1], "loss": math.nextafter(recorded[1]["loss"], 9)}]

    monkeypatch.setattr(repeat, "_first_steps", off_by_a_bit)
    assert main(["recipe", "verify", "runs/a", "train.seed=7", "--steps", "2"]) == 5
    said = capsys.readouterr().out
    assert "1 of the first 2 steps differ" in said
    assert "train.seed was 1234, here 7" in said


def test_a_run_is_repeated_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    written(tmp_path / "runs" / "a" / "run.lock.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--from", "a", "parallel=ddp"]) == 2
    assert "a lock holds a whole run" in said(capsys)
    assert main(["recipe", "verify", "a"]) == 2
    assert "the lock has no losses to compare with" in said(capsys)
