"""Words that stand for others: keys and verbs of other tools, named in ways out, and ``plan=best``.

A tool's own spelling counts as the same word in any case, with hyphens or underscores, and behind ``--``.

``plan=best`` stands for the words of the layout that ``launch plan`` puts first. It is no setting: it is taken out of a
command line before anything composes it, and refused where nobody does. So is ``checkpointing=auto``, for the words of
the least recomputation with which the run fits.
"""

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from pathlib import Path

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.units import seconds_of

OPTIONS = {
    **{word: f"--{word}" for word in ("json", "force", "debug", "trust")},
    "plot": "--plot FILE.png",
    "explain": "--explain activations",
    "points": "--points FILE.jsonl",
    "trace": "--engine trace",
    "multirun": "-m",
}
"""Options that people type as words."""

_CUT = (
    "there is no cut cross entropy here: its package on PyPI is not Apple's own. Liger's fused loss and the chunked one"
    " never hold all logits, either"
)
ABSENT = {
    **dict.fromkeys(
        ("task=orpo", "task=cpo", "task=gkd"),
        "it is experimental in TRL 1.16 (trl.experimental) and no task of this version, which has sft, dpo, kto, reward"
        " and grpo",
    ),
    **dict.fromkeys((f"train.{key}={word}" for key in ("loss", "kernels") for word in ("cut", "cce")), _CUT),
    **dict.fromkeys((f"train.{key}=cut_cross_entropy" for key in ("loss", "kernels")), _CUT),
}
"""Options and values of other tools that there are on purpose not, and why."""

BEST_KEY = "plan"
BEST = f"{BEST_KEY}=best"
AUTO = "checkpointing=auto"
AUTO_ALONE = "it is chosen for one run of check, show, run, prepare and rehearse; `launch plan` searches it in any case"


def plain(word: str) -> str:
    """A word as the tables have it."""
    return word.lstrip("-+").replace("-", "_").lower()


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """The words of ``synonyms.yaml`` by what they mean: ``keys``, ``options`` and ``verbs``; read for unknown words."""
    found: Mapping[str, Mapping[str, str]] = files.load_own(Path(__file__).with_suffix(".yaml"))
    return found


@cache
def by_word() -> Mapping[str, list[str]]:
    """Ways out by the words of other tools."""
    return {word: ways.split("; ") for ways, words in table()["keys"].items() for word in words.split()}


def ways(key: str, value: str) -> list[str]:
    """Overrides for a key of another tool, alone or in a group (``tp``, ``parallel.tp``); none where it is unknown."""
    seconds = seconds_of(value)
    minutes = value if seconds is None else str(-(-seconds // 60))
    found = by_word().get(plain(key)) or by_word().get(plain(key).rpartition(".")[2]) or []
    first, _, last = (part.strip() for part in value.strip("[]()").partition(","))
    said = [("{}", value), ("{m}", minutes), ("{1}", first), ("{2}", last)]
    return [reduce(lambda way, part: way.replace(part[0], part[1] or "..."), said, way) for way in found]


def options(group: str, value: str) -> list[str]:
    """Overrides for an option of a group as other tools call it; none where it is not known."""
    known = table()["options"].items()
    return [way for ways, words in known if f"{group}={plain(value)}" in words.split() for way in ways.split("; ")]


def meant(error: ConfigError) -> ConfigError:
    """The error of a value with the ways out of another tool's word for it, and why there is no such value."""
    found = options(error.path, str(error.found))
    rule = ABSENT.get(f"{error.path}={plain(str(error.found))}", error.rule)
    return ConfigError(error.path, error.found, rule, found) if found else error


def verbs(word: str) -> list[str]:
    """Verbs that a word may stand for."""
    return [verb for verb, words in table()["verbs"].items() if word.lower() in words.split()]


def without_best(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The words without ``plan=best``, and True if it was there; raises ConfigErrors for another value of it."""
    rest = tuple(text for text in texts if text.partition("=")[0] != BEST_KEY or "=" not in text)
    if len(rest) < len(texts) and (wrong := [text for text in texts if text not in (*rest, BEST)]):
        raise ConfigErrors(best_refused(text.partition("=")[2]) for text in wrong)
    return rest, len(rest) < len(texts)


def without_auto(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The words without ``checkpointing=auto``, and True if it was there; ConfigErrors for its keys beside it."""
    rest = tuple(text for text in texts if text != AUTO)
    if len(rest) < len(texts):
        rule = f"{AUTO} chooses the keys of this group"
        beside = [text for text in rest if text.startswith("checkpointing")]
        if beside:
            pairs = (text.partition("=") for text in beside)
            raise ConfigErrors(ConfigError(key, value, rule, [AUTO, beside[0]]) for key, _, value in pairs)
    return rest, len(rest) < len(texts)


def best_refused(value: str) -> ConfigError:
    """The error of ``plan=VALUE`` where it means nothing."""
    if value == "best":
        rule = "it stands for a layout in check, show, run and -m: here type the words that `launch plan` prints"
        return ConfigError(BEST_KEY, value, rule, ["launch plan"])
    rule = "its one value is best, the layout that `launch plan` puts first; a layout of your own is words of its own"
    return ConfigError(BEST_KEY, value, rule, [BEST, "parallel=fsdp"])
