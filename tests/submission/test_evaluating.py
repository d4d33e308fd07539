"""Tasks of lm-evaluation-harness on the model that a run has exported: real runs, and a task of a file of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.base.machine import facts
from launcher.preflight.assess import assess
from launcher.preflight.this_machine import obstacles
from launcher.rundir import results
from launcher.submission import ending
from launcher.views import pairs
from launcher.worker import evaluate
from tests.support import torchrun
from tests.support.helpers import make_spec, needs

needs("torch", "a run trains")
needs("lm_eval", "tasks are tried by the extra 'eval'")

LAUNCH = str(Path(sys.executable).with_name("launch"))
TASK = """
task: words
dataset_path: json
dataset_kwargs:
  data_files: {test: words.jsonl}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
doc_to_choice: ["yes", "no"]
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
ROWS: list[dict[str, Any]] = [{"question": f"Is {number} an even number?", "answer": number % 2} for number in range(8)]
SMALL = ("model=tiny", "model.num_hidden_layers=1", "cluster.gpus_per_node=1", "train.steps=2", "run.name=a")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "words.yaml").write_text(TASK)
    (tmp_path / "words.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return tmp_path


@pytest.fixture
def forked(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ranks and a torchrun that are there at once, where tasks are the subject: the folder that has them."""
    found = torchrun.without_torch(tmp_path_factory.mktemp("torchrun"), forked=True)
    monkeypatch.setenv("PYTHONPATH", str(found))
    return found


def launched(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LAUNCH, *SMALL, *words], cwd=folder, capture_output=True, text=True, check=False)


def asked_of_the_export(export: Path) -> float:
    """The share of questions whose right answer is the likelier one, by the logits of ``transformers``' own model."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(export)

    def likelihood(question: str, answer: str) -> float:
        ids = torch.tensor([[*question.encode(), *answer.encode()]])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0].log_softmax(-1)
        rest = range(len(question.encode()) - 1, ids.shape[1] - 1)
        return sum(float(logits[place, ids[0, place + 1]]) for place in rest)

    right = [likelihood(row["question"], " yes") < likelihood(row["question"], " no") for row in ROWS]
    return sum(said is bool(row["answer"]) for said, row in zip(right, ROWS, strict=True)) / len(ROWS)


@pytest.mark.thorough
def test_the_export_of_a_finished_run_is_tried_on_a_task_of_one_s_own(folder: Path) -> None:
    done = launched(folder, "parallel=ddp", "data=synthetic", "save.export=safetensors", "eval.tasks=[words.yaml]")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "runs/a/evaluation.json").read_text())
    assert found["tasks"]["words"]["acc,none"] == asked_of_the_export(folder / "runs/a/export")
    assert f"words acc {found['tasks']['words']['acc,none']:.4f} (+-" in done.stdout
    assert json.loads((folder / "runs/a/state.json").read_text())["state"] == "finished"


@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
def test_a_task_that_fails_fails_the_job_and_leaves_the_export(folder: Path) -> None:
    (folder / "words.jsonl").unlink()
    done = launched(folder, "parallel=ddp", "data=synthetic", "save.export=safetensors", "eval.tasks=[words.yaml]")
    assert done.returncode == 5
    assert "eval.tasks failed, after training and export: FileNotFoundError" in done.stderr
    assert (folder / "runs/a/export/config.json").is_file()


