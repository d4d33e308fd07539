"""How the house is kept: its rooms, where options of the command line end, and the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

HOUSE = Path(__file__).parents[1] / "launcher"


def test_no_test_file_imports_another() -> None:
    """What several of them need is in ``tests/support``, so that a file can be read, moved and run by itself."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    assert len(files) > 80
    for path in files:
        imported = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        names = {f"{node.module}.{each.name}" for node in imported for each in node.names}
        found = [name for name in names if any(part.startswith("test_") for part in name.split(".")[:-1])]
        found += [name for name in names if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")]
        assert not found, f"{path} imports {found}: move what it needs to tests/support"


def test_the_house_has_at_most_28_rooms() -> None:
    # A folder that a room has left may still hold bytecode.
    rooms = [path.name for path in HOUSE.iterdir() if path.is_file() or (path / "__init__.py").is_file()]
    assert len(rooms) <= 28, "a new room takes the place of another: docs/architecture.md"


def test_options_of_the_command_line_end_in_the_verbs() -> None:
    found = [path for path in HOUSE.rglob("*.py") if "argparse.Namespace" in path.read_text()]
    rooms = {path.relative_to(HOUSE).parts[0] for path in found}
    assert rooms <= {"cli", "commands"}, "below them a frozen request says what is asked"


def test_no_bundle_of_arguments_travels_as_a_dictionary() -> None:
    found = [path for path in HOUSE.rglob("*.py") if "how: dict" in path.read_text()]
    assert not found, "a frozen dataclass says which there are, as launcher/preflight/assess_here.py"
