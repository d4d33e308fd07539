"""`launch resume RUN KEY=VALUE` and `save.load=RUN`: what goes on, what stays the same, what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import submitit  # noqa: F401  # It closes the handlers that logging has when it is imported, and absl's closes stderr.

from launcher.base import machine
from launcher.preflight import stored
from launcher.rundir import state
from tests.support import resuming, training
from tests.support.helpers import CPU_HOST, make_spec
from tests.support.recorded_runs import swept
from tests.support.slurm_runs import launch

BATCH = 12
"""Sequences of one step: 4, 2, 3 and 1 ranks share them out evenly."""

BASE = (
    *training.SMALL,
    "model.num_hidden_layers=1",
    f"train.global_batch_size={BATCH}",
    "train.micro_batch_size=3",
    "optimizer.schedule=constant",
    "save.last=true",
    "hardware=cpu",
)
WAYS = [
    pytest.param((4, 2, 3, 1), ("parallel=fsdp",), id="fsdp"),
    pytest.param((4, 2, 3, 1), ("parallel=ddp",), id="ddp", marks=pytest.mark.matrix),
    pytest.param((4, 2, 3, 1), ("parallel=zero2",), id="zero", marks=pytest.mark.thorough),
    # Each rank of Megatron takes seconds to begin, so the ways down, up and to one are those of fewer.
    pytest.param((2, 3, 1), ("backend=megatron", "parallel=ddp"), id="megatron", marks=pytest.mark.thorough),
]
TOLERANCE = 2e-5
"""Relative: fp32 sums in another order, and in another engine."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    return tmp_path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that nobody interrupts."""
    words = (*BASE, "parallel=ddp", "train.steps=4")
    return training.train_all(tmp_path_factory.mktemp("reference"), {"whole": words}, ranks=1)["whole"]


