"""Runs of other programs' files: each keeps every rule as it is, and trains when it is shrunk."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.actions.importing import read
from launcher.config.ledger import Imported
from launcher.config.request import request
from launcher.preflight import findings
from tests.support import cover
from tests.support.helpers import needs
from tests.support.peer_files import FILES, identity
from tests.support.training import train_all


def words_here(found: Imported) -> list[str]:
    """The words of a run with a model that is shipped in place of one of the Hub, on a cluster of its size."""
    typed = [word for word in found.overrides if not word.startswith(("data.tokenizer", "model.weights"))]
    here = {"A3B": "qwen3_30b_a3b", "70B": "llama3_70b"}
    for place, word in enumerate(typed):
        if word.startswith("model=") and "/" in word:
            typed[place] = f"model={next((name for part, name in here.items() if part in word), 'llama3_8b')}"
    samples = [f"data.samples={10**6}"] if any(word.startswith("train.epochs") for word in typed) else []
    return [*typed, *samples, "hardware=b200", *cluster(typed)]


def cluster(words: Sequence[str]) -> list[str]:
    """Nodes of 8 GPUs, as many as its degrees or its batch ask for."""
    typed = dict(word.split("=", 1) for word in words)
    names = ("tensor", "pipeline", "context", "ulysses", "replicate")
    ranks = math.prod(int(typed.get(f"parallel.{name}", 1)) for name in names)
    if any(key.startswith("cluster.") for key in typed):
        return []
    if {"train.global_batch_size", "train.gradient_accumulation"} <= typed.keys():
        micro = int(typed["train.micro_batch_size"]) * int(typed["train.gradient_accumulation"])
        ranks *= int(typed["train.global_batch_size"]) // micro
    else:
        ranks = max(ranks, 8)
    return [f"cluster.gpus_per_node={min(ranks, 8)}", f"cluster.nodes={max(1, ranks // 8)}"]


REFUSED = {
    "torchtitan-llama3_405b.toml": "this version does not split linear layers in fp8 over tensor parallel ranks",
}
"""Runs that no engine here trains, and the rule."""


@pytest.mark.thorough
@pytest.mark.parametrize("path", FILES, ids=identity)
def test_an_imported_run_keeps_every_rule(path: Path) -> None:
    found = read(path.parent.name, path, {})
    if any(left.effect.startswith("launch has no setting") for left in found.left_out):
        pytest.skip("it says more than there are settings for")
    asked = request(words_here(found))
    assert [str(error) for error in asked.errors] == []
    broken = [str(error) for error in findings.broken_rules(asked.require())]
    expected = REFUSED.get(identity(path))
    assert all(expected is not None and expected in error for error in broken), broken
    assert bool(broken) == (expected is not None)


OURS = (
    "model=", "model.", "data=", "data.", "cluster.", "hardware", "tracking", "task", "backend.extra", "parallel.",
    "run.",
    "save.", "train.loss=fused", "train.sequence_length", "train.micro_batch_size", "train.global_batch_size",
    "train.steps",
    "train.gradient_accumulation", "train.epochs", "train.eval", "optimizer.warmup_steps", "optimizer.decay_steps",
    "optimizer.wsd_decay_steps",
)  # fmt: skip
"""Words of an import that a run in the tests has in another size, or without a GPU and the network."""

UNLIKE_HERE = ("train.compile=", "train.kernels=")  # A compiler of minutes, and kernels of a GPU, with the same maths.
NOT_ON_THE_CPU = ("precision=fp8", "precision=mxfp8", "task=grpo")
"""Words of files whose numbers are of a GPU, or whose task generates answers for minutes."""

TASKS = ("task=dpo", "task=kto", "task=reward")
ROWS = [
    {"prompt": f"{n} + {n}?", "chosen": f" {2 * n}", "rejected": f" {2 * n + 1}, or so"} for n in range(24)
]  # fmt: skip
JUDGED = [{"prompt": f"{n} + {n}?", "completion": f" {2 * n + n % 2}", "label": n % 2 == 0} for n in range(24)]


def shrunk(path: Path, folder: Path) -> tuple[str, tuple[str, ...]]:
    """The engine of a file's run, and its words in the size of a test; rows of its task stand in the folder."""
    found = read(path.parent.name, path, {}).overrides
    preset = next((word for word in found if word.startswith("parallel=")), "parallel=fsdp")
    engine = "fsdp" if preset in ("parallel=fsdp", "parallel=ddp") else "deepspeed" if "zero" in preset else "megatron"
    words = [word for word in found if not word.startswith((*OURS, *UNLIKE_HERE))]
    names = (("tensor", 2), ("pipeline", 1), ("context", 1), ("expert", 1))
    words += [f"parallel.{name}={degree}" for name, degree in names] if engine == "megatron" else []
    words += ["train.steps=3", "train.micro_batch_size=1", "train.global_batch_size=2"]
    if task := set(TASKS) & set(found):
        rows = folder / ("judged.jsonl" if task == {"task=kto"} else "rows.jsonl")
        rows.write_text("".join(json.dumps(row) + "\n" for row in (JUDGED if task == {"task=kto"} else ROWS)))
        words = [word for word in words if not word.startswith("parallel=")]
        own = ("data=rows", f"data.path={rows}", "train.sequence_length=33", "parallel=ddp")
        return "trl", (*words, *task, *own, "train.micro_batch_size=2", "train.global_batch_size=4")
    return engine, tuple(words)


@pytest.mark.thorough
@pytest.mark.parametrize("cases", cover.marked(["choices", "pairs", "further"], cover.Chosen(["choices"], ["pairs"])))
@pytest.mark.parametrize(("engine", "fewest"), [("fsdp", 41), ("deepspeed", 7), ("megatron", 18), ("trl", 8)])
def test_the_files_of_each_program_train_when_they_are_shrunk(
    engine: str, fewest: int, cases: str, tmp_path: Path
) -> None:
    """All that the CPU can train: those with every choice, those that add a pair of choices, and the further ones."""
    if engine == "trl":
        needs("trl", "its runs need the extra 'trl'")
    runs = {}
    for path in FILES:
        its_own, words = shrunk(path, tmp_path)
        half = engine == "deepspeed" and "precision=fp16" in words
        if its_own == engine and not half and not set(NOT_ON_THE_CPU) & set(read(path.parent.name, path, {}).overrides):
            runs[identity(path)] = words
    assert len(runs) >= fewest
    covering = cover.both({name: set(words) for name, words in runs.items()})
    first, pairs = set(covering.first), set(covering.pairs)
    of_case = {"choices": first, "pairs": pairs - first, "further": set(runs) - pairs}[cases]
    runs = {name: words for name, words in runs.items() if name in of_case}
    for name, losses in train_all(tmp_path, runs, ranks=2).items():
        assert len(losses) == 3, name
        assert all(0 < loss < 7 for loss in losses), (name, losses)
        assert engine == "trl" or min(losses) > 4, (name, losses)
