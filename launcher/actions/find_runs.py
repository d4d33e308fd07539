"""The runs that a command line names; if a word matches several, a person at the terminal chooses one."""

import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.base.terminal import ask_person, say
from launcher.rundir import run_names, state, status
from launcher.rundir.run_names import Ambiguous


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRuns:
    """The runs and sweeps that words name."""

    places: tuple[Path, ...]  # Their folders, in the order of the words.

    @property
    def runs(self) -> list[Path]:
        """The run directories that the words name; a sweep stands for all of its runs."""
        return [run for place in self.places for run in run_names.runs_of(place)]

    @property
    def sweep(self) -> Path | None:
        """The folder of a sweep if the words name only that sweep, else None."""
        return self.places[0] if len(self.places) == 1 and run_names.is_sweep(self.places[0]) else None


def named(words: Sequence[str], *, ask: bool = False) -> FoundRuns:
    """The runs and sweeps that words name, or all runs without words; ConfigErrors for unknown or ambiguous words."""
    if not words:
        return FoundRuns(places=tuple(run_names.find((), Path.cwd())))
    return FoundRuns(places=tuple(place for word in words for place in _places(word, ask=ask)))


def _places(word: str, *, ask: bool) -> Sequence[Path]:
    try:
        return run_names.places(word, Path.cwd())
    except FileNotFoundError:
        known = [run_names.name_of(path, Path.cwd()) for path in run_names.find([], Path.cwd())[-3:]]
        rule = "no such run or sweep: not a name below runs/, a path, a job id, or a run recorded elsewhere"
        raise ConfigErrors([ConfigError("RUN", word, rule, known or ["launch status"])]) from None
    except Ambiguous as doubt:
        if ask and sys.stdin.isatty() and sys.stderr.isatty():
            return [_choose(doubt)]
        raise ConfigErrors([refusal(doubt)]) from None


def refusal(doubt: Ambiguous) -> ConfigError:
    """The error for a word that matches several runs, with words that tell them apart."""
    words = [run_names.name_of(path, Path.cwd()) for path in doubt.candidates]
    return ConfigError("RUN", doubt.name, f"{len(words)} runs match this name, and launch does not guess", words)


def _choose(doubt: Ambiguous) -> Path:
    words = [run_names.name_of(path, Path.cwd()) for path in doubt.candidates]
    say(f"launch: {len(words)} runs match {doubt.name}:")
    for number, (word, path) in enumerate(zip(words, doubt.candidates, strict=True), 1):
        what = "a sweep" if (path / state.SWEEP).is_file() else status.read(path).state
        say(f"  {number}  {word}  ({what})")
    answer = ask_person("which one? (a number, or Enter to stop) ")
    if answer.isdecimal() and 1 <= int(answer) <= len(words):
        return doubt.candidates[int(answer) - 1]
    raise ConfigErrors([ConfigError("RUN", doubt.name, "no run was chosen", words)])
