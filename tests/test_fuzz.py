"""Input that nobody should type: the first few hundred cases of ``python -m benchmarks.fuzz``."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks.fuzz import Case
from launcher.recipes import literal


def test_generated_command_lines_and_recipes_are_answered_and_do_no_harm() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz", "--cases", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("300 cases, 0 faults")


def test_the_same_seed_gives_the_same_cases() -> None:
    assert list(islice(fuzz.cases(1), 20)) == list(islice(fuzz.cases(1), 20))


@pytest.mark.parametrize("value", fuzz._HOSTILE)
def test_no_value_acts_in_generated_shell_text(tmp_path: Path, value: str) -> None:
    keys = ("run.name", "cluster.account", "cluster.partition", "data.path", "cluster.constraint", "save.load")
    for key in keys:
        words = ("show", "model=tiny", "cluster=slurm", "data=text", f"{key}={literal(value)}")
        assert fuzz.fault(Case(words, None), tmp_path) is None, key


def test_a_value_that_acts_is_a_fault() -> None:
    assert fuzz._unquoted("# job\nA=1 \\\npython $(touch pwned)\n")
    assert fuzz._unquoted("# job\npython x\n\n# sbatch\n#SBATCH --account=a\ntouch pwned\n")
    assert fuzz._unquoted("# job\npython '$(touch pwned)'\n\n# sbatch\n#SBATCH --account=a\n") is None
