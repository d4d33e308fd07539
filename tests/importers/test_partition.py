"""The law of the importers: every key of a file ends in exactly one of the four lists, whatever the file holds.

The keys of a file are found here by readers of their own, which know nothing of the importers: leaves of JSON and YAML,
and the flags of a script without branches. The files are in ``files/``, one folder a format; none is copied.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.actions.importing import read
from launcher.base import registry
from launcher.base.errors import ConfigErrors
from launcher.cli import main
from launcher.config import left_out
from launcher.config.request import request
from launcher.importers import Imported
from launcher.preflight import findings
from tests.support import peer_files
from tests.support.foreign_files import DEEPSEEK_V3, GPT2, LLAMA3_8B, MIXTRAL_8X7B, ZERO3_OFFLOAD

FOLDER = Path(__file__).parent / "files"
KINDS = ("deepspeed", "hf", "megatron")
FILES = [path for kind in KINDS for path in sorted((FOLDER / kind).iterdir())]
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    1e-3,
    "auto",
    "",
    "x",
    [],
    [1, 2],
    {},
    {"deep": {"er": 1}},
    {"type": "x"},
]

_NOT_PLAIN = re.compile(
    r"^\s*(?:if|case|for|while|until|function|srun|docker|source|export \w+=\$\()\b|\(\)\s*\{|<<", re.M
)
"""Shell text of which an eye has to follow the branches, or the words of other programs."""

_FLAG = re.compile(r"(--[A-Za-z][\w.-]*)(?:=.*)?\Z", re.DOTALL)
_LISTS = re.compile(r"(\d+) keys?: (\d+) imported, (\d+) equal to defaults, (\d+) passed to the engine, (\d+) left out")


def filled_with(content: dict[str, Any], path: Sequence[str], value: object) -> dict[str, Any]:
    """The same mapping with another value of one leaf."""
    head, *rest = path
    return {**content, head: filled_with(content[head], rest, value) if rest else value}


def leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted paths of all leaves; a list is one, and so is an empty mapping."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def flags(text: str) -> Iterator[str]:
    """The flags of a script in which every word counts."""
    for word in shlex.split(re.sub(r"[()]", " ", text), comments=True):
        for part in re.sub(r"^[A-Za-z_]\w*\+?=", "", word).split():
            if found := _FLAG.match(part):
                yield found[1]


def flags_of(content: dict[str, Any]) -> set[str] | None:
    """The flags of a mapping of arguments, and its other keys by dotted path; None for a list of words."""
    inside = content.get("MODEL_ARGS", content)
    rest = {key: value for key, value in content.items() if key != "MODEL_ARGS"} if inside is not content else {}
    if not isinstance(inside, dict):
        return None
    if not any(key.startswith("-") for key in inside):  # Bare names stand for flags.
        return {*leaves(rest), *(f"--{key}" for key in inside)}
    typed = {key for key in inside if key.startswith("-")}
    return {*leaves(rest), *typed, *leaves({key: value for key, value in inside.items() if key not in typed})}


def keys_of(path: Path) -> set[str] | None:
    """The keys of a file by this test's own readers; None for a script that has to be followed."""
    text = path.read_text()
    if path.suffix in (".json", ".yaml", ".yml"):
        try:
            content = yaml.safe_load(text) if path.suffix != ".json" else json.loads(text)
        except (ValueError, yaml.YAMLError):
            return None
        if not isinstance(content, dict):
            return None
        return set(leaves(content)) if path.parent.name != "megatron" else flags_of(content)
    if path.parent.name != "megatron" or _NOT_PLAIN.search(text):
        return None
    return set(flags(text))


@cache
def imported(path: Path) -> Imported | None:
    """The file as its importer reads it; None for one that is of another format altogether."""
    with contextlib.suppress(ConfigErrors):
        return read(path.parent.name, path, {})
    return None


def lists_of(found: Imported) -> tuple[list[str], ...]:
    return (
        [said.key for said in found.said],
        list(found.default),
        list(found.kept),
        [left.key for left in found.left_out],
    )


def assert_partition(found: Imported, keys: set[str] | None) -> None:
    entered = [key for entries in lists_of(found) for key in entries]
    assert len(entered) == len(set(entered)), "a key is in two lists"
    if keys is not None:
        assert set(entered) == keys
    assert all(said.overrides and {*said.overrides} <= {*found.overrides} for said in found.said)
    assert all(left.effect for left in found.left_out)
    assert all(left.matters is False for left in found.left_out if left.effect.startswith("no effect"))
    assert found.as_dict()["recipe"]["schema"] == 1


