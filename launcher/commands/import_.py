"""Turn an existing configuration into overrides, and into a recipe with --json or --recipe OUT.yaml.

  launch import hf config.json     (or a folder: its weights, too)
  launch import deepspeed ds_config.json
  launch import megatron train.sh --set TP=8
  launch import axolotl lora.yml

Every key of the file becomes overrides, equals a default, is passed on to the engine, or is left out: stderr counts
them and names those left out, with their effect. If that changes the math, the memory or the data, nothing is imported
(exit status 2) unless you give --partial, or the setting that the error asks for: model.vocab_size=32000.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.actions.importing import kinds, read, refusals, variables_of, with_words
from launcher.actions.requests import write_new
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import pasteable, say, width, wrapped
from launcher.commands._options import add_shared, print_answer, print_json
from launcher.config import left_out
from launcher.config.trust import privileged_settings
from launcher.config.trust import sources as trust
from launcher.config.trust.privileged_settings import PrivilegedSetting
from launcher.importers import Imported, LeftOut
from launcher.preflight.assess import invalid_as_json
from launcher.views.check.text import errors_as_text

_LISTED = 5  # Up to this many keys without an effect are shown with their reasons; beyond it only their names.


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("kind", choices=kinds(), metavar="KIND", help=f"the kind of file: {', '.join(kinds())}")
    words = "megatron: a shell script, YAML or JSON; hf: a config.json, or its folder with the weights"
    parser.add_argument("file", type=Path, metavar="FILE", help=words)
    words = "settings that replace the file's own, or that it leaves open: model.vocab_size=32000"
    parser.add_argument("overrides", nargs="*", default=[], metavar="OVERRIDE", help=words)
    add_shared(parser, "--partial", "--set")
    parser.add_argument("--recipe", type=Path, metavar="OUT.yaml", help="also write a recipe")
    add_shared(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """Print the file's settings as overrides; with --json a refusal also prints what could be read."""
    variables = variables_of(options.variables)
    try:
        imported = with_words(read(options.kind, options.file, variables), options.overrides)
    except ConfigErrors as error:
        return _refused(None, error.errors, options)
    _report(imported, options)
    if errors := refusals(imported, options.file, options.overrides, partial=options.partial):
        return _refused(imported, errors, options)
    privileged = [setting for part in ("choose", "set") for setting in privileged_settings.needs(imported.recipe[part])]
    for setting in privileged:
        say(f"launch: review this before you run it: {setting}")
    if options.recipe is not None:
        _write_recipe(options.recipe, imported, options.file, privileged)
    document = {"schema": 1, "import": imported.as_dict()}
    print_answer(options, lambda: document, lambda: pasteable(imported.overrides))
    return 0


def _refused(imported: Imported | None, errors: Sequence[ConfigError], options: argparse.Namespace) -> int:
    if options.json:
        print_json(invalid_as_json(errors) | {"import": None if imported is None else imported.as_dict()})
    say(errors_as_text(errors, width()))
    return ConfigErrors.exit_status


def _report(imported: Imported, options: argparse.Namespace) -> None:
    say(f"launch: {options.file}: {left_out.counted(imported)}")
    lines = [f"left out, although it matters: {_one(left)}" for left in imported.left_out if left.matters]
    for text in [*(lines if options.partial else []), *_of_little_matter(imported)]:
        say("\n".join(wrapped(text, width(), rest="  ")))


def _of_little_matter(imported: Imported) -> Iterator[str]:
    rest = [left for left in imported.left_out if not left.matters]
    idle = [left for left in rest if left.effect.startswith(left_out.NO_EFFECT)]
    short = len(idle) <= _LISTED
    yield from (f"left out: {_one(left)}" for left in rest if short or left not in idle)
    if not short:
        yield f"left out, with no effect: {', '.join(left.key for left in idle)} (--json has the reasons)"
    yield from (f"note: {item}" for item in imported.not_understood)


def _one(left: LeftOut) -> str:
    finding = ConfigError(left.key, left_out.short(left.value), left.effect)  # It hides what may be a secret.
    return f"{finding.where}: {finding.rule}"


def _write_recipe(path: Path, imported: Imported, origin: Path, privileged: Sequence[PrivilegedSetting]) -> None:
    import yaml  # Imported late: few files become recipes.

    def note(content: bytes) -> None:
        trust.note_foreign(path, content, str(origin.absolute()), privileged)

    text = yaml.safe_dump(imported.recipe, sort_keys=False)
    write_new(path, text, otherwise=": choose another --recipe", before=note)
