"""Versions of the frameworks: which are driven, and what an older one of these lacks.

The ranges are those of ``pyproject.toml`` (a test compares them). Workers ask the frameworks themselves
(``launcher.worker.*.versions``); what no worker can make up for is a :class:`Need` of its backend's profile, so that it
is said before the job starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from launcher.errors import ConfigError
from launcher.spec import RunSpec

OLDEST = {
    "torch": "2.8",
    "transformers": "4.56",
    "deepspeed": "0.17",
    "peft": "0.17",
    "datasets": "3.0",
    "numpy": "1.26",
}
"""The first version of each package with which runs were trained (docs/versions.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A setting that a package honours only from a version on.

    Attributes:
        package: The package.
        since: Its first version that has it.
        path: The key of the setting.
        asked: True where a run asks for it.
        because: What older versions lack; it completes "torch 2.9 ...".
        way_out: Words with which the run does without it.
    """

    package: str
    since: str
    path: str
    asked: Callable[[RunSpec], bool]
    because: str
    way_out: str


def unusable(
    spec: RunSpec, packages: Sequence[str], needs: Sequence[Need], version_of: Callable[[str], str | None] | None = None
) -> Iterator[ConfigError]:
    """Packages that are older than what is driven, and settings that need a newer one.

    Args:
        spec: The run; a script of the user's own asks nothing of these.
        packages: Those that the run imports.
        needs: What the run's backend says of them.
        version_of: The version of a package, None where it is not installed; asks this Python where it is not given.
    """
    for package in packages:
        here = (version_of or installed)(package)
        if here is None or spec.script is not None:
            continue
        if package in OLDEST and numbers(here) < numbers(OLDEST[package]):
            rule = f"{package} {here} is installed; this version of launch drives {package} from {OLDEST[package]}"
            yield ConfigError("backend.name", spec.backend.name, rule, [_newer(package, OLDEST[package])])
        for need in needs:
            if need.package == package and need.asked(spec) and numbers(here) < numbers(need.since):
                rule = f"{package} {here} is installed, which {need.because}; from {need.since} on it can"
                ways = [_newer(package, need.since), need.way_out]
                yield ConfigError(need.path, _value(spec, need.path), rule, ways)


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.15.0+cu132`` is (2, 15, 0)."""
    found = []
    for part in text.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


@cache
def installed(package: str) -> str | None:
    """The version of a package of this Python; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _newer(package: str, oldest: str) -> str:
    return f"pip install '{package}>={oldest}'"


def _value(spec: RunSpec, path: str) -> object:
    group, _, key = path.partition(".")
    return getattr(getattr(spec, group), key)
