"""Versions of the frameworks: what is driven, and what an older one lacks, is said before the job starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from launcher import backends
from launcher.job import versions
from tests.support.helpers import make_spec

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def refused(*words: str, **found: str) -> list[str]:
    spec = make_spec("model=tiny", *words)
    profile = backends.of(spec).profile
    found_errors = versions.unusable(spec, profile.packages, profile.needs, found.get)
    return [f"{error}: {' '.join(error.way_out)}" for error in found_errors]


def test_the_oldest_versions_are_those_that_pip_may_install() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *extras["fsdp"], *extras["deepspeed"], *extras["megatron"]]
    ranges = dict(text.split(",")[0].split(">=") for text in texts if ">=" in text)
    assert {name: ranges[name] for name in versions.OLDEST} == versions.OLDEST


@pytest.mark.parametrize(
    ("text", "numbers"), [("2.15.0+cu132", (2, 15, 0)), ("2.8.0a0", (2, 8, 0)), ("0.18.9", (0, 18, 9)), ("x", ())]
)
def test_the_leading_numbers_of_a_version_are_compared(text: str, numbers: tuple[int, ...]) -> None:
    assert versions.numbers(text) == numbers


def test_a_package_that_is_too_old_is_refused_with_the_line_that_installs_a_newer_one() -> None:
    [error] = refused("parallel=fsdp", torch="2.7.1", transformers="5.0.0")
    assert "torch 2.7.1 is installed; this version of launch drives torch from 2.8" in error
    assert "pip install 'torch>=2.8'" in error


def test_a_setting_that_the_installed_version_lacks_is_refused_and_no_other() -> None:
    assert refused("parallel=fsdp", torch="2.9.1", transformers="4.56.0") == []
    [error] = refused("parallel=fsdp", "parallel.context=2", torch="2.9.1", transformers="4.56.0")
    assert "parallel.context=2: torch 2.9.1 is installed, which has no ring attention for single tensors" in error
    assert "parallel.context=1" in error
    assert refused("parallel=fsdp", "parallel.context=2", torch="2.10.0", transformers="4.56.0") == []
    words = ("parallel=zero1", "parallel.tensor=2")
    [error] = refused(*words, torch="2.12", transformers="5.0", deepspeed="0.18.4")
    assert "deepspeed 0.18.4 is installed, which does not note how AutoTP splits a weight" in error
    assert refused(*words, torch="2.12", transformers="5.0", deepspeed="0.18.9") == []


def test_a_package_of_unknown_version_is_no_error() -> None:
    assert refused("parallel=fsdp", "parallel.context=2") == []
