"""The words that completion offers and that no folder lists: verbs, their options, keys and the values of keys.

They take half a second to gather and are kept in the user's cache folder. What is kept holds as long as no file has
changed that it comes from: the launcher's own, the keys' documentation, and the folders of installed packages.
"""

import json
import os
import sys
import zlib

TYPE_CHECKING = False  # Type checkers know the name; ``typing`` itself takes a tenth of the time of an answer.
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import Any

PACKAGE = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100 - pathlib takes 10 ms.

PATHS = (
    "backend.path",
    "cluster.container_image",
    "cluster.python",
    "cluster.shared_folder",
    "data.path",
    "data.tokenizer",
    "model.weights",
    "run.directory",
    "save.load",
    "script",
    "zero.nvme_path",
)
"""Keys whose value is, or may be, a file or folder."""


def read(verbs: "Mapping[str, str]") -> "dict[str, Any]":
    """The vocabulary, as it was kept or gathered anew.

    Args:
        verbs: The verbs with their meaning.
    """
    # By hand, because platformdirs takes half of an answer's time; on every system completion has this folder.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    # Each installation has its own, so that a person who goes from one to another waits for neither.
    path = f"{base}/launch/completion/{zlib.crc32(f'{PACKAGE} {sys.prefix}'.encode()):08x}.json"
    stamp = [2, *_stamp()]
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            seal, _, text = file.read().partition("\n")
        if seal == _seal(text):  # Else it is broken, or of another version.
            kept: dict[str, Any] = json.loads(text)
            if kept["stamp"] == stamp:
                return kept
    except (OSError, ValueError):
        pass
    found = {"stamp": stamp, **_gathered(verbs)}
    _keep(path, found)
    return found


def conf() -> str:
    """The shipped configuration: inside the installed package, or beside it in a checkout."""
    return _shipped("conf")


def recipes() -> str:
    """The folder of the shipped recipes."""
    return _shipped("recipes")


def _shipped(kind: str) -> str:
    inside = f"{PACKAGE}/_shipped/{kind}"
    return inside if os.path.isdir(inside) else f"{os.path.dirname(PACKAGE)}/{kind}"  # noqa: PTH112, PTH120


def _stamp() -> "list[Any]":
    """Times of all that the vocabulary is made of."""
    found: list[Any] = [sys.version, os.environ.get("XDG_STATE_HOME")]
    folders = [f"{PACKAGE}/{room}" for room in ("commands", "spec", "backends", "estimate/families", "importers")]
    for folder in folders:
        with os.scandir(folder) as entries:
            found += sorted([entry.name, entry.stat().st_mtime_ns] for entry in entries if entry.name.endswith(".py"))
    groups = conf()
    packages = [path for path in sys.path if path.endswith("-packages")]
    bases = [f"{groups}/{name}/_base.yaml" for name in sorted(os.listdir(groups))]  # noqa: PTH208
    places = [f"{PACKAGE}/cli/__init__.py", *packages, *bases]
    return [*found, *(_time(place) for place in places)]


def _time(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    except OSError:
        return None


def _keep(path: str, content: "dict[str, Any]") -> None:
    """Write the file; a folder that cannot be written is only slower."""
    from contextlib import suppress
    from pathlib import Path

    from launcher.base import files

    with suppress(OSError):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content)
        files.write_text_atomically(Path(path), f"{_seal(text)}\n{text}")


def _seal(text: str) -> str:
    """A sum over what is kept, by which it is known to be whole and ours."""
    return f"{zlib.crc32(text.encode()):08x}"


def _gathered(verbs: "Mapping[str, str]") -> "dict[str, Any]":
    from pathlib import Path

    from launcher.config.synonyms import BEST_KEY
    from launcher.rundir.run_names import list_of_runs
    from launcher.spec.parse import kinds

    base = {path.parent.name: path.read_text() for path in sorted(Path(conf()).glob("*/_base.yaml"))}
    meanings = {f"{group}.{key}": text for group, content in base.items() for key, text in _comments(content)}
    keys = {
        key: {"help": meanings.get(key, ""), "values": _values(kind), "path": key in PATHS}
        for key, kind in sorted(kinds().items())
    }
    keys[BEST_KEY] = {
        "help": "best: the layout that launch plan puts first",
        "values": ["best"],
        "path": False,
    }
    groups = {group: _first_comment(content) for group, content in base.items()}
    described = {verb: {"help": text, **_described(verb)} for verb, text in verbs.items()}
    return {"verbs": described, "groups": groups, "keys": keys, "runs": str(list_of_runs())}


def _comments(text: str) -> "list[tuple[str, str]]":
    """The keys of a ``_base.yaml`` with the comments behind them."""
    import re

    return re.findall(r"^([a-z_0-9]+): .*?# (.*)$", text, re.MULTILINE)


def _first_comment(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ") if text.startswith("# ") else ""


def _values(kind: object) -> list[str]:
    """The values of a key that are few: names, true and false, and null beside them where it is one."""
    from types import NoneType, UnionType
    from typing import Literal, TypeAliasType, Union, get_args, get_origin

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


def _described(verb: str) -> "dict[str, Any]":
    """The options and the words of a verb, as its parser has them."""
    import argparse

    from launcher.base import registry

    parser = argparse.ArgumentParser(add_help=False)
    registry.load("commands", verb if verb != "import" else "import_").arguments(parser)
    options = {"--help": {"help": "its words and options", "takes": False, "values": [], "what": ""}}
    words = []
    for action in parser._actions:
        if not action.option_strings:
            words.append({"what": _what(action), "values": _choices(action), "many": action.nargs == "*"})
        for option in action.option_strings:
            about = {"help": action.help or "", "takes": action.nargs != 0}
            options[option] = {**about, "values": _choices(action), "what": _what(action)}
    return {"options": options, "words": words}


def _choices(action: "argparse.Action") -> list[str]:
    return [str(choice) for choice in action.choices or ()]


def _what(action: "argparse.Action") -> str:
    """The kind of a word by the name that the help has for it: ``RUN``, ``OVERRIDE``, ``WORD``, or a path."""
    from pathlib import Path

    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return metavar if metavar in ("RUN", "OVERRIDE", "WORD", "LOCK") else "PATH" if action.type is Path else ""
