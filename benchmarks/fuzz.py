"""Hostile and hapless input: generated command lines and mutated recipes through ``check`` and ``show``.

    python -m benchmarks.fuzz [--cases 20000] [--first N] [--seed N] [--minutes M] [--keep]

Every answer must be an exit status of docs/contract.md within 2 s, with no traceback, no file written, and no value of
the input in generated shell text unless it is quoted. ``tests/commands/test_fuzz.py`` runs the first hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import os
import random
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit  # noqa: F401  # Now, because its import closes log handlers, and absl's then closes a stream not in use.
import yaml

from benchmarks.reporting import keep
from launcher.cli import main as launch
from launcher.config.catalog import Catalog, shipped
from launcher.config.recipes import literal
from launcher.spec.parse import kinds

STATUSES = (0, 2, 3)
LIMIT_S = 2.0
"""Of processor time, so that a busy machine is no fault."""

MARK = "pwned"
_HOSTILE = (
    f"$(touch {MARK})",
    f"`touch {MARK}`",
    f"; touch {MARK}",
    f"'; touch {MARK}; '",
    f'"$(touch {MARK})"',
    f"a\ntouch {MARK}",
    f"| touch {MARK} #",
    f"../{MARK}",
    f"{{a:{MARK}}}",
    f"[{MARK},",
    f"\\{MARK}\\",
    f"{MARK}\x00",
    f"é {MARK} 漢",
)
_SHELL = ("cluster.setup", "cluster.modules", "script")
"""Keys whose values are shell lines, or the program itself, by what they mean."""
_PLAIN = ("0", "1", "2", "3", "8", "7", "-1", "1e-5", "1e400", "nan", "null", "true", "", "[]", "{}", "a", "1" * 40)


@dataclass(frozen=True, slots=True)
class Case:
    """One input: the words of a command, and the text of the recipe that they may name."""

    words: tuple[str, ...]
    recipe: str | None


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault that a case found."""

    case: Case
    what: str

    def __str__(self) -> str:
        return f"launch {shlex.join(self.case.words)}\n{self.case.recipe or ''}\n{self.what}\n"


def cases(seed: int) -> Iterator[Case]:
    """Cases without end; the same seed gives the same ones."""
    chance = random.Random(seed)
    catalog = Catalog(folder=Path("/nonexistent"))
    recipes = [path.read_text() for path in sorted(shipped("recipes").glob("*.yaml"))]
    keys = sorted(kinds())
    while True:
        words = [_word(chance, catalog, keys) for _ in range(chance.randint(0, 6))]
        recipe = _mutated(chance, chance.choice(recipes), catalog, keys) if chance.random() < 0.4 else None
        if recipe is not None:
            words.append("recipe=fuzzed")
        verb = chance.choice(("check", "show"))
        options = ["--no-native", *(["--json"] if chance.random() < 0.3 else [])]
        yield Case((verb, *words, *(options if verb == "check" else options[1:])), recipe)


def _word(chance: random.Random, catalog: Catalog, keys: list[str]) -> str:
    if chance.random() < 0.5:
        group = chance.choice(sorted(catalog.groups))
        option = chance.choice([*catalog.groups[group], _value(chance)])
        return f"{group}={option}"
    if chance.random() < 0.4:
        key = chance.choice([key for key in keys if key not in _SHELL and kinds()[key] in (str, str | None)])
        return f"{key}={literal(chance.choice(_HOSTILE))}"
    key = chance.choice([*keys, chance.choice(keys)[:-1], "", "+x.y", "backend.extra.x", "~model"])
    return f"{key}={_value(chance)}"


def _value(chance: random.Random) -> str:
    return chance.choice(_HOSTILE if chance.random() < 0.4 else _PLAIN)


def _mutated(chance: random.Random, text: str, catalog: Catalog, keys: list[str]) -> str:
    """A shipped recipe with a few changes: of its data, or of its characters."""
    if chance.random() < 0.5:
        at = chance.randrange(len(text))
        return (
            text[:at]
            + chance.choice([*_HOSTILE, "${oc.env:HOME}", "&a *a", "!!x", "\t", "[" * 50, ": "])
            + text[at + chance.randint(0, 9) :]
        )
    content: dict[str, Any] = yaml.safe_load(text)
    for _ in range(chance.randint(1, 3)):
        section = chance.choice(("choose", "set", "sweep"))
        key = chance.choice(sorted(catalog.groups) if section == "choose" else keys)
        value: object = chance.choice([_value(chance), chance.randint(-2, 10**6), [_value(chance)], None, {"a": 1}])
        content.setdefault(section, {})[key] = value
    return yaml.safe_dump(content)


def fault(case: Case, folder: Path) -> str | None:
    """Run a case in an empty folder; what is wrong with the answer, or None."""
    (folder / "recipes").mkdir(exist_ok=True)
    if case.recipe is not None:
        (folder / "recipes" / "fuzzed.yaml").write_text(case.recipe)
    before = _files(folder)
    out, err = io.StringIO(), io.StringIO()
    begin = time.process_time()
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = launch(case.words)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except Exception:
        return traceback.format_exc()
    seconds = time.process_time() - begin
    if status not in STATUSES:
        return f"exit status {status}: {err.getvalue()[-500:]}"
    if seconds > LIMIT_S:
        return f"it took {seconds:.1f} s"
    if _files(folder) != before:
        return f"files were written: {sorted(_files(folder) - before)}"
    if case.words[0] == "show" and status in (0, 3) and "--json" not in case.words:
        return _unquoted(out.getvalue())
    return None


def _files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def _unquoted(text: str) -> str | None:
    """A hostile value that would act: split as a shell does, a word with the mark must hold the whole value."""
    job, _, sbatch = text.partition("\n# sbatch\n")
    command = job.partition("\n\n")[0]
    for part in (command, *(line for line in sbatch.splitlines() if not line.startswith("#"))):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            return f"a quote of a value does not end: {part}"
        for word in words:
            if MARK in word and not any(value in word for value in _HOSTILE):
                return f"a value acts in the shell: {word!r} of {part}"
    return None


def ran(count: int, seed: int, *, first: int = 0, deadline: float = math.inf) -> tuple[int, list[Fault]]:
    """Run so many cases from the ``first`` on, or until a time: how many were run, and every fault that they show."""
    done, found = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in itertools.islice(cases(seed), first, first + count):
            if time.monotonic() > deadline:
                break
            what = fault(case, folder)
            done += 1
            if what is not None:
                found.append(Fault(case, what))
                print(found[-1], flush=True)
    return done, found


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="leave out so many cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long, whatever is left")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/fuzz.json")
    options = parser.parse_args()
    os.environ.setdefault("XDG_CACHE_HOME", tempfile.mkdtemp())
    begin = time.monotonic()
    done, found = ran(options.cases, options.seed, first=options.first, deadline=begin + 60 * options.minutes)
    seconds = round(time.monotonic() - begin)
    if options.keep:
        figures = {
            "seed": options.seed,
            "first": options.first,
            "cases": done,
            "faults": len(found),
            "seconds": seconds,
        }
        keep("fuzz", f"python -m benchmarks.fuzz --cases {done} --seed {options.seed} --keep", figures)
    print(f"{done} cases, {len(found)} faults, {seconds} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
