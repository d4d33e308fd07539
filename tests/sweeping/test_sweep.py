"""Sweeps: Hydra's grammar, every point judged on its own, the rest started and remembered."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.base.errors import ConfigErrors, SubmitError
from launcher.base.process import Process
from launcher.cli import main
from launcher.config.axes import Axes, Axis, read_axes
from launcher.config.catalog import Catalog
from launcher.config.compose import Interval
from launcher.rundir import state
from launcher.submission.submit import one_at_a_time, resubmit
from launcher.sweeping import samplers, sweep
from launcher.sweeping.samplers import ProposedPoint
from tests.support.helpers import CPU_HOST, make_spec

SCRIPT = """
import json, os
spec = json.load(open(os.environ["LAUNCH_SPEC"]))
run, rate = os.environ["LAUNCH_RUN"], spec["optimizer"]["lr"]
if rate == 0.5 and not os.path.exists(f"{run}/tried"):
    open(f"{run}/tried", "w").close()
    raise ValueError("the learning rate is a fish")
if os.environ["RANK"] == "0":
    lines = [{"step": step, "loss": rate / step, "tokens_per_second": 100.0} for step in (1, 2)]
    open(f"{run}/metrics.jsonl", "a").write("".join(json.dumps(line) + "\\n" for line in lines))
