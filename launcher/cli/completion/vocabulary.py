"""The words that completion offers and that no folder lists: verbs, their options, keys and the values of keys.

They take half a second to gather and are kept in the user's cache folder. What is kept holds as long as no file has
changed that it comes from: the launcher's own, the keys' documentation, and the folders of installed packages.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, TypeAliasType, Union, get_args, get_origin

from launcher.base import cache, files
from launcher.base.files import JsonObject
from launcher.base.package import FOLDER, shipped

PATHS = (
    "backend.path", "cluster.container_image", "cluster.python", "cluster.shared_folder", "data.path", "data.tokenizer",
    "model.weights", "run.directory", "save.load", "script", "zero.nvme_path",
)  # fmt: skip
"""Keys whose value is, or may be, a file or folder."""

CACHE = "completion"  # Its folder in the user's cache.


def read(verbs: Mapping[str, str]) -> JsonObject:
    """Return the vocabulary for these verbs and their meanings, from the cache or gathered anew."""
    found: JsonObject = cache.answer(CACHE, stamp(), lambda: _gathered(verbs))
    return found


def stamp() -> list[object]:
    """Modification times of all files that the vocabulary is made of, and the Python and folder that it is for."""
    rooms = ("commands", "spec", "backends", "estimate/families", "importers")
    own = [path for room in rooms for path in sorted((FOLDER / room).glob("*.py"))]
    packages = [Path(path) for path in sys.path if path.endswith("-packages")]
    places = [*own, FOLDER / "cli" / "__init__.py", *packages, *_bases()]
    times = [(str(place), files.changed_at(place)) for place in places]
    return [sys.version, sys.prefix, os.environ.get("XDG_STATE_HOME"), times]


def _bases() -> list[Path]:
    return sorted(shipped("conf").glob("*/_base.yaml"))


def _gathered(verbs: Mapping[str, str]) -> JsonObject:
    from launcher.config.synonyms import BEST_KEY
    from launcher.rundir.run_names import list_of_runs
    from launcher.spec.parse import kinds

    base = {path.parent.name: path.read_text() for path in _bases()}
    comment = re.compile(r"^([a-z_0-9]+): .*?# (.*)$", re.MULTILINE)
    meanings = {f"{group}.{key}": text for group, content in base.items() for key, text in comment.findall(content)}
    keys = {
        key: {"help": meanings.get(key, ""), "values": _values(kind), "path": key in PATHS}
        for key, kind in sorted(kinds().items())
    }
    best = "best: the layout that launch plan puts first"
    keys[BEST_KEY] = {"help": best, "values": ["best"], "path": False}
    first_lines = {group: content.partition("\n")[0] for group, content in base.items()}
    groups = {group: line.removeprefix("# ") if line.startswith("# ") else "" for group, line in first_lines.items()}
    described = {verb: {"help": text, **_described(verb)} for verb, text in verbs.items()}
    return {"verbs": described, "groups": groups, "keys": keys, "runs": str(list_of_runs())}


def _values(kind: object) -> list[str]:
    while isinstance(kind, TypeAliasType):
        kind = kind.__value__
    if kind is bool:
        return ["true", "false"]
    if kind is NoneType:
        return ["null"]
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if get_origin(kind) in (Union, UnionType):
        return [value for part in get_args(kind) for value in _values(part)]
    return []


def _described(verb: str) -> JsonObject:
    from launcher.base import registry

    parser = argparse.ArgumentParser(add_help=False)
    registry.load("commands", verb if verb != "import" else "import_").arguments(parser)
    options = {"--help": {"help": "its words and options", "takes": False, "values": [], "what": ""}}
    words = []
    for action in parser._actions:
        kind = {"what": _what(action), "values": [str(choice) for choice in action.choices or ()]}
        if not action.option_strings:
            words.append({**kind, "many": action.nargs == "*"})
        for option in action.option_strings:
            options[option] = {**kind, "help": action.help or "", "takes": action.nargs != 0}
    return {"options": options, "words": words}


def _what(action: argparse.Action) -> str:
    """The kind of an argument, by its name in the help: ``RUN``, ``OVERRIDE``, ``WORD``, or a path."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return metavar if metavar in ("RUN", "OVERRIDE", "WORD", "LOCK") else "PATH" if action.type is Path else ""
