"""``launch __complete``: the candidates at a place of the command line, in a tenth of a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base import cache
from launcher.cli import VERBS, main
from launcher.cli.completion import vocabulary
from launcher.spec.parse import known_keys
from tests.support.helpers import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with options of its own, two runs and a sweep."""
    files = [
        "conf/model/ours_9b.yaml",
        "conf/model/_base_of_ours.yaml",
        "recipes/our_recipe.yaml",
        ".hidden",
        "train.py",
    ]
    runs = ["runs/first/spec.json", "runs/second/spec.json", "runs/s/sweep.json", "runs/s/000/spec.json", "runs/no/x"]
    for number, name in enumerate([*files, *runs, "runs/first/checkpoints/step-00000012/x"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (number, number))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def offered(folder: Path, capsys: pytest.CaptureFixture[str]) -> Offered:
    return Offered(capsys)


class Offered:
    """The candidates behind some words, the last of which is being typed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> list[str]:
        return list(self.with_meaning(*words))

    def with_meaning(self, *words: str) -> dict[str, str]:
        assert main(["__complete", "zsh", *words]) == 0
        lines = self.capsys.readouterr().out.splitlines()
        return {word: text for word, _, text in (line.partition("\t") for line in lines)}


def test_the_first_word_is_a_verb_a_group_or_a_key(offered: Offered) -> None:
    found = offered.with_meaning("")
    assert list(found)[: len(VERBS)] == list(VERBS)
    assert {"model=", "model.", "recipe=", "train.", "script="} <= set(found)
    assert "train=" not in found, "a group with one option is no choice"
    assert found["status"] == VERBS["status"]
    assert found["train."].startswith("Batches and length of the training")
    assert offered("re") == ["rehearse", "report", "resume", "recipe", "recipe="]
    assert offered("--v") == ["--version"]


def test_keys_have_their_meaning_and_are_found_without_their_group(offered: Offered) -> None:
    assert offered.with_meaning("check", "train.seq") == {
        "train.sequence_length=": "tokens; null: the model's maximum, at most 4096"
    }
    assert offered("check", "micro_b") == ["train.micro_batch_size="]
    keys = [
        key for group in [*vocabulary_of()["groups"], ""] for key in offered("check", f"{group}." if group else "s")
    ]
    assert {key.removesuffix("=") for key in keys if key.endswith("=")} >= {key for key in known_keys() if "." in key}


def vocabulary_of() -> dict[str, dict[str, object]]:
    return vocabulary.read(VERBS)


def test_values_are_options_names_booleans_and_those_of_the_working_folder(offered: Offered) -> None:
    models = offered("model=")
    assert {"model=tiny", "model=llama3_8b", "model=ours_9b"} <= set(models)
    assert not any("=_" in model for model in models)
    assert offered("hardware=h100_8") == ["hardware=h100_80g"]
    assert offered("check", "parallel=zero") == [f"parallel=zero{stage}" for stage in range(4)]
    assert "recipe=our_recipe" in offered("recipe=")
    assert offered("precision.compute=") == [
        f"precision.compute={name}" for name in ("fp32", "fp16", "bf16", "fp8", "fp4")
    ]
    assert offered("train.compile=") == ["train.compile=true", "train.compile=false"]
    assert offered("optimizer.fused=") == ["optimizer.fused=true", "optimizer.fused=false", "optimizer.fused=null"]
    assert offered("backend.name=m") == ["backend.name=megatron"]
    assert offered("-m", "zero=0,1,") == ["zero=0,1,2", "zero=0,1,3"]
    assert offered("train.seed=") == []


def test_verbs_have_their_options_and_these_their_values(offered: Offered) -> None:
    assert offered.with_meaning("logs", "--f") == {"--follow": "print new output until the run ends"}
    assert offered("logs", "--follow", "--f") == []
    assert offered("check", "--explain", "gr") == ["gradients"]
    assert offered("check", "--engine=t") == ["--engine=trace"]
    assert offered("check", "--plot", "tr") == ["train.py"]
    assert offered("check", "model=tiny", "--plot", "x.svg", "hardware=h100_8") == ["hardware=h100_80g"]
    assert offered("completion", "") == ["bash", "zsh", "fish"]
    assert offered("import", "h") == ["hf"]
    assert offered("import", "hf", "") == ["conf/", "recipes/", "runs/", "train.py"]
    assert "--force" in offered("model=tiny", "--")
    assert offered("script=train.py", "--", "tr") == ["train.py"]


def test_plan_is_completed_as_check_is_and_its_best_where_a_layout_is_missing(offered: Offered) -> None:
    for begun in ("model=ll", "parallel.t", "hardware=h100_8", "micro_b", "--js"):
        assert offered("plan", begun) == offered("check", begun) != []
    assert offered("plan", "--vary", "") == ["precision", "optimizer", "adapter"]
    assert set(offered("plan", "--")) >= {"--vary", "--lines", "--save", "--json", "--help"}
    assert offered.with_meaning("-m", "model=tiny", "plan") == {"plan=": "best: the layout that launch plan puts first"}
    assert offered("-m", "plan=") == offered("check", "model=tiny", "plan=b") == ["plan=best"]
    assert offered("plan", "plan") == offered("resume", "first", "plan=") == []


def test_runs_are_offered_newest_first_and_of_a_sweep_its_points(offered: Offered, folder: Path) -> None:
    assert offered("status", "") == ["s", "second", "first"]
    assert offered("cancel", "s/") == ["s/000"]
    assert offered("resume", "fi") == ["first"]
    assert offered("resume", "first", "optimizer.lr") == ["optimizer.lr="]
    assert offered("save.load=f") == ["save.load=first"]
    assert offered("save.load=first@") == ["save.load=first@best", "save.load=first@12"]
    assert offered("--from", "fi") == ["first"]
    (folder / "runs" / "group" / "a").mkdir(parents=True)
    (folder / "runs" / "group" / "a" / "spec.json").touch()
    assert offered("status", "g") == ["group/"]
    assert offered("status", "group/") == ["group/a"]
    assert offered("status", "group/a/") == []


def test_runs_recorded_elsewhere_are_offered_where_there_are_none(
    offered: Offered, folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher.rundir import run_names

    run_names.remember(folder / "runs" / "second")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert "second" in offered("logs", "sec")


def test_recipes_and_files_are_offered_where_they_are_meant(offered: Offered) -> None:
    assert offered("recipe", "l") == ["list", "lock"]
    assert offered("recipe", "show", "our") == ["our_recipe"]
    assert offered("recipe", "trust", "our") == ["our_recipe"]
    assert offered("recipe", "diff", "our_recipe", "fir") == ["first"]
    assert offered("recipe", "save", "mine", "model=ours") == ["model=ours_9b"]
    assert offered("script=t") == ["script=train.py"]
    assert offered("data.path=./c") == ["data.path=./conf/"]
    assert offered("data.path=.h") == ["data.path=.hidden"]
    assert offered("model=./r") == ["model=./recipes/", "model=./runs/"]
    home = Path.home()
    assert all(word.startswith(f"run.directory={home}/") for word in offered("run.directory=~/"))


def test_bash_gets_the_part_that_it_replaces_and_quotes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / 'it\'s a "file".txt').write_text("")
    for line, replaced, wanted in (
        ("launch model=ours", "ours", "ours_9b"),
        ("launch model=", "", None),
        ("launch sta", "sta", "status"),
        ("launch  check\tmodel=ours", "ours", "ours_9b"),
        ('launch "model=ours', '"model=ours', "model=ours_9b"),
        ("launch data.path=it", "it", r"it\'s\ a\ \"file\".txt"),
        ('launch data.path="it', '"it', r"it's a \"file\".txt"),
        (r"launch data.path=it\'s", r"it\'s", r"it\'s\ a\ \"file\".txt"),
        ("launch canc", "canc", "cancel"),
    ):
        assert main(["__complete", "bash", line, replaced]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said == [wanted] if wanted else len(said) > 20, line


def test_no_name_is_offered_that_a_shell_or_a_terminal_would_act_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x1\n", "x2\x1b[2J", "x3\u202e", "x4\t", os.fsdecode(b"x5\xff"), "x6!", "-x7", "y'; touch PWNED; '"):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "spec.json").touch()
    for shell, words, wanted in (
        ("bash", ["launch status x", "x"], r"x6\!"),
        ("bash", ["launch status 'x", "'x"], "x6!"),
        ("bash", ['launch status "x', '"x'], ""),
        ("bash", ["launch status -x", "-x"], ""),
        ("bash", ["launch status 'y", "'y"], ""),
        ("zsh", ["status", "x"], "x6!\t"),
        ("fish", ["status", "x"], "x6!\t"),
    ):
        assert main(["__complete", shell, *words]) == 0
        assert capsys.readouterr().out == (f"{wanted}\n" if wanted else "")


def test_an_answer_imports_next_to_nothing(folder: Path) -> None:
    vocabulary.read(VERBS)
    program = (
        "import sys\n"
        "from launcher.cli import main\n"
        "main(['__complete', 'bash', 'launch model=ll', 'll'])\n"
        "heavy = ('hydra', 'omegaconf', 'yaml', 'torch', 'launcher.spec', 'launcher.config', 'launcher.rundir')\n"
        "sys.exit(str([name for name in heavy if name in sys.modules]) if set(heavy) & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "llama3_8b" in done.stdout.split()


def test_the_vocabulary_is_gathered_anew_when_what_it_comes_from_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = vocabulary.read(VERBS)
    [kept] = (tmp_path / "launch" / vocabulary.CACHE).iterdir()
    assert json.loads(kept.read_text().partition("\n")[2]) == first
    cache.keep(vocabulary.CACHE, vocabulary.stamp(), {**first, "keys": {}})
    assert vocabulary.read(VERBS)["keys"] == {}, "nothing has changed, so that it is as it was kept"
    (tmp_path / "site-packages").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert vocabulary.read(VERBS)["keys"] == first["keys"]
    [kept] = {*(tmp_path / "launch" / vocabulary.CACHE).iterdir()} - {kept}
    for broken in ("[]", '{"stamp": []}', json.dumps(first), "0\n[]", "\x00"):
        kept.write_text(broken)
        assert vocabulary.read(VERBS)["keys"] == first["keys"]
    kept.unlink()
    kept.mkdir()
    assert vocabulary.read(VERBS)["keys"] == first["keys"], "a file that cannot be written is only slower"


def test_every_key_that_takes_a_path_is_one() -> None:
    assert set(vocabulary.PATHS) <= known_keys()


def test_the_scripts_are_printed_and_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert f"__complete {shell}" in script
        assert main(["completion", shell, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document == {"schema": 1, "completion": {"shell": shell, "script": script}}
        assert (ROOT / "launcher" / "cli" / "completion" / f"launch.{shell}").read_text() == script
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
