"""Nothing of a record that nobody has noted starts, wherever it lies: neither by its verb nor by its place."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base import files
from launcher.base.errors import ConfigErrors
from launcher.cli import main
from launcher.rundir import contents, lock, signature, state
from launcher.spec import ClusterSpec
from tests.support.training import SMALL

OWN = (*SMALL, "hardware=cpu", "cluster.gpus_per_node=1")
VERBS = (
    "resume {}",
    "resume {} train.steps=9",
    "run --from {} run.name=again",
    "run --from {}/run.lock.yaml",
    "recipe verify {} --steps 1",
    "recipe verify {}/run.lock.yaml --steps 1",
    "cancel {}",
    "status {}",
    "why {}",
    "logs {}",
    "watch {}",
    "report {} -o page.html",
    "compare {} runs/own",
    "rehearse --results {}",
    "plan --results {}",
)
"""All that takes a run, or what a run left."""

ANSWERS = (0, 2, 4, 5)
"""Exit statuses of verbs, but 1, a fault of ours."""


@dataclass(kw_only=True)
class House:
    """A working folder with a run and a sweep of the user's own, and what was started since."""

    folder: Path
    started: list[Path] = field(default_factory=list)
    count: Iterator[int] = field(default_factory=itertools.count)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    found = House(folder=tmp_path_factory.mktemp("house").resolve())

    def start(directory: Path, cluster: ClusterSpec) -> str:
        found.started.append(directory)
        files.write_atomically(directory / state.SUBMISSION, {"job_id": "1", "kind": "local"})
        state.put(directory, "finished")
        return "1"

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(found.folder / "state"))
        patch.chdir(found.folder)
        patch.setattr("launcher.submission.submit._start_here", start)
        patch.setattr("launcher.actions.run.follow", lambda *arguments, **options: 0)
        (found.folder / "theirs.py").write_text("print('theirs')")
        assert main([*OWN, "run.name=own"]) == 0
        assert main(["-m", *OWN, "train.seed=1,2", "run.name=sweep"]) == 0
        assert len(found.started) == 3, "own runs start"
        shutil.copytree("runs", "copies")
        yield found


def acts(content: dict[str, Any]) -> dict[str, Any]:
    """A specification that runs a program of somebody else's."""
    return {**content, "script": "theirs.py"}


def foreign(place: Path, source: Path, *, word: str, left_out: frozenset[str], sweep: bool) -> None:
    """Write a record of somebody else's, made of one's own: its own files say that it is at home, and may go on."""
    shutil.copytree(source, place, dirs_exist_ok=True)
    spec = json.loads((place / "spec.json").read_text())
    job = json.loads((place / "job.json").read_text())
    found = lock.read(place).content
    theirs = json.dumps({**found, "spec": acts(dict(found["spec"])), "losses": [LOSS]})
    (place / contents.LOCK).write_text(theirs)  # By another hand: what lock.write writes is noted.
    for name, content in {
        "spec.json": acts(spec),
        "job.json": {**job, "argv": ["touch", str(place.parent / "started")]},
        "home.json": {"directory": str(place), "inode": place.stat().st_ino},
        "state.json": {"state": word, "time": 1.0},
        "submission.json": {"kind": "local", "job_id": "7"},
    }.items():
        (place / name).write_text(json.dumps(content))
    for name in left_out:
        (place / name).unlink(missing_ok=True)
    if sweep:
        foreign(place / "000", source, word=word, left_out=left_out, sweep=False)
        (place / state.SWEEP).write_text(json.dumps({"overrides": [*OWN, "script=theirs.py"], "points": []}))


LOSS = {"step": 1, "loss": 1.0, "grad_norm": 1.0}
ABOVE = ("runs", "runs/own", "runs/own/checkpoints", "runs/sweep", "runs/sweep/000", "recipes", "conf", "kept/runs")
LEFT_OUT = ("home.json", "state.json", "submission.json", "plan.json", contents.LOCK)


