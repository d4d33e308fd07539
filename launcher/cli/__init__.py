"""The ``launch`` command: it finds the verb, calls it, and turns errors into a message and an exit status.

The verb is the first word that is not an option, or ``run`` if that word is not a verb, so that ``launch model=tiny``
works. Only the verb's module is imported: ``launch status`` should not wait for Hydra. Errors that the user can act on
are exceptions of ``base.errors``, each with its exit status; any other is a bug and ends with a traceback and status 1.
With ``--json`` a configuration error is also printed as a document on stdout; stderr always has the text.
"""

import argparse
import errno
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from launcher.base.errors import (
    INTERRUPTED,
    ConfigError,
    ConfigErrors,
    DataError,
    LauncherError,
    SubmitError,
    Unwritable,
)

VERBS = {
    "run": "compose, check, record and start a run (the default verb)",
    "check": "only the pre-flight: validity, memory by pile and phase, fixes",
    "show": "the translated job: argv, environment, files, sbatch text",
    "plan": "the fastest layouts that fit, searching all keys that are not set",
    "rehearse": "measure one rank of a run on one device",
    "prepare": "tokenize a run's data ahead of the run, and cache it",
    "status": "the state of runs",
    "watch": "a run live on the terminal: queue, progress, memory by pile",
    "logs": "a run's steps, its errors and the output of its processes",
    "why": "why a run ended the way it did, and what would help",
    "compare": "runs side by side: settings, losses, speed, memory",
    "report": "an HTML page of a run, of several runs or of a sweep",
    "cancel": "stop runs; each saves a checkpoint first",
    "resume": "continue runs from their newest checkpoint",
    "doctor": "what this machine and its Slurm offer and lack, and a profile",
    "import": "a file of another program (axolotl, Megatron-LM, ...) as overrides",
    "recipe": "list, show, save, lock, verify, diff and fetch recipes",
    "completion": "a completion script for bash, zsh or fish",
}
_OF_THE_SYSTEM = frozenset((
    errno.EACCES, errno.EDQUOT, errno.EIO, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE, errno.ENOSPC,
    errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE,
))  # fmt: skip
"""System errors caused by a path that the user typed, a disk, a permission or a limit, and not by a bug."""

_LONGEST = 200  # Longest excerpt of a path quoted in a message, in characters.


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``launch`` command and return its exit status (docs/contract/commands.md)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["__complete"]:  # Called at each Tab key, so nothing else is imported.
        from launcher.cli.completion import answer

        return answer(words[1:], VERBS)
    try:
        from launcher.base import terminal

        if argv is None:  # A program that calls this keeps its own hook.
            sys.excepthook = terminal.show_fault
        with terminal.guarded():
            try:
                return _ended(words)
            finally:  # Also after --help, which ends with an exception.
                sys.stdout.flush()
    except KeyboardInterrupt:  # Before the command began, or after its last output.
        return _interrupted(words)
    except BrokenPipeError:
        return 0  # The reader of the pipe has closed it.
    except Unwritable as error:
        print(f"launch: {error}", file=sys.stderr or open(os.devnull, "w"))  # noqa: PTH123, SIM115
        return error.exit_status


