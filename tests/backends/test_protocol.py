"""The protocol of a backend: the shipped ones have all of it, and nobody outside asks for their names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.backends import Backend, deepspeed, fsdp, megatron, trl
from launcher.base import registry
from launcher.base.package import FOLDER
from launcher.spec import edit
from tests.support.helpers import make_spec

SHIPPED: dict[str, Backend] = {"deepspeed": deepspeed, "fsdp": fsdp, "megatron": megatron, "trl": trl}
"""mypy compares each module with the protocol here."""

OWNERS = ("backends", "worker", "importers")

OTHER_THINGS = {
    "actions/check.py": "the kinds of files that deepspeed= and megatron_args= name",
    "job/versions.py": "a distribution on PyPI",
    "base/package.py": "an extra of this distribution",
    "estimate/rank/engine.py": "the library whose modules run",
    "rundir/measured_run.py": "a distribution on PyPI",
}
"""Where a backend's name is the name of something else."""


def test_every_shipped_backend_is_a_module_with_all_members_of_the_protocol() -> None:
    assert set(SHIPPED) == set(registry.shipped("backends"))
    assert {name: registry.load("backends", name) for name in SHIPPED} == SHIPPED
    assert {name: backend.framework for name, backend in SHIPPED.items()} == {name: name for name in SHIPPED}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_words_that_choose_an_engine_for_a_setting_choose_that_engine(name: str) -> None:
    settings = SHIPPED[name].profile.settings
    assert settings
    for path, words in settings.items():
        spec = make_spec(*words.split())
        assert spec.backend.name == name
        edit.value_at(spec, path)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_backend_is_imported_without_its_frameworks(name: str) -> None:
    program = f"import sys, launcher.backends.{name}; print([m for m in {FRAMEWORKS} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


FRAMEWORKS = ("torch", "transformers", "deepspeed", "megatron", "hydra", "submitit")


def test_nobody_outside_of_the_backends_the_workers_and_the_importers_names_a_backend() -> None:
    files = [path for path in sorted(FOLDER.rglob("*.py")) if path.relative_to(FOLDER).parts[0] not in OWNERS]
    assert len(files) > 100
    naming = {str(path.relative_to(FOLDER)) for path in files if any(_named(path))}
    assert naming == set(OTHER_THINGS)


def _named(path: Path) -> Iterator[str]:
    """Texts of a module that are the name of a backend, but for comparisons with ``engine.library``."""
    tree = ast.parse(path.read_text())
    libraries = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and _is_library(node.left)]
    left_out = {id(part) for node in libraries for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in SHIPPED and id(node) not in left_out:
            yield str(node.value)


def _is_library(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "library"