@given(
    above=st.sampled_from(ABOVE),
    below=st.lists(st.sampled_from(["000", "007", "logs", "kid", "step-00000001"]), max_size=2),
    source=st.sampled_from(["copies/own", "copies/sweep/001"]),
    word=st.sampled_from(["failed", "finished", "prepared", "lost"]),
    left_out=st.frozensets(st.sampled_from(LEFT_OUT)),
    sweep=st.booleans(),
    verbs=st.lists(st.sampled_from(VERBS), min_size=3, max_size=3, unique=True),
)
@settings(max_examples=20, deadline=None)
def test_nothing_of_a_record_that_nobody_noted_starts_wherever_it_lies(
    house: House,
    above: str,
    below: list[str],
    source: str,
    word: str,
    left_out: frozenset[str],
    sweep: bool,
    verbs: list[str],
) -> None:
    before = [*house.started]
    name = f"new{next(house.count)}"
    place = house.folder / above / Path(*below) / name
    foreign(place, house.folder / source, word=word, left_out=left_out, sweep=sweep)
    for verb in verbs:
        assert main(verb.format(place).split()) in ANSWERS, verb
        assert house.started == before, f"{verb} has started something"
    assert not signature.is_own(place)
    shutil.rmtree(place)


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_of_a_record_that_took_the_place_of_ones_own_starts(house: House, verb: str) -> None:
    for own in (house.folder / "runs" / "own", house.folder / "runs" / "sweep" / "000"):
        kept = own.with_name(f"{own.name}.kept")
        shutil.copytree(own, kept)
        before = [*house.started]
        foreign(own, kept, word="failed", left_out=frozenset(), sweep=False)
        assert main(verb.format(own).split()) in ANSWERS
        assert house.started == before
        shutil.rmtree(own)
        kept.rename(own)
        assert signature.is_own(own), "the bytes are what they were"


@pytest.mark.parametrize("verb", ["resume {} --trust", "run --from {} run.name=trusted --trust"])
def test_such_a_record_starts_where_the_user_says_so(house: House, verb: str) -> None:
    place = house.folder / "runs" / "own" / "kid"
    foreign(place, house.folder / "copies" / "own", word="failed", left_out=frozenset(), sweep=False)
    before = len(house.started)
    assert main(verb.format(place).split()) == 0
    assert len(house.started) == before + 1
    shutil.rmtree(place)


def test_a_recipe_saved_of_such_a_record_is_as_foreign(house: House) -> None:
    place = house.folder / "runs" / "own" / "kid"
    foreign(place, house.folder / "copies" / "own", word="failed", left_out=frozenset(), sweep=False)
    plan = json.loads((place / "plan.json").read_text())
    (place / "plan.json").write_text(json.dumps({**plan, "overrides": [*OWN, "script=theirs.py"]}))
    before = [*house.started]
    assert main(["recipe", "save", "of_theirs", "--run", str(place)]) == 0
    assert main(["recipe=of_theirs"]) == 2
    assert house.started == before
    shutil.rmtree(place)


def test_what_stands_behind_the_losses_of_ones_own_lock_is_not_ones_own(house: House, tmp_path: Path) -> None:
    text = (house.folder / "runs" / "own" / contents.LOCK).read_text()
    theirs = tmp_path / "theirs.lock.yaml"
    spec = json.dumps(acts(dict(lock.read(house.folder / "runs" / "own").content["spec"])))
    theirs.write_text(f"{text.partition('losses:')[0]}losses:\n- {json.dumps(LOSS)}\nspec: {spec}\n")
    with pytest.raises(ConfigErrors, match="the key 'spec' has one value in line"):
        lock.read(theirs)


def test_a_record_that_is_ones_own_is_so_by_its_bytes_alone(house: House) -> None:
    own = house.folder / "runs" / "own"
    assert signature.is_own(own)
    assert main(["resume", "own"]) == 0
    assert signature.is_own(own), "going on changes none of what was noted"
