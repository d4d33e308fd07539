"""Input that nobody should type: the first hundred cases of ``python -m benchmarks.fuzz``."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.fuzz import __main__ as fuzz
from benchmarks.fuzz import odd
from benchmarks.fuzz.case import Case
from benchmarks.fuzz.judge import fault, not_parted, unquoted
from benchmarks.fuzz.mutation import HOSTILE
from launcher.config.recipes import literal
from launcher.spec.parse import kinds


def test_generated_input_of_every_source_is_answered_and_does_no_harm() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz", "--cases", "100", "--seconds", "inf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("100 cases, 0 faults")


def test_the_same_seed_gives_the_same_cases_and_every_source_is_drawn() -> None:
    assert list(islice(fuzz.cases(1), 20)) == list(islice(fuzz.cases(1), 20))
    sources = {case.source for case in islice(fuzz.cases(1), 100)}
    assert sources == {"words", "plan", "recipes", "importers", "points", "records", "locks"}


def test_everything_that_may_lie_in_place_of_a_file_is_among_the_cases_and_leaves_the_folder_empty(
    tmp_path: Path,
) -> None:
    drawn = [case for case in islice(fuzz.cases(1), 1_000) if case.odd]
    assert {what for case in drawn for what in case.odd.values()} == set(odd.MAKERS)
    assert {case.source for case in drawn} == {"recipes", "importers", "points", "records", "locks"}
    for case in drawn[:20]:
        assert fault(case, tmp_path) is None
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", HOSTILE)
def test_no_value_acts_in_generated_shell_text(tmp_path: Path, value: str) -> None:
    keys = ("run.name", "cluster.account", "cluster.partition", "data.path", "cluster.constraint", "save.load")
    for key in keys:
        words = ("show", "model=tiny", "cluster=slurm", "data=text", f"{key}={literal(value)}")
        assert fault(Case(source="words", words=words), tmp_path) is None, key


@pytest.mark.parametrize("value", [10**9 + 7, 10**39 + 7])
def test_any_key_may_have_an_enormous_number_and_is_answered(tmp_path: Path, value: int) -> None:
    numbers = [key for key, kind in sorted(kinds().items()) if "int" in str(kind)]
    assert len(numbers) > 30
    for key in numbers:
        words = ("check", "model=7b", "hardware=h100_80g", "parallel=3d", f"{key}={value}", "--no-native")
        assert fault(Case(source="words", words=words), tmp_path) is None, key


def test_a_value_that_acts_is_a_fault() -> None:
    assert unquoted("# job\nA=1 \\\npython $(touch pwned)\n")
    assert unquoted("# job\npython x\n\n# sbatch\n#SBATCH --account=a\ntouch pwned\n")
    assert unquoted("# job\npython '$(touch pwned)'\n\n# sbatch\n#SBATCH --account=a\n") is None


@pytest.mark.parametrize(
    ("lists", "what"),
    [
        ({}, None),
        ({"default": ["a", "b.c"]}, "a key is in two lists: ['a', 'a', 'b.c']"),
        ({"default": ["b.d"]}, "in no list, or in one and not in the file: ['b.c', 'b.d']"),
        ({"said": [{"key": "a", "overrides": ["y=2"]}]}, "a key is said by what is no override: ['y=2']"),
    ],
)
def test_a_key_that_is_in_no_list_or_in_two_is_a_fault(lists: dict[str, object], what: str | None) -> None:
    case = Case(source="importers", words=("import", "hf", "f", "--json"), files={"f": b'{"a": 1, "b": {"c": 2}}'})
    whole = {"said": [{"key": "a", "overrides": ["x=1"]}], "default": ["b.c"], "kept": [], "left_out": []}
    found = {"overrides": ["x=1"], **whole, **lists}
    assert not_parted(case, json.dumps({"import": found})) == what
    assert not_parted(case, json.dumps({"import": None, "errors": []})) == "nothing is imported, and nothing wrong"


def test_an_answer_that_takes_longer_than_it_may_is_a_fault(tmp_path: Path) -> None:
    case = Case(source="words", words=("status", "no-such-run"))
    assert (fault(case, tmp_path, limit_s=0.0) or "").startswith("it took ")


@pytest.mark.parametrize(
    ("case", "what"),
    [
        (Case(source="words", words=("status", "no-such-run"), answers=1), "0 answers for 1 lines"),
        (Case(source="words", words=("import", "hf", "a", "--recipe", "new.yaml"), files={"a": b"{}"}), None),
        (Case(source="words", words=("recipe", "save", "new", "model=tiny")), "files were written"),
    ],
)
def test_an_answer_too_few_and_a_file_too_many_are_faults(tmp_path: Path, case: Case, what: str | None) -> None:
    found = fault(case, tmp_path)
    assert found is None if what is None else what in str(found)