def test_there_are_files_of_every_format_and_their_keys_are_found_by_another_reader() -> None:
    assert {*KINDS, *peer_files.KINDS} == set(registry.names("importers"))
    for kind in KINDS:
        files = [path for path in FILES if path.parent.name == kind]
        assert len(files) >= 2
        assert sum(keys_of(path) is not None for path in files) * 2 >= len(files), "most are read in full"
    assert sorted(leaves({"a": {"b": 1, "c": {}}, "d": [{"e": 1}]})) == ["a.b", "a.c", "d"]
    assert [*flags('A="--x 1 --y-z=2" # --no\nB=(--q "--r s")')] == ["--x", "--y-z", "--q", "--r"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_four_lists_partition_the_keys_of_a_file(path: Path) -> None:
    imported.cache_clear()
    found = imported(path)
    if found is not None:
        assert_partition(found, keys_of(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_command_prints_the_counts_of_the_lists_and_the_document_also_where_it_refuses(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = imported(path)
    status = main(["import", path.parent.name, str(path), "--json"])
    said = capsys.readouterr()
    if found is None:
        assert (status, json.loads(said.out)["import"]) == (2, None)
        return
    matters = any(left.matters for left in found.left_out)
    assert status == (2 if found.errors or matters else 0)
    document = json.loads(said.out)
    assert document["import"] == json.loads(json.dumps(found.as_dict()))
    assert ("errors" in document) == bool(status)
    whole, *numbers = map(int, _LISTS.search(" ".join(said.err.split())).groups())  # type: ignore[union-attr]
    assert numbers == [len(entries) for entries in lists_of(found)]
    assert whole == sum(numbers)


REFUSED = {"args_quick_gate.json": ["backend.extra.activation-func-clamp-value"]}
"""Options of a file that are said and not dropped, and refused by the check: their tensors are not counted."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_an_importer_writes_is_read_and_passes_the_rules_on_a_cluster_of_its_size(path: Path) -> None:
    found = imported(path)
    if found is None or found.errors:
        assert found is None or all(error.path.startswith(str(path)) for error in found.errors)
        return
    model = [] if path.parent.name != "deepspeed" else ["model=1b"]
    sentences = (*(left.effect for left in found.left_out), *found.not_understood)
    asks = {key for sentence in sentences for key in left_out.settings_asked_for(sentence)}
    here = ["model.vocab_size=32000"] if "model.vocab_size" in asks else []
    asked = request([*model, *found.overrides, *here, "hardware=b200", *_cluster(found.overrides)])
    assert [str(error) for error in asked.errors] == []
    spec = asked.require()
    broken = [error for error in findings.broken_rules(spec) if error.path.startswith("backend.extra")]
    assert [error.path for error in broken] == REFUSED.get(path.name, []), "the engine's own check takes the rest"


def _cluster(words: Sequence[str]) -> list[str]:
    """Nodes of 8 GPUs, as many as the degrees of a run ask for."""
    degrees = {f"parallel.{name}" for name in ("tensor", "pipeline", "context", "ulysses")}
    typed = dict(word.split("=", 1) for word in words)
    ranks = math.prod(int(typed.get(degree, 1)) for degree in degrees)
    return ["cluster.gpus_per_node=8", f"cluster.nodes={max(1, ranks // 8)}"]


STARTS: dict[str, list[dict[str, Any]]] = {
    "hf": [LLAMA3_8B, MIXTRAL_8X7B, DEEPSEEK_V3, GPT2],
    "deepspeed": [ZERO3_OFFLOAD],
    "megatron": [yaml.safe_load((FOLDER / "megatron" / "functional_test.yaml").read_text())],
}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_the_lists_partition_the_keys_of_a_changed_file_too(kind: str, data: st.DataObject) -> None:
    content = json.loads(json.dumps(data.draw(st.sampled_from(STARTS[kind]))))
    inside = content["MODEL_ARGS"] if kind == "megatron" else content
    others = {key: value for start in STARTS[kind] for key, value in start.get("MODEL_ARGS", start).items()}
    known = st.sampled_from(sorted(others))
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(
            known | st.sampled_from(["unheard_of", "use_cache"] if kind != "megatron" else ["--unheard-of"])
        )
        if data.draw(st.booleans()):
            inside.pop(key, None)
        else:
            inside[key] = data.draw(st.sampled_from(VALUES) | st.just(others.get(key, 1)))
    keys = {*inside, *leaves({k: v for k, v in content.items() if k != "MODEL_ARGS"})} if kind == "megatron" else None
    found = None
    with contextlib.suppress(ConfigErrors):
        found = registry.load("importers", kind).read(json.dumps(content), "file.json")
    if found is not None:
        assert_partition(found, keys or set(leaves(content)))


def test_an_import_executes_few_modules_and_no_framework() -> None:
    words = ["import", "deepspeed", str(FOLDER / "deepspeed" / "stage_2_of_a_trainer.json"), "--partial"]
    program = f"import sys\nfrom launcher.cli import main\nmain({words!r})\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    executed = done.stderr.splitlines()[-1].split()
    assert "launcher.importers" in executed
    assert not {"torch", "numpy", "transformers", "hydra", "omegaconf"} & {*executed}
    assert len(executed) <= 300, "whoever asks waits for the import of every module"


def paths(content: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys that lead to each leaf."""
    for key, value in content.items():
        yield from paths(value, (*before, key)) if isinstance(value, dict) and value else [(*before, key)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_the_file_leaves_open_is_never_taken(kind: str) -> None:
    found = 0
    for path in (path for path in FILES if path.parent.name == kind and path.suffix in (".json", ".yaml")):
        with contextlib.suppress(ValueError, yaml.YAMLError):
            content = yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else json.loads(path.read_text())
            places = list(paths(content)) if isinstance(content, dict) and imported(path) is not None else []
            for place in places[::3]:  # Every third, for time.
                if kind == "megatron" and not (len(place) == 2 and place[1].startswith("--")):
                    continue
                text = json.dumps(filled_with(content, place, "???"))
                try:
                    answer = registry.load("importers", kind).read(text, "file.json")
                except ConfigErrors:
                    continue  # The value decides what the file is.
                key = place[1] if kind == "megatron" else ".".join(place)
                found += 1
                taken = {*(said.key for said in answer.said), *answer.kept, *answer.default}
                assert key not in taken, (path.name, place)
    assert found > 100