@pytest.mark.thorough
def test_a_stop_while_tasks_are_tried_lets_the_run_go_on_there(folder: Path, forked: Path) -> None:
    (folder / "slow.py").write_text(
        "import time\ndef wait(rows):\n    open('began', 'w').close()\n    time.sleep(600)\n"
    )
    (folder / "words.yaml").write_text(f"{TASK}process_docs: !function slow.wait\n")
    words = (*SMALL, "parallel=ddp", "data=synthetic", "save.export=safetensors", "eval.tasks=[words.yaml]")
    environment = {**os.environ, "PYTHONPATH": f"{forked}:{folder}"}
    with subprocess.Popen([LAUNCH, *words], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as run:
        until = time.monotonic() + 300
        while not (folder / "began").exists() and time.monotonic() < until:
            time.sleep(0.2)
        subprocess.run([LAUNCH, "cancel", "a"], cwd=folder, check=True, capture_output=True)
        run.wait(60)
    assert json.loads((folder / "runs/a/state.json").read_text())["state"] == "cancelled"
    assert json.loads((folder / "runs/a/logs/outcome.json").read_text())["state"] == "interrupted"


@pytest.mark.thorough
@pytest.mark.usefixtures("forked")
def test_an_adapter_that_trl_has_trained_is_tried_beside_its_weights(folder: Path) -> None:
    (folder / "talk.jsonl").write_bytes((Path(__file__).parent.parent / "support" / "talk.jsonl").read_bytes())
    assert launched(folder, "parallel=ddp", "data=synthetic", "save.export=safetensors").returncode == 0
    (folder / "runs/a").rename(folder / "runs/first")
    words = (
        "parallel=ddp",
        "task=sft",
        "adapter=lora",
        "model.weights=runs/first/export",
        "data=chat",
        "data.path=talk.jsonl",
    )
    done = launched(folder, *words, "save.export=safetensors", "eval.tasks=[words.yaml]", "eval.limit=4")
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "runs/a/evaluation.json").read_text())
    assert found["tasks"]["words"]["sample_len"] == 4


@pytest.mark.parametrize(
    ("text", "alone"),
    [(TASK, True), ("group: words\ntask: [arc_easy]\n", False), ("include: arc_easy.yaml\ntask: words\n", False)],
)
def test_the_harness_looks_for_its_own_tasks_unless_a_file_stands_alone(
    tmp_path: Path, text: str, *, alone: bool
) -> None:
    (tmp_path / "words.yaml").write_text(text)
    assert evaluate._stands_alone(str(tmp_path / "words.yaml")) is alone
    assert not evaluate._stands_alone("arc_easy")


def test_scores_are_told_with_their_filters_and_errors(tmp_path: Path) -> None:
    scores = {"acc,none": 0.5, "acc_stderr,none": 0.25, "exact_match,strict-match": 0.125, "name": "gsm8k"}
    (tmp_path / results.EVALUATION).write_text(json.dumps({"step": 9, "tasks": {"gsm8k": scores}}))
    assert list(pairs.task_lines(tmp_path)) == [
        "gsm8k acc 0.5000 (+-0.2500) after step 9",
        "gsm8k exact_match (strict-match) 0.1250 after step 9",
    ]
    assert list(pairs.task_lines(tmp_path / "none")) == []


def test_an_interrupted_evaluation_leaves_the_step_of_the_outcome(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/outcome.json").write_text(json.dumps({"state": "finished", "step": 9}))
    ending.interrupt(tmp_path)
    assert json.loads((tmp_path / "logs/outcome.json").read_text()) == {"state": "interrupted", "step": 9}


def test_a_model_that_one_node_cannot_hold_is_warned_of() -> None:
    words = ("hardware=h100_80g", "cluster.nodes=64", "cluster.gpus_per_node=8", "save.export=safetensors")
    for model, warned in (("llama3_405b", True), ("llama3_70b", False)):
        spec = make_spec(f"model={model}", *words, "eval.tasks=[mmlu]")
        found = [each.path for each in assess(spec, search=None).warnings]
        assert ("eval.tasks" in found) is warned


def test_a_name_that_the_harness_lacks_is_refused_before_the_run() -> None:
    spec = make_spec("save.export=safetensors", "eval.tasks=[helaswag,mmlu_*,arc_easy,none.yaml]")
    found = [each for each in obstacles(spec, facts()) if each.path == "eval.tasks"]
    assert [(each.found, each.way_out[:1]) for each in found] == [
        ("helaswag", ("eval.tasks=[hellaswag]",)),
        ("none.yaml", ("eval.tasks=[]",)),
    ]
