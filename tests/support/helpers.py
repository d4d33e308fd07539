"""Helpers of many tests: a specification from overrides, and golden files."""

from __future__ import annotations

import contextlib
import difflib
import os
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.base.machine import Machine
from launcher.config.catalog import Catalog
from launcher.config.request import Request, request
from launcher.spec import RunSpec

ROOT = Path(__file__).parents[2]
"""The checkout."""

GOLDEN = ROOT / "tests" / "golden"
ACCEPT = "LAUNCH_ACCEPT_GOLDEN"

CPU_HOST = Machine(gpus=(), host_memory_bytes=24 * 2**30, disk_free_bytes=80 * 2**30, cpus=2)
"""A fixed machine in place of this one, so that tests do not depend on it: no GPU, 24 GiB."""


def ask(*overrides: str, folder: Path | None = None) -> Request:
    """Compose and parse as the commands do, on the pinned machine."""
    return request(overrides, facts=CPU_HOST, catalog=_catalog(folder or Path.cwd()))


def _catalog(folder: Path) -> Catalog:
    """The options of a folder, cached if it has none of its own: finding them takes most of a request's time."""
    has_own = folder != ROOT and any((folder / kind).exists() for kind in ("conf", "recipes"))
    return Catalog(folder=folder) if has_own else _shipped(folder)


@lru_cache(maxsize=8)
def _shipped(folder: Path) -> Catalog:
    return Catalog(folder=folder)


def make_spec(*overrides: str, folder: Path | None = None) -> RunSpec:
    """The specification of a command line, without checking rules; errors are raised."""
    return ask(*overrides, folder=folder).require()


@cache
def composed_once(*overrides: str) -> RunSpec:
    """:func:`make_spec` in the checkout, cached for tests that need the same few runs repeatedly."""
    return make_spec(*overrides, folder=ROOT)


def assert_golden(name: str, text: str) -> None:
    """Compare generated text with ``tests/golden/<name>``; the failure shows the difference and how to accept it."""
    path = GOLDEN / name
    if os.environ.get(ACCEPT):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    expected = path.read_text() if path.exists() else ""
    difference = "".join(difflib.unified_diff(expected.splitlines(True), text.splitlines(True), str(path), "generated"))
    assert expected == text, f"{difference}\nTo accept it: {ACCEPT}=1 pytest -k <this test>"


def needs(module: str, reason: str = "") -> None:
    """Skip a test, or its file, if a package is missing; without importing it, which takes seconds for some."""
    with contextlib.suppress(ModuleNotFoundError):  # Raised for a missing parent package.
        if find_spec(module) is not None:
            return
    pytest.skip(reason or f"{module} is not installed", allow_module_level=True)
