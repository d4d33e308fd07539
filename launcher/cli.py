"""``launch``: find the verb, hand over, and turn what the user can act on into a message and an exit status.

The verb is the first word that is no option, and ``run`` where that is no verb, so that ``launch model=tiny`` works.
Only its module is imported: ``launch status`` should not wait for Hydra. Errors of the user's are exceptions of
``launcher.errors``, each with its exit status; anything else is a fault of ours and ends with a traceback and status 1.
With ``--json`` an error of the configuration is a document on stdout, too, and stderr always has the text.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from launcher import registry
from launcher.errors import INTERRUPTED, ConfigError, ConfigErrors, LauncherError, SubmitError
from launcher.package import __version__
from launcher.spec.parse import closest

VERBS = {
    "run": "compose, check, record and start a run (the default verb)",
    "check": "the pre-flight alone: validity, memory by pile and phase, fixes",
    "show": "the translated job: argv, environment, files, sbatch text",
    "prepare": "token ids of a run's data, made and kept before any run needs them",
    "status": "the state of runs",
    "logs": "what a run's processes printed",
    "cancel": "stop runs; each saves a checkpoint first",
    "resume": "go on with runs from their newest checkpoint",
    "doctor": "what this machine and its Slurm offer and lack, and a profile",
    "import": "a Megatron-LM, DeepSpeed or Hugging Face file as overrides",
    "recipe": "list, show, save, lock, verify, diff and fetch recipes",
}
RESERVED = ("plan", "rehearse", "report")
"""Verbs of later versions, refused by name: otherwise each would be read as a wrong override of ``run``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``launch`` command and return its exit status (docs/contract.md)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(words)
        sys.stdout.flush()
        return status
    except ConfigErrors as error:
        return _report_errors(error, as_json="--json" in words)
    except LauncherError as error:
        if "--json" in words and isinstance(error, SubmitError):  # The others come after the document that says why.
            print(json.dumps({"schema": 1, "error": str(error)}))
        print(f"launch: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # The reader has seen enough.
        return 0


def _dispatch(words: list[str]) -> int:
    words, script_args = _split(words)
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb is None and "--version" in words:
        print(f"launch {__version__}")
        return 0
    if not words or (verb is None and {"-h", "--help"} & set(words)):
        from launcher.commands._overview import text

        print(text(VERBS))
        return 0
    if verb in RESERVED:
        print(f"launch: this version has no `{verb}`; the name is kept for it", file=sys.stderr)
        return ConfigErrors.exit_status
    if verb in VERBS:
        words.remove(verb)
    else:
        verb = "run"
    module = registry.load("commands", verb if verb != "import" else "import_")
    parser = _Parser(prog=f"launch {verb}", description=_description(module.__doc__ or ""))
    module.arguments(parser)
    options = parser.parse_intermixed_args(words)
    options.script_args = script_args
    status: int = module.run(options)
    return status


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Separate the words after ``--``: the arguments of a user's own script."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _description(text: str) -> str:
    """A verb's description in 80 columns; a paragraph of commands keeps its lines."""
    paragraphs = text.strip().split("\n\n")
    filled = (part if "launch " in part.lstrip()[:7] else textwrap.fill(part, 80) for part in paragraphs)
    return "\n\n".join(filled)


class _Parser(argparse.ArgumentParser):
    """The options of a verb; a wrong one is explained like any other mistake, also as JSON."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print, with the option that was meant, where one is near."""
        known = {option.strip("-"): option for action in self._actions for option in action.option_strings}
        _, _, unknown = message.partition("unrecognized arguments: ")
        near = [known[name] for word in unknown.split() for name in closest(word.strip("-"), list(known))[:1]]
        raise ConfigErrors([ConfigError(self.prog, None, message, near or [f"{self.prog} --help"])])


def _report_errors(error: ConfigErrors, *, as_json: bool) -> int:
    from launcher.preflight.report import errors_as_text, invalid_as_json

    if as_json:
        print(json.dumps(invalid_as_json(error.errors)))
    print(errors_as_text(error.errors), file=sys.stderr)
    return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
