"""How the house is kept: its rooms, where options of the command line end, and the tests themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
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


def _modules() -> dict[str, Path]:
    """Every module of the house by its name."""
    found = {}
    for path in sorted(HOUSE.rglob("*.py")):
        parts = ("launcher", *path.relative_to(HOUSE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    assert len(found) > 400
    return found


@cache
def _imports() -> dict[str, set[str]]:
    """The modules that each one names, also where the import is late or for types alone."""
    modules = _modules()
    named: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = named[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{each.name}" for each in node.names}
                found |= {each if each in modules else node.module for each in inside}
        found &= modules.keys() - {name}
    return named


def _reached(start: str, named: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for each in named[waiting.pop()] - found:
            found.add(each)
            waiting.append(each)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not by imports that are late or for types alone: what two modules share stands below both."""
    named = _imports()
    circles = sorted(name for name in named if name in _reached(name, named))
    assert not circles


def test_no_room_is_reached_from_a_room_below_it_and_there_are_at_most_ten_floors() -> None:
    rooms: dict[str, set[str]] = {}
    for name, found in _imports().items():
        room = name.split(".")[1] if "." in name else ""
        rooms.setdefault(room, set()).update(each.split(".")[1] for each in found if "." in each)
    below = {room: found - {room} for room, found in rooms.items() if room}
    floors: dict[str, int] = {}
    while len(floors) < len(below):
        ready = [room for room in below if room not in floors and below[room] <= floors.keys()]
        assert ready, f"a circle among {sorted(below.keys() - floors.keys())}"
        floors |= {room: 1 + max((floors[each] for each in below[room]), default=0) for room in ready}
    assert max(floors.values()) <= 10, sorted(floors.items(), key=lambda item: item[1])


def test_a_check_executes_few_modules_and_no_framework(tmp_path: Path) -> None:
    words = ["check", "model=7b", "parallel=fsdp", "precision=bf16", "--json"]
    program = f"import sys\nfrom launcher.cli import main\nmain({words!r})\nprint(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", program]
    for _ in range(2):  # The first one composes, and looks at the data; both are kept.
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    executed = done.stderr.splitlines()[-1].split()
    assert "launcher.preflight.assess" in executed
    assert not {"torch", "numpy", "transformers", "hydra", "omegaconf"} & {*executed}
    assert sum(name.partition(".")[0] == "launcher" for name in executed) <= 165, "whoever asks waits for each"


def test_the_house_stays_of_a_size_that_one_can_find_ones_way_in() -> None:
    texts = {path: path.read_text() for path in _modules().values()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    assert sum(lines.values()) <= 88_353, "lines are a cost: what does the new code replace?"
    assert len(lines) <= 558
    assert sum(number < 60 for number in lines.values()) <= 80, "a small module with one reader stands in it"
    assert sum(text.count("dict[str, Any]") for text in texts.values()) <= 90, "JsonObject, or a frozen dataclass"
    verbs = [number for path, number in lines.items() if path.parent.name == "commands"]
    assert len(verbs) <= 22
    assert sum(verbs) <= 2_000, "a verb reads options and prints; what it does is an action"


def test_no_file_name_stands_four_times() -> None:
    """Outside of engines, whose modules answer to each other, a file is named by its subject."""
    engines = ("backends/", "worker/fsdp/", "worker/deepspeed/", "worker/megatron/")
    paths = [path for path in _modules().values() if not path.relative_to(HOUSE).as_posix().startswith(engines)]
    names = Counter(path.name for path in paths if path.name not in ("__init__.py", "__main__.py"))
    assert not [name for name, number in names.items() if number >= 4]
