"""Foreign files through the command line: they act only when told, however they came and whatever was done to them."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.megatron import installed, validator
from launcher.base import files
from launcher.base.errors import ConfigErrors
from launcher.cli import main
from launcher.commands import doctor
from launcher.config.trust import fetch
from launcher.rundir import lock, signature
from launcher.slurm import jobs
from tests.support.recorded_runs import recorded

RECIPE = "schema: 1\nsummary: theirs\nchoose: {model: tiny, cluster: slurm}\nset: {cluster.setup: [ls]}\n"
SOURCE = "https://example.org/theirs.yaml#sha256=0"
ASKS = "it is from elsewhere and needs your permission: cluster.setup=['ls'] runs these shell lines on"
STOPS = "train.steps=0"
"""A word with which no run starts, once its files are trusted."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(fetch, "fetch", lambda source: RECIPE.encode())
    return place


class Said:
    """What a command ended with and said, its lines joined."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, words: str) -> int:
        status = main(words.split())
        said = self._capsys.readouterr()
        self.out, self.err = " ".join(said.out.split()), " ".join(said.err.split())
        return status

    def asks(self, recipe: str) -> bool:
        """True if a run of the recipe is refused for want of the user's word."""
        assert self(f"run recipe={recipe} {STOPS}") == 2
        return ASKS in self.err


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


def cloned(folder: Path, name: str, text: str) -> None:
    """Make a folder a clone with one file."""
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text('[remote "origin"]\n\turl = https://example.org/team.git\n')
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text)


def test_a_fetched_recipe_stays_foreign_whatever_is_done_to_it(folder: Path, said: Said) -> None:
    assert said(f"recipe fetch {SOURCE} --name theirs") == 0
    assert said.asks("theirs")
    assert said("recipe save laundered recipe=theirs") == 0
    assert "which is not trusted, so neither is this: launch recipe trust laundered" in said.err
    assert said.asks("laundered")
    (folder / "recipes" / "copied.yaml").write_text(f"{RECIPE}\n# mine now\n")
    assert said.asks("copied")
    (folder / "recipes" / "theirs.yaml").write_text(f"{RECIPE}\n")
    assert said.asks("theirs")
    assert f"it was from {SOURCE} before it was edited" in said.err
    assert said("recipe trust theirs") == 0
    assert not said.asks("theirs")
    assert said("recipe save trusted recipe=theirs") == 0
    assert not said.asks("trusted")
    assert said.asks("laundered")


def test_a_fetch_that_cannot_be_recorded_leaves_no_file(
    folder: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "occupied").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "occupied"))
    assert said(f"recipe fetch {SOURCE} --name theirs") == 2
    assert "the record of trust cannot be written: Not a directory try XDG_STATE_HOME=..." in said.err
    assert said("recipe save mine model=tiny") == 2
    assert [*(folder / "recipes").iterdir()] == []


def test_a_fetch_that_is_interrupted_leaves_no_file_and_one_that_went_on_would_be_foreign(
    folder: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert said(f"recipe fetch {SOURCE} --name theirs") == 130
    assert [*(folder / "recipes").iterdir()] == []
    (folder / "recipes" / "theirs.yaml").write_text(RECIPE)
    assert said.asks("theirs")


def test_a_file_that_is_kept_by_a_name_that_is_taken_is_not_recorded_as_foreign(folder: Path, said: Said) -> None:
    (folder / "recipes").mkdir()
    (folder / "recipes" / "theirs.yaml").write_text("# mine\n" + RECIPE.replace("ls", "pwd"))
    assert said(f"recipe fetch {SOURCE} --name theirs") == 4
    assert not said.asks("theirs")
    assert "runs these shell lines" not in said.err


def test_a_file_system_without_links_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    files.write_new(tmp_path / "a", b"first")
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "a", b"second")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path.is_file()] == [("a", "first")]


def test_a_clone_acts_only_when_it_is_trusted_and_is_judged_and_shown_before(folder: Path, said: Said) -> None:
    cloned(folder, "recipes/theirs.yaml", RECIPE)
    for words in ("check recipe=theirs", "show recipe=theirs", "recipe show theirs"):
        assert said(words) in (0, 3)
        assert "your word" not in said.err
    assert said.asks("theirs")
    assert "it is in a repository from https://example.org/team.git, which is not trusted" in said.err
    assert "try --trust or launch recipe trust recipes/theirs.yaml or launch recipe trust --origin" in said.err
    assert said(f"-m recipe=theirs {STOPS} train.seed=1,2") == 2
    assert ASKS in said.err
    assert said("recipe trust theirs") == 0
    assert said.out == "cluster.setup=[ls] runs these shell lines on every node"
    assert not said.asks("theirs")


