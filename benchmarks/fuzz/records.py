"""Cases of run directories and locks with changed files, read by every verb that starts nothing."""

from __future__ import annotations

import json
import random
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.fuzz import mutation
from benchmarks.fuzz.case import Case
from launcher import api
from launcher.rundir import contents, record

_WORDS = ("model=tiny", "parallel=fsdp", "cluster.gpus_per_node=2", "hardware.device=cpu", "data=synthetic")
_STEPS: list[dict[str, Any]] = [
    {
        "step": step,
        "loss": 5.0 - step,
        "grad_norm": 1.0,
        "learning_rate": 1e-3,
        "tokens_per_second": 100.0,
        "step_seconds": 2.0,
    }
    for step in (1, 2, 3)
]
_LEFT_BY_A_JOB: dict[str, Any] = {
    "state.json": {
        "state": "running",
        "time": 1.7e9,
        "keeper": {"pid": 7, "start": 7, "boot": "b", "namespace": "pid:[1]", "host": "h"},
        "agent": {"pid": 8, "start": 8, "boot": "b", "namespace": "pid:[1]", "host": "h"},
    },
    "submission.json": {"kind": "local", "job_id": "7"},
    "attempts.json": {"count": 2, "fruitless": 1, "checkpoint": 0, "allocation": "7_1"},
    "memory.json": {"ranks": [{"rank": 0, "peak_bytes": 1000}]},
    "changes.json": [{"step": 2, "changes": [{"key": "train.steps", "old": 2, "new": 3}]}],
    "not_submitted.json": {"reason": "no Slurm"},
    "logs/error.rank0.json": {"type": "ValueError", "message": "no", "traceback": "Traceback ..."},
    "logs/saving_paused.json": {"since": 1, "step": 2, "reason": "the disk is full", "time": 1.7e9},
    "heartbeat.json": {"process": {"pid": 7, "start": 7, "boot": "b", "namespace": "pid:[1]", "host": "h"}},
    "logs/outcome.json": {"state": "interrupted", "step": 2},
}
_VERBS = (
    ("status",),
    ("status", "--json"),
    ("status", "fuzzed"),
    ("logs", "fuzzed"),
    ("logs", "fuzzed", "--all", "--json"),
    ("compare", "fuzzed", "whole"),
    ("compare", "whole", "fuzzed", "--json"),
    ("resume", "fuzzed", "train.steps=0"),
)
_LOCK_VERBS = (
    ("recipe", "diff", "fuzzed.yaml", "runs/whole/run.lock.yaml"),
    ("recipe", "show", "fuzzed.yaml"),
    # This name is taken, so that a lock which can be read is refused all the same, before anything starts.
    ("run", "--from", "fuzzed.yaml", "run.name=whole", "run.directory=null", "--no-native"),
)


def draw(chance: random.Random) -> Case:
    """A run directory with one or two changed files, next to an intact one."""
    whole = _files()
    files = {f"runs/whole/{name}": content for name, content in whole.items()}
    changed = {name: content for name, content in whole.items() if name not in _LEFT_BY_A_JOB or chance.random() < 0.7}
    for name in chance.sample(sorted(changed), chance.choice((1, 1, 2))):
        changed[name] = _changed(chance, name, changed[name])
    files |= {f"runs/fuzzed/{name}": content for name, content in changed.items()}
    return Case(source="records", words=chance.choice(_VERBS), files=files)


def draw_lock(chance: random.Random) -> Case:
    """A lock that was changed."""
    files = {f"runs/whole/{name}": content for name, content in _files().items()}
    files["fuzzed.yaml"] = mutation.text(chance, _files()[contents.LOCK])
    return Case(source="locks", words=chance.choice(_LOCK_VERBS), files=files)


def _changed(chance: random.Random, name: str, content: bytes) -> bytes:
    if name.endswith(".json") and chance.random() < 0.7:
        return mutation.either(chance, json.loads(content))
    if name.endswith(".jsonl") and chance.random() < 0.7:
        return b"\n".join(mutation.either(chance, json.loads(line)) for line in content.splitlines())
    return mutation.text(chance, content) if chance.random() < 0.9 else b""


@lru_cache
def _files() -> dict[str, bytes]:
    """The files of a run that was recorded and has failed, by their names in its directory."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        record.record(api.show(_WORDS).plan, run, overrides=_WORDS, forced=False)
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in _STEPS))
        (run / "logs" / "node.err").write_text("torchrun's words\n")
        (run / "events.jsonl").write_text(f"{json.dumps({'kind': 'hang', 'text': 'step 2 has hung', 'rank': 1})}\n")
        for file, content in _LEFT_BY_A_JOB.items():
            (run / file).write_text(json.dumps(content))
        return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