def _ended(words: list[str]) -> int:
    try:
        return _dispatch(words)
    except ConfigErrors as error:
        return _report_errors(error, as_json="--json" in words)
    except DataError as error:
        from launcher.data.unusable import as_errors

        return _report_errors(as_errors(error), as_json="--json" in words)
    except (Unwritable, BrokenPipeError):
        raise
    except LauncherError as error:
        if "--json" in words and isinstance(error, SubmitError):  # Other errors follow the document that explains them.
            from launcher.base.terminal import as_json

            print(as_json({"schema": 1, "error": str(error)}))
        print(f"launch: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return _interrupted(words)
    except Exception as error:
        return _fault(error, words)


def _fault(error: Exception, words: Sequence[str]) -> int:
    """Report an unexpected error: an interruption, a system error, or a bug, which is raised again."""
    from launcher.submission import interrupts

    if interrupts.happened():  # Extension modules wrap exceptions raised during their import.
        return _interrupted(words)
    if isinstance(error, OSError):
        return _report_errors(_of_the_system(error), as_json="--json" in words)
    raise error


def _of_the_system(error: OSError) -> ConfigErrors:
    """A system error about a file or folder as a ConfigError; any other error is raised again."""
    if error.errno not in _OF_THE_SYSTEM:
        raise error
    where = str(error.filename) if error.filename is not None else "the system"
    where = where if len(where) < _LONGEST else f"{where[:_LONGEST]}..."
    return ConfigErrors([ConfigError(where, None, f"the operating system refuses it: {error.strerror}")])


def _interrupted(words: Sequence[str]) -> int:
    from launcher.submission import interrupts

    verb = _first_word(words)
    interrupts.say(starts=verb not in VERBS or verb in {"run", "resume"})
    return INTERRUPTED


def _first_word(words: Sequence[str]) -> str | None:
    return next((word for word in words if not word.startswith("-")), None)


def _dispatch(words: list[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    words, script_args = words[:at], words[at + 1 :]  # After it come the arguments of the user's script.
    verb = _first_word(words)
    if verb is None and "--version" in words:
        from launcher.base.package import __version__

        print(f"launch {__version__}")
        return 0
    _require_a_folder()
    if not words or (verb is None and {"-h", "--help"} & set(words)):
        print(_overview())
        return 0
    if verb in VERBS:
        words.remove(verb)
    elif verb is not None and verb == words[0] and "=" not in verb:
        raise _no_verb(verb, words[1:])
    else:
        verb = "run"
    from launcher.base import registry

    module = registry.load("commands", verb if verb != "import" else "import_")
    parser = _Parser(prog=f"launch {verb}", description=module.__doc__ or "", words=words)
    module.arguments(parser)
    options = parser.parse_intermixed_args(words)
    options.script_args = script_args
    status: int = module.run(options)
    return status


def _require_a_folder() -> None:
    """Raise ConfigErrors if the working folder no longer exists: every relative path would start from it."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError as error:
        rule = f"it was removed or moved: {error.strerror}"
        raise ConfigErrors([ConfigError("the working folder", None, rule, ["cd", 'cd "$PWD"'])]) from None


def _no_verb(word: str, rest: Sequence[str]) -> ConfigErrors:
    from pathlib import Path

    from launcher.config.catalog import Catalog
    from launcher.config.overrides import bare_word_ways

    ways = bare_word_ways(word, Catalog(folder=Path.cwd()), list(VERBS))
    behind = "".join(f" {each}" for each in rest)
    whole = [way + behind if way.removeprefix("launch ").removesuffix(" -m") in VERBS else way for way in ways]
    whole = [f"launch check{behind} {way}" if way.startswith("--") else way for way in whole]
    rule = "there is no such verb, and an override is group=option or group.key=value"
    return ConfigErrors([ConfigError(word, None, rule, whole or ["launch --help"])])


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        from launcher.base.terminal import width  # By itself argparse imports `shutil`: eight modules.

        super().__init__(prog, width=width(200) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from launcher.base.terminal import wrapped

        parts = text.strip().split("\n\n")
        kept = ([part] if "launch " in part.lstrip()[:7] else wrapped(part, 80) for part in parts)
        return "\n\n".join(map("\n".join, kept))


class _Parser(argparse.ArgumentParser):
    def __init__(self, prog: str, description: str, words: Sequence[str]) -> None:
        self.words = words
        super().__init__(prog=prog, description=description, formatter_class=_Help, allow_abbrev=False)
        self.color = False  # Python 3.14 would color the help with escape sequences, which are shown as text here.

    def _meant(self, option: str, known: Mapping[str, str]) -> list[str]:
        """Overrides for an option of another tool (``--nodes 2``: ``cluster.nodes=2``), else a similar option."""
        from pathlib import Path

        from launcher.config.catalog import Catalog
        from launcher.config.overrides import other_words
        from launcher.config.synonyms import verbs
        from launcher.spec.parse import closest

        key, equals, value = option.partition("=")
        if not equals:
            following = self.words[self.words.index(key) + 1 :] if key in self.words else []
            value = following[0] if following and not re.match("-|[a-z_.]+=", following[0]) else "..."
        bare = key.strip("-")
        others = [word for word in self.words if word != option]
        return (
            [known[name] for name in known if name.startswith(f"{bare}-")]
            or other_words(bare, value, Catalog(folder=Path.cwd()))
            or [shlex.join(["launch", verb, *others]) for verb in verbs(bare) if verb == "check"]
            or [known[name] for name in closest(bare, list(known))[:1]]
        )

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as ConfigErrors, with a similar option if there is one."""
        message, choose, choices = message.partition(" (choose from ")
        message += choose + choices.replace("'", "")  # As in Python 3.13.
        known = {option.strip("-"): option for action in self._actions for option in action.option_strings}
        _, _, unknown = message.partition("unrecognized arguments: ")
        near = [way for word in unknown.split() if word.startswith("-") for way in self._meant(word, known)]
        if choose and (wrong := [*message.split("'"), ""][1]) in self.words:
            from launcher.spec.parse import closest

            meant = closest(wrong, re.findall(r"[\w-]+", choices))[:1]
            near = [f"{self.prog} {shlex.join(self.words).replace(wrong, each, 1)}" for each in meant]
        if unknown and any(word.startswith("script=") for word in self.words):
            own, theirs = self._split(known)
            message = f"unrecognized arguments: {shlex.join(theirs)}; the script's arguments come after --"
            near = [
                *(way for way in near if way.startswith("-")),
                shlex.join([*self.prog.split(), *own, "--", *theirs]),
            ]
        raise ConfigErrors([ConfigError(self.prog, None, message, near or [f"{self.prog} --help"])])

    def _split(self, known: Mapping[str, str]) -> tuple[list[str], list[str]]:
        from launcher.config.overrides import is_stray

        options = set(known.values())
        theirs = [word for word in self.words if is_stray(word) and word.partition("=")[0] not in options]
        return [word for word in self.words if word not in theirs], theirs


def _report_errors(error: ConfigErrors, *, as_json: bool) -> int:
    from launcher.base.terminal import as_json as as_line
    from launcher.preflight.assess import invalid_as_json
    from launcher.views.check.text import errors_as_text

    if as_json:
        print(as_line(invalid_as_json(error.errors)))
    print(errors_as_text(error.errors), file=sys.stderr)
    return error.exit_status


def _overview() -> str:
    from pathlib import Path

    from launcher.base.terminal import wrapped
    from launcher.config.catalog import Catalog

    lines = [
        "launch GROUP=OPTION... GROUP.KEY=VALUE...   check, record and start a run",
        "launch VERB ...                             a verb; each has --help",
        "",
        "  launch model=tiny parallel=fsdp",
        "  launch check model=7b parallel=fsdp hardware=h100_80g cluster.gpus_per_node=8",
        "  launch plan model=7b hardware=h100_80g         the fastest layouts that fit",
        "  launch check model=./folder   a Hugging Face folder; model=org/name: the Hub's",
        "  launch model=7b hardware=h100_80g plan=best    run with the first of them",
        "  launch recipe=NAME train.micro_batch_size=2",
        "  launch -m model=tiny optimizer.lr=1e-4,3e-4   a sweep",
        "  launch script=train.py -- --your --arguments",
        "",
        "Verbs",
        *(f"  {verb:{max(map(len, VERBS))}} {meaning}" for verb, meaning in VERBS.items()),
        "",
        "Groups and their options",
    ]
    for group, options in Catalog(folder=Path.cwd()).groups.items():
        lines += wrapped(" ".join(options) or "(none)", 80, f"  {group:13} ", " " * 16)
    lines += [
        "",
        "Keys inside a group: launch show GROUP, for example `launch show parallel`.",
        "Exit status: 0 done, 2 wrong configuration, 3 does not fit, 4 submission or run",
        "folder failed, 5 the job failed, 130 interrupted, 1 a bug in launch itself.",
    ]
    return "\n".join(lines)
