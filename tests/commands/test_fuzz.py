"""Input that nobody should type: the first hundred cases of ``python -m benchmarks.fuzz``."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import fuzz
from benchmarks.fuzz import Case
from launcher.config.recipes import literal
from launcher.spec.parse import kinds


def test_generated_command_lines_and_recipes_are_answered_and_do_no_harm() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz", "--cases", "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("100 cases, 0 faults")


def test_the_same_seed_gives_the_same_cases() -> None:
    assert list(islice(fuzz.cases(1), 20)) == list(islice(fuzz.cases(1), 20))


@pytest.mark.parametrize("value", fuzz._HOSTILE)
def test_no_value_acts_in_generated_shell_text(tmp_path: Path, value: str) -> None:
    keys = ("run.name", "cluster.account", "cluster.partition", "data.path", "cluster.constraint", "save.load")
    for key in keys:
        words = ("show", "model=tiny", "cluster=slurm", "data=text", f"{key}={literal(value)}")
        assert fuzz.fault(Case(words, None), tmp_path) is None, key


@pytest.mark.parametrize("value", [10**9 + 7, 10**39 + 7])
def test_any_key_may_have_an_enormous_number_and_is_answered_at_once(tmp_path: Path, value: int) -> None:
    numbers = [key for key, kind in sorted(kinds().items()) if "int" in str(kind)]
    assert len(numbers) > 30
    for key in numbers:
        words = ("check", "model=7b", "hardware=h100_80g", "parallel=3d", f"{key}={value}", "--no-native")
        assert fuzz.fault(Case(words, None), tmp_path) is None, key


def test_a_value_that_acts_is_a_fault() -> None:
    assert fuzz._unquoted("# job\nA=1 \\\npython $(touch pwned)\n")
    assert fuzz._unquoted("# job\npython x\n\n# sbatch\n#SBATCH --account=a\ntouch pwned\n")
    assert fuzz._unquoted("# job\npython '$(touch pwned)'\n\n# sbatch\n#SBATCH --account=a\n") is None
