"""The wheel alone is enough to check and show a run from any folder, with no framework beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.helpers import ROOT


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_ships_every_configuration_file_and_recipe(unpacked: Path) -> None:
    for kind in ("conf", "recipes"):
        ours = {path.relative_to(ROOT / kind) for path in (ROOT / kind).rglob("*.yaml")}
        assert ours
        assert ours == {
            path.relative_to(unpacked / "launcher/_shipped" / kind)
            for path in (unpacked / "launcher/_shipped" / kind).rglob("*.yaml")
        }


def test_the_wheel_says_that_it_has_types(unpacked: Path) -> None:
    assert (unpacked / "launcher/py.typed").is_file()


def test_it_works_from_any_folder(unpacked: Path, tmp_path: Path) -> None:
    program = "import sys, launcher.cli; print(launcher.__file__, file=sys.stderr); sys.exit(launcher.cli.main())"
    for words in (
        ("check", "model=llama3_8b", "parallel=zero3"),
        ("show", "recipe=tiny_cpu"),
        ("recipe", "list"),
        ("completion", "fish"),
        ("__complete", "fish", "hardware=h"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 3), done.stderr
        assert str(unpacked) in done.stderr
        assert done.stdout
