"""Real runs of ``launch``, with their memory compared with the prediction: TRL's tasks, and adapters."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import training
from benchmarks.gpu.compared import ratios
from benchmarks.gpu.document import Document
from benchmarks.gpu.session import Session

SECONDS = 25.0
"""Expected seconds of one run on an H100, its start included."""

_RUN = ("precision=bf16", "parallel=fsdp", "train.steps=10", "save.last=false", "cluster.gpus_per_node=1")
_ONE = "train.micro_batch_size=1"
_ROWS = "data=rows"
TASKS = {
    "dpo by TRL": ("task=dpo", _ROWS, _ONE),
    "dpo of an adapter by TRL": ("task=dpo", _ROWS, _ONE, "adapter=lora"),
    "kto by TRL": ("task=kto", _ROWS, "train.micro_batch_size=2"),
    "reward by TRL": ("task=reward", _ROWS, _ONE),
    "sft of an adapter by TRL": ("task=sft", "adapter=lora"),
    "lora, checkpointing full": ("adapter=lora", "checkpointing=full"),
}
"""Name and what sets it apart."""


def measure(session: Session, document: Document, scratch: Path, size: Sequence[str]) -> None:
    """Run each task and write its measured memory beside the prediction."""
    for number, (name, own) in enumerate(TASKS.items()):
        directory = scratch / "tasks" / str(number)
        directory.mkdir(parents=True)
        row = _row(session, document, name, [*size, *_RUN, *own], directory)
        document.add("tasks", row)
        print(f"{name}: {row['error'] or row['ratio']}", flush=True)


def _row(session: Session, document: Document, name: str, words: list[str], directory: Path) -> dict[str, Any]:
    earlier = document.earlier("tasks", name, words)
    if earlier is not None:
        return earlier
    row: dict[str, Any] = {"name": name, "overrides": words, "predicted": None, "measured": None, "error": None}
    if session.left < SECONDS:
        return {**row, "error": session.over}
    began, run = time.monotonic(), directory / "run"
    try:
        done = training.call(
            ["-m", "launcher", "--json", *words, *data(directory, words), f"run.directory={run}"], directory
        )
    except subprocess.TimeoutExpired as error:
        return {**row, "error": f"not done after {error.timeout:.0f} s"}
    seconds = round(time.monotonic() - began, 1)
    if done.returncode != 0:
        return {**row, "seconds": seconds, **training.failure(done)}
    check = json.loads(done.stdout)["check"]
    [rank] = json.loads((run / "memory.json").read_text())["ranks"]
    said = {"static_bytes": check["static_bytes"], "phases": check["phases"]}
    said |= {f"peak_{name}": check["peak"][name] for name in ("allocated_bytes", "reserved_bytes")}
    return {**row, "seconds": seconds, "predicted": said, "measured": rank, "ratio": ratios(said, rank)}


def data(directory: Path, words: list[str]) -> list[str]:
    """Preference data: a file in which every answer is about as long as its row."""
    if _ROWS not in words:
        return []
    [length] = (int(word.partition("=")[2]) for word in words if word.startswith("train.sequence_length="))
    path = directory / "rows.jsonl"
    with path.open("w") as file:
        for number in range(64):
            prompt = f"{number:02}? "  # A character is a token; a reward model drops what is longer than its row.
            yes, no = ((f"{word} {number} " * length)[: length - len(prompt) - 4] for word in ("yes", "no"))
            good = number % 2 == 0
            answer = {"completion": yes, "label": good} if "task=kto" in words else {"chosen": yes, "rejected": no}
            file.write(json.dumps({"prompt": prompt, **answer}) + "\n")
    return [f"data.path={path}"]
