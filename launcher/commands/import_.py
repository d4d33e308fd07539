"""Turn an existing configuration into overrides, and into a recipe with --json or --recipe OUT.yaml.

  launch import hf config.json     (or a folder: its weights, too)
  launch import deepspeed ds_config.json
  launch import megatron train.sh

Arguments that change memory and are not understood are named on stderr.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import files, registry
from launcher.commands._common import add_json, pasteable, print_json, say, width, write_new
from launcher.errors import ConfigError, ConfigErrors, unreadable

if TYPE_CHECKING:
    from launcher.config.acting import Deed
    from launcher.importers import Imported


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("kind", choices=registry.names("importers"), help="what the file is")
    words = "megatron: a shell script, YAML or JSON; hf: a config.json, or its folder with the weights"
    parser.add_argument("file", type=Path, metavar="FILE", help=words)
    parser.add_argument("--recipe", type=Path, metavar="OUT.yaml", help="also write a recipe")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the file's settings as overrides."""
    imported = read(options.kind, options.file)
    report_not_understood(imported)
    deeds = _deeds(imported)
    for deed in deeds:
        say(f"launch: look at this before you run it: {deed}")
    if options.recipe is not None:
        _write_recipe(options.recipe, imported, options.file, deeds)
    if options.json:
        print_json({
            "schema": 1,
            "import": {
                "overrides": list(imported.overrides),
                "recipe": imported.recipe,
                "not_understood": list(imported.not_understood),
            },
        })
    else:
        print(pasteable(imported.overrides))
    return 0


def read(kind: str, path: Path) -> Imported:
    """Read a foreign configuration.

    Raises:
        ConfigErrors: The file cannot be read or is not what it should be.
    """
    if kind == "hf" and path.is_dir():
        return _model_of(path)
    try:
        text = files.read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigErrors([ConfigError(str(path), None, f"the file cannot be read: {unreadable(error)}")]) from None
    imported: Imported = registry.load("importers", kind).read(text, str(path))
    return imported


def _model_of(folder: Path) -> Imported:
    """The model of a folder, with its weights where it has some."""
    from launcher.config import own_models

    weights = str(folder) if own_models.has_weights(folder) else None
    file = folder / own_models.CONFIG
    try:
        imported: Imported = registry.load("importers", "hf").read(files.read_text(file), str(file), weights=weights)
    except (OSError, ValueError) as error:
        raise ConfigErrors([ConfigError(str(file), None, f"the file cannot be read: {unreadable(error)}")]) from None
    return imported


def report_not_understood(imported: Imported) -> None:
    """Name the settings that have no counterpart here."""
    for item in imported.not_understood:
        text = f"not understood, and not in the estimate: {item}"
        say(textwrap.fill(text, width(), subsequent_indent="  ", break_on_hyphens=False, break_long_words=False))


def _deeds(imported: Imported) -> list[Deed]:
    """Settings of the file that act, and need the user's word once they come from a recipe."""
    from launcher.config import acting

    return [*acting.needs(imported.recipe["choose"]), *acting.needs(imported.recipe["set"])]


def _write_recipe(path: Path, imported: Imported, origin: Path, deeds: Sequence[Deed]) -> None:
    """Write the recipe, which is as foreign as the file that it is made of."""
    import yaml

    from launcher.config import trust

    def note(content: bytes) -> None:
        trust.note_foreign(path, content, str(origin.absolute()), deeds)

    text = yaml.safe_dump(imported.recipe, sort_keys=False)
    write_new(path, text, otherwise=": choose another --recipe", before=note)