def test_the_groups_of_a_clone_act_only_when_they_are_trusted(folder: Path, said: Said) -> None:
    cloned(folder, "conf/cluster/ours.yaml", "setup: [ls]\n")
    assert said("prepare cluster=ours") == 2
    assert "needs your permission" in said.err
    assert said(f"run cluster=ours {STOPS}") == 2
    assert f"conf/cluster/ours.yaml: {ASKS}" in said.err
    assert "or launch recipe trust conf/cluster/ours.yaml or" in said.err
    assert said("recipe trust conf --json") == 0
    told = json.loads(said.out)["recipe"]
    assert [setting["value"] for setting in told["acts"]] == [["ls"]]
    assert told["trusted"] is True
    assert said("recipe trust conf") == 0
    assert "conf is your own or already trusted" in said.err
    (folder / "conf" / "cluster" / "another.yaml").write_text("setup: [ls, id]\n")
    assert said(f"run cluster=ours {STOPS}") == 2
    assert "conf/cluster/another.yaml: it is from elsewhere" in said.err
    assert "conf/cluster/ours.yaml" not in said.err


def test_an_option_of_a_clone_that_resume_is_given_acts_only_when_it_is_trusted(folder: Path, said: Said) -> None:
    run = recorded(folder / "runs" / "a")
    job = files.read_json(run / "job.json") or {}
    files.write_atomically(run / "job.json", {**job, "working_directory": str(folder)})
    signature.note(run)
    cloned(folder, "conf/cluster/theirs.yaml", "defaults: [_base, _self_]\nkind: slurm\nsetup: [ls]\n")
    assert said("resume a cluster=theirs") == 2
    assert "theirs.yaml" in said.err
    assert "runs these shell lines on" in said.err


def test_a_trusted_origin_asks_no_more_and_says_what_acts_there(folder: Path, said: Said) -> None:
    cloned(folder, "recipes/theirs.yaml", RECIPE)
    assert said("recipe trust --origin") == 0
    assert said.out.startswith("https://example.org/team.git recipes/theirs.yaml: cluster.setup=[ls] runs these shell")
    assert "now and after each pull" in said.err
    (folder / "recipes" / "theirs.yaml").write_text(RECIPE.replace("ls", "pwd"))
    assert not said.asks("theirs")
    assert "elsewhere" not in said.err
    assert said("recipe trust --origin --json") == 0
    assert json.loads(said.out)["recipe"]["trusted"] is False
    assert "is in no repository with an untrusted remote" in said.err


@pytest.mark.parametrize(
    ("words", "status", "answer"),
    [
        ("recipe trust tiny_cpu", 0, "there is nothing to trust: "),
        ("recipe trust", 2, "name what to trust: a recipe, a lock, or a folder of configuration groups"),
        ("recipe trust none", 2, "no such recipe"),
        ("recipe trust empty", 2, "the folder holds neither a lock nor configuration groups"),
        ("recipe trust a b", 2, "usage: launch recipe trust FILE"),
    ],
)
def test_trust_says_when_there_is_nothing_to_trust(
    folder: Path, said: Said, words: str, status: int, answer: str
) -> None:
    (folder / "empty").mkdir()
    assert said(words) == status
    assert answer in said.err


@pytest.mark.parametrize(
    ("recipe", "does"),
    [
        ("choose: {model: tiny, tracking: wandb}", "tracking=wandb sends settings and metrics to a tracker"),
        ("choose: {model: tiny, data: huggingface}", "data=huggingface may fetch from the Hugging Face Hub"),
        ("choose: {model: tiny}\nset: {save.load: ckpt}", "save.load=ckpt reads this checkpoint"),
    ],
)
def test_a_foreign_recipe_sends_fetches_and_loads_nothing_unasked(
    folder: Path, said: Said, recipe: str, does: str
) -> None:
    (folder / "theirs.yaml").write_text(f"schema: 1\nsummary: s\n{recipe}\n")
    assert said(f"run recipe=theirs.yaml {STOPS}") == 2
    assert does in said.err
    assert "needs your permission" in said.err