@pytest.mark.parametrize(("ranks", "way"), WAYS)
def test_on_fewer_more_and_one_rank_a_run_trains_what_it_would_have_on_one(
    ranks: tuple[int, ...], way: tuple[str, ...], reference: list[float], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.by_agents(monkeypatch)
    answer = launch(*BASE, *way, "run.name=a", f"cluster.gpus_per_node={ranks[0]}", "train.steps=1")
    assert answer.status == 0, answer.err
    for steps, count in enumerate(ranks[1:], 2):
        answer = launch("resume", "a", f"cluster.gpus_per_node={count}", f"train.steps={steps}")
        assert answer.status == 0, answer.err
    numbers = range(1, len(ranks) + 1)
    assert training.losses(folder / "runs" / "a") == pytest.approx(reference[: len(ranks)], rel=TOLERANCE)
    assert [line["step"] for line in training.lines(folder / "runs" / "a")] == [*numbers]
    made = _json(folder / "runs" / "a" / "changes.json")["changes"]
    assert [(entry["step"], entry["before"]) for entry in made] == [(n, f"settings/{n}") for n in numbers[:-1]]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of four steps on four ranks, with checkpoints of steps 2 and 4, of which the first is better."""
    resuming.by_nobody(monkeypatch, steps=(2, 4))
    answer = launch(*BASE, "run.name=a", "cluster.gpus_per_node=4", "train.steps=4")
    assert answer.status == 0, answer.err
    return folder / "runs" / "a"


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _said(*words: str) -> str:
    """All that a command said, with its lines joined."""
    answer = launch(*words)
    return f"{answer.status} " + " ".join((answer.out + answer.err).split())


@pytest.mark.parametrize(
    ("word", "step"),
    [
        ("runs/a", 4),
        ("a", 4),
        ("1", 4),
        ("a@2", 2),
        ("runs/a@2", 2),
        ("a@best", 2),
        ("runs/a/checkpoints", 4),
        ("runs/a/checkpoints/step-00000002", 2),
    ],
)
def test_a_run_starts_from_what_a_word_means(run: Path, word: str, step: int) -> None:
    answer = launch("check", *BASE, "train.steps=9", f"save.load={word}")
    assert answer.status == 0, answer.out
    assert f"save.load={word} is {run}/checkpoints/step-{step:08d} (step {step})" in answer.err
    assert launch(*BASE, "train.steps=9", "run.name=b", f"save.load={word}").status == 0
    recorded = _json(run.with_name("b") / "spec.json")["save"]["load"]
    assert recorded == f"{run}/checkpoints/step-{step:08d}", "the job starts from what was shown"


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("save.load=a@3", "has no complete checkpoint of this step; the run has steps 2, 4 try save.load=a@2"),
        ("save.load=a@last", "names no checkpoint after @: a step, or best; the run has steps 2, 4"),
        ("save.load=nope", "is neither a run (directory, name or id) nor a checkpoint try save.load=a"),
        ("save.load=a train.steps=4", "the checkpoint is of step 4, and steps count from there: nothing"),
        (
            "save.load=a train.global_batch_size=null",
            "train.global_batch_size: the checkpoint's run had 12 sequences per step, and without "
            "train.global_batch_size this one has 6, derived from its ranks: with the same learning rate the "
            "training would differ try train.global_batch_size=12",
        ),
        ("save.load=a model.hidden_size=128", "the checkpoint holds tensors of model.hidden_size=64 try model.hidden"),
        ("save.load=a train.seed=5", "train.seed=5: the checkpoint's position in the data is based on train.seed="),
        ("save.load=a parallel=zero1", "the checkpoint was written by backend=fsdp, and an engine reads only its own"),
    ],
)
def test_a_checkpoint_that_a_run_cannot_start_from_is_refused_before_the_queue(words: str, said: str) -> None:
    found = _said("check", *BASE, "train.steps=9", *words.split())
    assert found.startswith("2 ")
    assert said in found


def test_a_checkpoint_that_only_the_nodes_see_is_left_to_them(folder: Path) -> None:
    words = ("cluster=slurm", "train.global_batch_size=24", "save.load=/data/runs/a@100")
    found = _said("check", *BASE, *words)
    assert found.startswith("0 ")
    assert "save.load=/data/runs/a@100: there is no such file or folder on this machine; the nodes" in found


def test_of_several_checkpoints_none_is_guessed(folder: Path) -> None:
    for name in ("first", "second"):
        swept(folder / "runs" / name, {"1e-3": 2.0})
    words = ("check", "model=tiny", "save.load=000@2")
    refused = (
        "save.load=000@2: 2 runs match this name, and launch does not guess "
        "try save.load=first/000@2 or save.load=second/000@2"
    )
    assert refused in _said(*words)
    assert refused in _said(*words, "cluster=slurm")


def test_a_point_of_a_sweep_starts_from_a_run_too(run: Path) -> None:
    found = _said("check", "-m", *BASE, "train.steps=9", "save.load=a@2,a@3", "--json")
    assert found.startswith("0 ")
    assert "has no complete checkpoint of this step; the run has steps 2, 4" in found


def test_a_finished_run_goes_on_with_changed_settings_which_are_shown_and_kept(run: Path) -> None:
    assert "`launch resume a train.steps=8` continues it" in launch("resume", "a").err
    answer = launch("resume", "a", "train.steps=8", "optimizer.lr=1e-5", "checkpointing=full")
    assert answer.status == 0, answer.err
    assert answer.err.splitlines()[-5:] == [
        "launch: a continues from step 4 with changed settings; earlier ones are kept in settings/",
        "  checkpointing.mode: none -> full",
        "  optimizer.lr: 0.003 -> 1e-05",
        "  train.steps: 4 -> 8",
        "  learning rates from step 5 on follow the schedule with these settings",
    ]
    (change,) = _json(run / "changes.json")["changes"]
    assert change["changes"][2] == {"path": "train.steps", "before": 4, "after": 8}
    assert (change["step"], change["before"]) == (4, "settings/1")
    assert _json(run / "settings" / "1" / "spec.json")["train"]["steps"] == 4
    assert {path.name for path in (run / "settings" / "1").iterdir()} == {
        "spec.json",
        "plan.json",
        "job.json",
        "run.lock.yaml",
    }
    assert _json(run / "spec.json")["optimizer"]["lr"] == 1e-5
    words = _json(run / "plan.json")["overrides"]
    assert "train.steps=4" not in words
    assert words[-3:] == ["train.steps=8", "optimizer.lr=1e-5", "checkpointing=full"]
    assert "steps: 8\n" in (run / "run.lock.yaml").read_text()
    assert launch("recipe", "save", "mine", "--run", "a").status == 0
    assert "train.steps: 8" in Path("recipes/mine.yaml").read_text()


def test_on_other_ranks_the_batch_stays_and_its_micro_batches_change_where_they_must(run: Path) -> None:
    answer = launch("resume", "a", "cluster.gpus_per_node=3", "train.steps=8")
    assert answer.status == 0, answer.err
    spec = _json(run / "spec.json")
    assert (spec["train"]["global_batch_size"], spec["train"]["micro_batch_size"]) == (12, 2)
    assert "  train.micro_batch_size: 3 -> 2" in answer.err
    found = _said("resume", "a", "cluster.gpus_per_node=5", "train.steps=9")
    assert found.startswith("2 ")
    rule = (
        "5 ranks cannot evenly split the run's global batch of 12 sequences, and "
        "another batch would change the training"
    )
    assert f"cluster.gpus_per_node=5: {rule} try cluster.gpus_per_node=6" in found


def test_a_batch_that_followed_from_the_ranks_is_written_down_when_these_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming.by_nobody(monkeypatch, steps=(2, 4))
    words = [word for word in BASE if not word.startswith("train.global_batch_size")]
    assert launch(*words, "run.name=b", "cluster.gpus_per_node=2", "train.steps=4").status == 0
    answer = launch("resume", "b", "cluster.gpus_per_node=1", "train.steps=8")
    assert "  train.global_batch_size: null -> 6" in answer.err
    assert _json(folder / "runs" / "b" / "spec.json")["train"]["global_batch_size"] == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train.steps=3", "train.steps=3: the run has already done 4 steps try train.steps=8"),
        (
            "optimizer.lr=1",
            "train.steps=4: the run finished at step 4: set more steps to continue it, or save.exp",
        ),
        ("model.num_hidden_layers=2", "the checkpoint holds tensors of model.num_hidden_layers=1 try model.num_hidden"),
        ("optimizer.name=sgd", "the checkpoint holds tensors of optimizer.name=adamw try optimizer.name=adamw"),
        ("model.initializer_range=1", "the model comes from the run's own checkpoint, which this would not change"),
        (
            "train.seed=3",
            "with another value some samples would be repeated and others never seen; a new run can start",
        ),
        ("train.sequence_length=16", "the checkpoint's position in the data is based on train.sequence_length=32"),
        ("data.shuffle=false", "the checkpoint's position in the data is based on data.shuffle=true"),
        ("data=text", "data.source=text: the run's position in the data counts these samples"),
        ("train.eval_every=2", "it determines whether samples are held out, and so which are trained on"),
        ("save.load=a@2", "it continues from its own newest checkpoint: launch run --from RUN save.load=RUN@STEP"),
        ("run.name=b", "a resumed run stays in its own directory: `launch run --from RUN` starts a copy"),
        ("model=7b", "a recorded run has all settings fixed: set single keys of this group"),
        ("train.stepz=3", "train.stepz"),
    ],
)
def test_a_change_that_a_checkpoint_cannot_follow_is_refused_and_changes_nothing(
    run: Path, words: str, said: str
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    found = _said("resume", "a", *words.split())
    assert found.startswith("2 ")
    assert said in found
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_settings_are_changed_for_one_run_that_is_not_running_and_still_fits(run: Path) -> None:
    assert "settings can be changed for only one run at a time try launch resume a train.steps=8" in _said(
        "resume", "a", "runs/a", "train.steps=8"
    )
    found = _said("resume", "a", "train.steps=8", "hardware.memory_bytes=1000")
    assert found.startswith("3 ")
    assert "not resumed, because it does not fit with these settings; the run is unchanged" in found
    state.put(run, "running")
    assert "a is running: `launch cancel a` first, or wait for it to end" in _said("resume", "a", "train.steps=8")
    assert not (run / "changes.json").exists()


@pytest.mark.parametrize(
    ("engine", "words", "said"),
    [
        ("parallel=zero3", "zero=2", "zero.stage=2: the checkpoint was written with ZeRO 3 and this run has ZeRO 2"),
        ("parallel=zero2", "precision=bf16", "precision.compute=bf16: the checkpoint was trained in fp32"),
        (
            "backend=megatron",
            "train.global_batch_size=24",
            "it counts its position in data and schedule in steps of one",
        ),
    ],
)
def test_what_an_engine_cannot_read_in_another_form_is_refused_before_the_queue(
    monkeypatch: pytest.MonkeyPatch, engine: str, words: str, said: str
) -> None:
    resuming.by_nobody(monkeypatch, steps=(2, 4))
    answer = launch(*BASE, engine, "run.name=b", "cluster.gpus_per_node=2", "train.steps=4", "--no-native")
    assert answer.status == 0, answer.err
    assert said in _said("resume", "b", "train.steps=8", *words.split())


def _weights(folder: Path, *overrides: str) -> Path:
    """A Hugging Face folder of a model, without its tensors' bytes but for holes in the file."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in (stored.expected(make_spec(*overrides).model) or {}).items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    folder.mkdir()
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


def test_weights_of_another_model_are_said_before_the_queue(folder: Path) -> None:
    _weights(folder / "small", *training.SMALL)
    deeper = ("model.num_hidden_layers=4", "model.intermediate_size=128")
    assert _said("check", *BASE, "model.num_hidden_layers=2", "model.weights=small").startswith("0 ")
    found = _said("check", *BASE, *deeper, "model.weights=small")
    assert found.startswith("2 ")
    assert (
        "error: model.weights=small: lacks 18 tensors of this model (model.layers.2.input_layernorm.weight, "
        "model.layers.2.self_attn.q_proj.weight, model.layers.2.self_attn.k_proj.weight and 15 more); has 6 of another "
        "shape (model.layers.0.mlp.gate_proj.weight: [96, 64] found, [128, 64] expected, "
    ) in found
    assert "try model.num_hidden_layers=2 model.intermediate_size=96 or model.weights=null" in found
    shallow = _said("check", *BASE, "model.intermediate_size=128", "model.weights=small")
    assert "has 9 unknown to it (model.layers.1.input_layernorm.weight" in shallow
    (folder / "small" / "model.safetensors").write_bytes(b"half a file")
    assert "model.safetensors is not a safetensors file, or is damaged" in _said("check", *BASE, "model.weights=small")


def test_a_recipe_is_saved_from_a_run_that_repeats_another(run: Path) -> None:
    answer = launch("run", "--from", "a", "train.seed=9", "run.name=b", "cluster.gpus_per_node=2")
    assert answer.status == 0, answer.err
    assert launch("recipe", "save", "mine", "--run", "b").status == 0
    again = make_spec("recipe=mine", "run.name=b")
    assert again == make_spec(*BASE, "train.steps=4", "train.seed=9", "run.name=b", "cluster.gpus_per_node=2")
