"""`launch` with Megatron as its user meets it: stopped, resumed, looked at; on CPU ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from launcher.rundir import status
from tests.support import hostile
from tests.support.training import SMALL, lines

LAUNCH = str(Path(sys.executable).with_name("launch"))
WORDS = (
    "parallel=tp",
    *SMALL,
    "data=text",
    'data.path="{stdlib}/json/*.py"',
    "train.steps=30",
    "save.last=true",
    "save.export=safetensors",
    "hardware=cpu",
    "cluster.gpus_per_node=2",
    "run.name=a",
)


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LAUNCH, *words], cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def test_a_megatron_run_is_stopped_and_goes_on_where_it_was(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    imported = hostile.plant(tmp_path)
    process = subprocess.Popen(
        [LAUNCH, *WORDS],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not ((run / "metrics.jsonl").is_file() and len(lines(run)) >= 3):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=500)
    assert process.returncode == 130, said
    stopped = int((run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text())
    assert 3 <= stopped < 30
    assert f"continues from step {stopped}" in said
    assert status.read(run).state == "cancelled"

    resumed = launch(tmp_path, "resume", "a")
    assert resumed.returncode == 0, resumed.stderr
    assert [line["step"] for line in lines(run)] == list(range(1, 31))
    assert "between steps" in resumed.stdout, "memory predicted against measured"
    assert launch(tmp_path, "status").stdout.splitlines()[1].split()[:2] == ["a", "finished"]
    assert "iteration" in launch(tmp_path, "logs", "a").stdout
    assert json.loads((run / "job.json").read_text())["argv"].count("--tensor-model-parallel-size") == 1
    assert {path.name for path in (run / "data").iterdir()} >= {"corpus.bin", "corpus.idx"}
    assert (run / "export" / "config.json").is_file()
    assert not imported.exists(), imported.read_text()