"""


def axes(*words: str, folder: Path | None = None) -> Axes:
    return read_axes(words, Catalog(folder=folder or Path.cwd()))


def errors(*words: str) -> tuple[str, ...]:
    with pytest.raises(ConfigErrors) as caught:
        list(sweep.read(words, catalog=Catalog(folder=Path.cwd()), facts=CPU_HOST, force=False).axes.grid())
    return tuple(error.rule for error in caught.value.errors)


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("model=1b,7b", ("1b", "7b")),
        ("zero=1,3", ("1", "3")),
        ("parallel=glob(fsdp*)", ("fsdp", "fsdp_cp", "fsdp_pp", "fsdp_tp")),
        ("parallel=glob(*, exclude=[zero*,*d*,t*,u*])", ("cp", "ep", "pp")),
        ("train.seed=range(1,4)", ("1", "2", "3")),
        ("train.tokens=1e8,2e9", ("100000000", "2000000000")),
        ("train.seed=choice(3,5)", ("3", "5")),
        ("train.seed=sort(3,1)", ("1", "3")),
        ("adapter.targets=[q_proj],[k_proj,v_proj]", ("[q_proj]", "[k_proj,v_proj]")),
        ("data.path='a b',c", ("'a b'", "c")),
    ],
)
def test_hydras_grammar_says_what_is_swept(word: str, values: tuple[str, ...]) -> None:
    found = axes("model=tiny" if not word.startswith("model") else "train.steps=1", word)
    assert [axis.values for axis in found.swept] == [values]
    assert len(found.fixed) == 1


def test_the_last_axis_runs_fastest() -> None:
    found = axes("train.seed=1,2", "model=tiny", "zero=0,3")
    assert list(found.grid())[:3] == [
        ("train.seed=1", "zero=0"),
        ("train.seed=1", "zero=3"),
        ("train.seed=2", "zero=0"),
    ]


def test_a_recipe_brings_its_axes_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "schema: 1\nsummary: a test\nchoose: {model: tiny}\nsweep: {train.seed: [1, 2], optimizer.lr: [0.1, 0.2]}\n"
    )
    assert [axis.key for axis in axes("recipe=mine", folder=tmp_path).swept] == ["train.seed", "optimizer.lr"]
    found = axes("recipe=mine", "train.seed=7", "optimizer=sgd", folder=tmp_path)
    assert (found.fixed, found.swept) == (("recipe=mine", "train.seed=7", "optimizer=sgd"), ())


def test_a_recipe_that_sweeps_a_group_keeps_what_it_sets_in_it(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "schema: 1\nsummary: a test\nset: {optimizer.warmup_steps: 5}\nsweep: {optimizer: [sgd, adamw]}\n"
    )
    for words, expected in ((), 5), (("optimizer.warmup_steps=7",), 7):
        found = axes("recipe=mine", *words, folder=tmp_path)
        optimizer = make_spec(*found.fixed, *found.first(), folder=tmp_path).optimizer
        assert (optimizer.name, optimizer.warmup_steps) == ("sgd", expected)
    assert make_spec("recipe=mine", "optimizer=sgd", folder=tmp_path).optimizer.warmup_steps == 0


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("run.name=a,b",), "it applies to the whole sweep: set one value"),
        (("sweep.budget=1,2",), "it applies to the whole sweep: set one value"),
        (("zero=glob(x*)",), "the pattern matches none of the options 0, 1, 2, 3"),
        (("train.seed=glob(*)",), "only a group has options"),
        (("optimizer.lr=interval(1e-5,1e-3)",), "a grid cannot enumerate an interval: use a sampler"),
        (
            ("train.seed=range(0,1000)", "train.steps=range(1,1000)"),
            "a sweep has at most 100000 points; a sampler tries only some of them",
        ),
        (("sweep.sampler=tpe", "train.seed=1,2"), "tpe draws points without end: set how many runs to try"),
        (("train.sed=1,2",), "there is no such group or key"),
    ],
)
def test_what_cannot_be_swept_is_explained(words: tuple[str, ...], rule: str) -> None:
    assert errors("model=tiny", *words) == (rule,)


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["check", "-m", "--json", *words])
    content = json.loads(capsys.readouterr().out)
    return status, content["points"]


def test_the_table_of_judged_points_shows_what_the_verdict_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    node = ("hardware=a100_80g", "cluster.gpus_per_node=8")
    assert main(["check", "-m", "model=7b,70b", "parallel=fsdp,tp", "parallel.tensor=1", *node]) == 0
    printed = capsys.readouterr().out
    table = " ".join(printed.split())
    assert " ".join(printed.splitlines()[0].split()) == "point verdict needs tokens/s a GPU largest pile"
    assert re.search(r"000 fits \S+ GiB [\d,]+ activations", table) is not None
    assert re.search(r"002 does not fit \S+ GiB - activations", table) is not None
    large = re.search(r"002 does not fit (\S+ GiB) .* device needs (\S+ GiB) of 79.15 GiB", table)
    assert large is not None
    assert large[1] == large[2]
    assert "parallel.sequence=true: sequence parallelism splits over" in table
    assert main(["check", "-m", "model=tiny", "train.seed=1,2"]) == 0
    assert capsys.readouterr().out.split("\n")[0].split() == ["point", "verdict", "needs", "largest", "pile"]


def test_engines_that_are_compared_at_unequal_defaults_are_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    node = ("hardware=h100_80g", "cluster.nodes=2", "cluster.gpus_per_node=8", "model=7b", "parallel=fsdp,zero3,3d")
    assert main(["check", "-m", *node]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "points differ in sequences per step: 16 in 000 001, 1 in 002; train.global_batch_size=16 works" in said
    assert "number formats: parameters fp32 gradients bf16 reduce fp32 master none in 000, parameters bf16" in said
    assert main(["check", "-m", *node, "train.global_batch_size=16", "precision=fp32"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["check", "-m", *node[:-1], "train.micro_batch_size=1,2"]) == 0
    assert capsys.readouterr().err == ""


def test_what_a_look_at_the_data_finds_is_said_once_for_all_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [("q", "a" * 10), ("q" * 400, "a"), ("q", "a" * 60)]
    rows = [{"prompt": asked, "completion": answered} for asked, answered in pairs]
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ("model=tiny", "hardware=rtx4090", "cluster.gpus_per_node=1", "data=chat", "data.path=pairs.jsonl")
    swept = (*words, "train.global_batch_size=1", "train.steps=2", "optimizer.lr=1e-3,1e-4", "train.seed=1,2,3")
    assert main(["check", "-m", *swept]) == 0
    said = " ".join(capsys.readouterr().err.split())
    cut = "1 of 3 conversations are cut off before their first trained token; try train.sequence_length="
    assert said.count("warning: train.sequence_length=256: ") == said.count(cut) == 1
    assert "(points 000 001 002 003 and 2 more)" in said
    plain = "warning: data.template: data.tokenizer=bytes has no chat template, so the shipped template plain is used"
    assert said.count(plain) == 1
    asked = sweep.read(swept, catalog=Catalog(folder=tmp_path), facts=CPU_HOST, force=False)
    _, assessment = asked.point(0, ("optimizer.lr=1e-3",))
    assert assessment is not None
    assert assessment.data is not None
    assert assessment.data.samples == 3


def test_one_run_of_a_recipe_that_sweeps_says_what_it_leaves_aside(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = "recipe=llama2_7b_sequence_lengths_8x80g"
    said = "launch: this is one run, without the recipe's sweep of checkpointing, train.sequence_length: -m runs that\n"
    both, one = ("checkpointing=none", "train.sequence_length=4096"), ("checkpointing=none", "train=default")
    for words, expected in ((), said), (both, ""), (one, ""):
        assert main(["check", recipe, *words]) == 0
        assert capsys.readouterr().err == expected


def test_every_point_is_composed_on_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("model=7b", "hardware=h100_80g", "cluster.gpus_per_node=8", "parallel=fsdp,tp", "parallel.tensor=2")
    status, points = checked(capsys, *words)
    assert (status, [point["verdict"] for point in points]) == (0, ["fits", "fits"])
    assert points[0]["predicted_bytes"] != points[1]["predicted_bytes"]


@pytest.mark.parametrize(
    ("swept", "status", "verdicts"),
    [
        ("model=1b,70b", 0, ["fits", "does_not_fit"]),
        ("model=70b,30b", 3, ["does_not_fit", "does_not_fit"]),
        ("parallel.tensor=3,5", 2, ["invalid", "invalid"]),
    ],
)
def test_the_status_says_whether_any_point_may_run(
    capsys: pytest.CaptureFixture[str], swept: str, status: int, verdicts: list[str]
) -> None:
    found = checked(capsys, "model=7b", "parallel=ddp", "hardware=h100_80g", "cluster.gpus_per_node=8", swept)
    assert (found[0], [point["verdict"] for point in found[1]]) == (status, verdicts)
    reasons = [point["reason"] for point in found[1] if point["verdict"] != "fits"]
    assert reasons
    assert all("device needs" in reason or "parallel.tensor=" in reason for reason in reasons)


LINE = Axes(
    fixed=(),
    swept=(
        Axis(key="zero", values=("1", "3")),
        Axis(key="optimizer.lr", values=Interval(low=1e-6, high=1e-1, integer=False, log=True)),
        Axis(key="train.seed", values=Interval(low=1, high=4, integer=True, log=False)),
    ),
)


def test_tpe_comes_closer_than_chance_and_learns_from_what_is_left_out() -> None:
    best: dict[str, float] = {}
    for sampler in ("random", "tpe"):
        tried: list[ProposedPoint] = []
        for _ in range(40):
            point = samplers.propose(LINE, sampler, 1, tried)
            zero, rate, _ = (text.partition("=")[2] for text in point)
            loss = None if zero == "1" else abs(math.log10(float(rate)) + 3)
            tried.append(ProposedPoint(overrides=point, loss=loss))
        best[sampler] = min(one.loss for one in tried if one.loss is not None)
        if sampler == "tpe":
            assert sum(one.loss is None for one in tried[20:]) <= 5
    assert best["tpe"] < best["random"]
    assert samplers.propose(LINE, "tpe", 1, tried) == samplers.propose(LINE, "tpe", 1, tried)


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.usefixtures("without_torch")
def test_a_sweep_starts_what_may_run_and_resume_starts_what_has_not_finished(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("model=tiny", "script=train.py", "cluster.gpus_per_node=1", "run.name=s", "optimizer.lr=0.25,0.5,-1")
    done = launch(tmp_path, "-m", "--json", *words)
    assert done.returncode == 5, done.stderr
    content = json.loads(done.stdout)
    assert content["sweep"] == {"id": "s", "directory": str(tmp_path / "runs" / "s")}
    runs = [point.get("run") for point in content["points"]]
    assert [(run["id"], run["state"]) for run in runs[:2]] == [("s/000", "finished"), ("s/001", "failed")]
    assert (runs[2], content["points"][2]["verdict"]) == (None, "invalid")
    assert content["points"][2]["reason"].startswith("optimizer.lr=-1: ")
    job = json.loads((tmp_path / "runs" / "s" / "000" / "submission.json").read_text())["job_id"]

    with one_at_a_time(tmp_path / "runs" / "s"):
        refused = launch(tmp_path, "resume", "s")
    text = "launch: another launch command is already starting runs of s"
    assert (refused.returncode, refused.stderr.strip()) == (4, text)
    resumed = launch(tmp_path, "resume", "s")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads((tmp_path / "runs" / "s" / "000" / "submission.json").read_text())["job_id"] == job
    rows = json.loads(launch(tmp_path, "status", "s", "--json").stdout)["runs"]
    assert [(row["id"], row["state"], row["loss"]) for row in rows] == [
        ("s/000", "finished", 0.125),
        ("s/001", "finished", 0.25),
        ("002", None, None),
    ]
    assert "the learning rate" not in launch(tmp_path, "status", "s").stdout
    assert "all runs of s are finished" in launch(tmp_path, "resume", "s").stderr
    again = launch(tmp_path, "-m", *words)
    assert again.returncode == 4
    assert "launch resume s" in again.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("without_torch")
def test_a_sampler_runs_its_budget_and_leaves_out_what_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("model=tiny", "script=train.py", "cluster.gpus_per_node=1", "run.name=s", "optimizer.lr=0.1,0.25,-1")
    done = launch(tmp_path, "-m", "--json", *words, "sweep.sampler=tpe", "sweep.budget=5")
    assert done.returncode == 0, done.stderr
    assert "the search space is exhausted" in done.stderr
    rows = sweep.rows(tmp_path / "runs" / "s")
    states = {row.point.overrides[0]: row.run and row.run.state for row in rows}
    assert states == {"optimizer.lr=0.1": "finished", "optimizer.lr=0.25": "finished", "optimizer.lr=-1": None}


def test_check_says_that_a_sampler_draws_later_and_its_way_out_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "-m", "model=tiny", "sweep.sampler=tpe", "sweep.budget=2"]
    assert main([*words, "optimizer.lr=interval(1e-4,1e-3)", "--json"]) == 2
    printed = capsys.readouterr()
    assert "check -m checks a grid, and tpe draws from this only when the sweep runs" in " ".join(printed.err.split())
    way = json.loads(printed.out)["errors"][0]["way_out"][0]
    assert main([*words, way, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["points"]) == 2


def test_a_run_that_goes_on_is_not_submitted_twice(tmp_path: Path) -> None:
    state.put(tmp_path, "running", keeper=Process.here().as_dict())
    with pytest.raises(SubmitError) as caught:
        resubmit(tmp_path, make_spec("model=tiny"))
    assert str(caught.value) == f"{tmp_path.name} is running: cancel it first, or wait"
    assert (tmp_path / "state.json").exists(), "what the other launcher has begun stays"
