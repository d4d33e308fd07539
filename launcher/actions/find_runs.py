"""The runs that a command line names: of several that answer to a word a person at a terminal chooses, else none is."""

import sys
from collections.abc import Iterable
from pathlib import Path

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import ask_person, say
from launcher.rundir import run_names, state, status
from launcher.rundir.run_names import Ambiguous


def resolve_names(names: Iterable[str], *, ask: bool) -> list[str]:
    """Words of runs, a directory in place of each that several answer to; ConfigErrors where nobody can choose."""
    return [_resolve(name, ask=ask) for name in names]


def find(names: list[str]) -> list[Path]:
    """Run directories by words, of a sweep all of its runs; raises ConfigErrors where a word is no run, or several."""
    return run_names.find([_resolve(name, ask=False) for name in names], Path.cwd())


def sweep_of(name: str) -> Path | None:
    """The folder of the sweep that a word names; None where it names none; raises ConfigErrors where it is several."""
    try:
        [place, *more] = run_names.places(name, Path.cwd())
    except FileNotFoundError:
        return None
    except Ambiguous as doubt:
        raise ConfigErrors([refusal(doubt)]) from None
    return place if not more and (place / state.SWEEP).is_file() else None


def _resolve(name: str, *, ask: bool) -> str:
    try:
        run_names.places(name, Path.cwd())
    except FileNotFoundError:
        known = [run_names.name_of(path, Path.cwd()) for path in run_names.find([], Path.cwd())[-3:]]
        rule = "no such run: no name below runs/, no path, no job id, and none that was recorded elsewhere"
        raise ConfigErrors([ConfigError("RUN", name, rule, known or ["launch status"])]) from None
    except Ambiguous as doubt:
        if ask and sys.stdin.isatty() and sys.stderr.isatty():
            return str(_choose(doubt))
        raise ConfigErrors([refusal(doubt)]) from None
    return name


def refusal(doubt: Ambiguous) -> ConfigError:
    """The error of a word that several runs answer to, with words that tell them apart."""
    words = [run_names.name_of(path, Path.cwd()) for path in doubt.candidates]
    return ConfigError("RUN", doubt.name, f"{len(words)} runs answer to this word, and none is guessed", words)


def _choose(doubt: Ambiguous) -> Path:
    words = [run_names.name_of(path, Path.cwd()) for path in doubt.candidates]
    say(f"launch: {len(words)} runs answer to {doubt.name}:")
    for number, (word, path) in enumerate(zip(words, doubt.candidates, strict=True), 1):
        what = "a sweep" if (path / state.SWEEP).is_file() else status.read(path).state
        say(f"  {number}  {word}  ({what})")
    answer = ask_person("which one? its number, or nothing to stop: ")
    if answer.isdecimal() and 1 <= int(answer) <= len(words):
        return doubt.candidates[int(answer) - 1]
    raise ConfigErrors([ConfigError("RUN", doubt.name, "none of them was chosen", words)])