def test_a_check_reads_no_samples_that_a_foreign_recipe_would_fetch(folder: Path, said: Said) -> None:
    settings = "data.path: owner/conversations, data.preview: 1"
    text = f"schema: 1\nsummary: s\nchoose: {{model: tiny, data: chat}}\nset: {{{settings}}}\n"
    (folder / "theirs.yaml").write_text(text)
    assert said("check recipe=theirs.yaml") == 0
    assert "no preview: " in said.err
    assert "theirs.yaml, which names the data, is from elsewhere and not trusted (--trust)" in said.err


ARGUMENTS = """pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --vocab-size 1000
--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 --train-iters 2 --lr 1e-4 --bf16 --mock-data
--tp-comm-overlap-cfg evil.yaml --moe-router-topk-scaling-factor 2"""


def test_megatron_s_validator_is_told_of_no_module_that_a_foreign_file_names(
    folder: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[list[str]] = []
    monkeypatch.setattr(installed, "found_version", lambda: "0.19.2")
    monkeypatch.setattr(validator, "asked", lambda question, __: questions.append(question["arguments"]))
    (folder / "train.sh").write_text(ARGUMENTS.replace("\n", " "))
    check = "check --megatron-args train.sh hardware=h100_80g cluster.gpus_per_node=2"
    assert said(check) == 0
    assert "train.sh is from elsewhere and not trusted: the engine's own validator runs without" in said.err
    assert said(f"{check} +backend.extra.tp-comm-overlap-cfg=mine") == 0
    assert said("import megatron train.sh --recipe recipes/imported.yaml") == 0
    assert "you run it: backend.extra.tp-comm-overlap-cfg=evil.yaml passes these options" in said.err
    assert said("check recipe=imported hardware=h100_80g cluster.gpus_per_node=2") == 0
    assert ["evil.yaml" in words for words in questions] == [False, False, False]
    assert ["mine" in words for words in questions] == [False, True, False]
    assert all("--moe-router-topk-scaling-factor" in words for words in questions)
    assert said(f"run recipe=imported {STOPS}") == 2
    whole = f"passes these options to the engine; it is from {folder / 'train.sh'}"
    assert whole.replace(" ", "") in said.err.replace(" ", ""), "a long path is cut at the terminal's width"
    assert said(f"{check} --engine trace") == 2
    assert "a trace runs the worker, and train.sh is from elsewhere and could make it load code" in said.err
    assert said(f"{check} --trust") == 0
    assert "evil.yaml" in questions[-1]
    assert said(check) == 0
    assert "evil.yaml" in questions[-1]


def test_a_lock_of_the_users_own_run_is_theirs_wherever_it_is_moved(folder: Path, said: Said) -> None:
    content = {"schema": 1, "spec": json.loads(_spec(said))}
    (folder / "theirs.yaml").write_text(json.dumps(content))
    assert said(f"run --from theirs.yaml {STOPS}") == 2
    assert "script=evil.py runs this program" in said.err
    assert said(f"run --from theirs.yaml script=mine.py {STOPS}") == 2
    assert "evil.py" not in said.err
    lock.write(folder / "own.yaml", content)
    (folder / "moved.yaml").write_text((folder / "own.yaml").read_text())
    assert said(f"run --from moved.yaml {STOPS}") == 2
    assert "elsewhere" not in said.err


def test_the_doctor_asks_before_a_node_runs_what_a_foreign_recipe_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "theirs.yaml").write_text(RECIPE)
    monkeypatch.setattr(jobs, "installed", lambda: True)
    parser = argparse.ArgumentParser()
    doctor.arguments(parser)
    with pytest.raises(ConfigErrors) as caught:
        doctor.run(parser.parse_args(["recipe=theirs.yaml"]))
    assert caught.value.errors[0].rule.startswith(ASKS)


def test_the_shipped_recipes_are_not_asked_about(said: Said) -> None:
    assert said(f"run recipe=llama2_7b_zero3_offload_4x24g {STOPS}") == 2
    assert "elsewhere" not in said.err


def _spec(said: Said) -> str:
    """The specification of a run of a script, as data."""
    assert said("recipe lock model=tiny --json") == 0
    spec: dict[str, Any] = json.loads(said.out)["recipe"]["spec"]
    return json.dumps({**spec, "script": "evil.py"})
