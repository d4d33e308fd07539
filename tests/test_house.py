"""How the tests themselves are kept."""

from __future__ import annotations

import ast
from pathlib import Path


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
