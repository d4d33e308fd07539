"""Judge a run without starting it: validity, memory by pile and phase, verdict, fixes.

Needs no GPU, no torch, no Slurm and no network. Exit status: 0 it fits, 2 the configuration is wrong, 3 it does not
fit. With -m or --points: 0 when at least one point is valid and fits, else 3 (all unfit) or 2 (all invalid).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands import _points, _preview
from launcher.commands._common import (
    add_engine,
    add_hf,
    add_native,
    add_overrides,
    add_trust,
    asked,
    assessed,
    draw,
    memory_engine,
    print_json,
    require_one_run,
    take_hf,
    width,
)
from launcher.commands._trusting import judge, may_preview, require_for_trace, require_trust
from launcher.errors import ConfigError, ConfigErrors
from launcher.memory.terms import PILES
from launcher.preflight import explain
from launcher.preflight.check import Check
from launcher.preflight.explain import Explanation

if TYPE_CHECKING:
    from launcher.config.trust import Source

_STATUS = {"fits": 0, "tight": 0, "does_not_fit": 3, "invalid": 2}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="judge every point of a sweep")
    add_native(parser)
    parser.add_argument(
        "--points",
        type=Path,
        metavar="FILE.jsonl",
        help='judge many runs, - from stdin: a line each of {"id", "overrides"}; their ways out are single changes',
    )
    add_hf(parser)
    parser.add_argument("--deepspeed", type=Path, metavar="FILE", help="take the settings of a ds_config.json")
    parser.add_argument(
        "--megatron-args", type=Path, metavar="FILE", help="take the settings of a Megatron-LM argument list"
    )
    add_trust(parser)
    words = "explain a pile: its terms with symbols, numbers, bytes, moments, source, and where the error band is from"
    parser.add_argument("--explain", choices=PILES, metavar="PILE", help=f"{words} ({', '.join(PILES)})")
    add_engine(parser)


def run(options: argparse.Namespace) -> int:
    """Check one run, or many."""
    several = "--points" if options.points is not None else "-m" if options.multirun else None
    require_one_run(options, several)
    if options.points is not None:
        _require_nothing_beside_points(options)
        return _check_points(options.points)
    if options.multirun:
        if options.trust:
            require_trust(options)
        from launcher.commands import _sweeping

        return _sweeping.check(options)
    found = checked(options)
    if found.assessment is None and not options.json:
        raise ConfigErrors(found.errors)
    explanation = _explanation(options, found)
    readable = found.spec is not None and not found.errors and may_preview(options, found.spec)
    samples = _preview.previews(found.spec) if found.spec is not None and readable else []
    if options.json:
        document = _preview.as_json(found.as_dict(), samples)
        print_json(document | ({} if explanation is None else {"explain": explanation.as_dict()}))
    elif explanation is not None:
        print(explain.as_text(explanation, width()))
    else:
        print(found.as_text(width()))
        _preview.show(samples)
    if found.assessment is not None:
        draw(options, found.assessment)
    return _STATUS[found.verdict]


def checked(options: argparse.Namespace) -> Check:
    """Judge one run; words that make no run are an answer, too."""
    take_hf(options)
    typed = list(options.overrides)
    texts, unknown, sources = _imported(options)
    options.overrides = [*texts, *typed]
    if options.trust:
        require_trust(options, sources)
    found = asked(options)
    if found.spec is None:
        return Check(assessment=None, errors=found.errors, warnings=tuple(unknown))
    require_for_trace(options, sources, found.spec)
    native = judge(options, sources, typed) if options.native else None
    return Check.of(assessed(found, memory_engine(options), native=native), warnings=tuple(unknown))


def _explanation(options: argparse.Namespace, found: Check) -> Explanation | None:
    """The explanation that was asked for; an invalid run has none."""
    return None if options.explain is None or found.peak is None else found.explain(options.explain)


def _imported(options: argparse.Namespace) -> tuple[list[str], list[ConfigError], list[Source]]:
    """Foreign files as overrides, warnings of what is not understood, and the files.

    A setting that only asks for a key is left out where the user sets that key.
    """
    from launcher.commands.import_ import read
    from launcher.config import acting
    from launcher.config.trust import Source

    given = {text.partition("=")[0] for text in options.overrides}
    texts: list[str] = []
    unknown: list[ConfigError] = []
    sources: list[Source] = []
    for kind, path in (("deepspeed", options.deepspeed), ("megatron", options.megatron_args)):
        if path is not None:
            imported = read(kind, path)
            texts += imported.overrides
            deeds = acting.of_words(options.overrides, imported.recipe["choose"] | imported.recipe["set"])
            sources.append(Source(path=path, deeds=deeds))
            rule = "it is not understood, and not in the estimate"
            items = (item for item in imported.not_understood if not _asks_for(item) & given)
            unknown += [ConfigError(str(path), item, rule) for item in items]
    return texts, unknown, sources


def _asks_for(item: str) -> set[str]:
    """The key that something which is not understood asks for: ``...: set model.vocab_size``."""
    return set(re.findall(r": set ([\w.]+)", item))


def _require_nothing_beside_points(options: argparse.Namespace) -> None:
    """Refuse words that no point would take over, which would else be dropped.

    Raises:
        ConfigErrors: There are some.
    """
    flags = [flag for flag, given in (("-m", options.multirun), ("--trust", options.trust)) if given]
    found = " ".join([*flags, *options.overrides])
    if found:
        rule = "each point of --points holds all of its overrides: write it into their lines"
        raise ConfigErrors([ConfigError("OVERRIDE", found, rule)])


def _check_points(path: Path) -> int:
    statuses = set()
    for verdict, answer in _points.answers(path):
        statuses.add(_STATUS[verdict])
        print(answer, flush=True)
    if not statuses:
        rule = 'the file holds no point: a line each of {"id": ..., "overrides": ["group=option", ...]}'
        raise ConfigErrors([ConfigError("--points", str(path), rule)])
    return min(statuses, key=(0, 3, 2).index)
