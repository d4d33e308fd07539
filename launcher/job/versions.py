"""Versions of the frameworks: which are supported, and what the older ones of these lack.

The ranges are those of ``pyproject.toml`` (a test compares them). A feature that only newer versions have is a
:class:`Need` in its backend's profile, and a setting's extra imports are :class:`Borrowed` there, so that both are
reported before the job starts.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from pathlib import Path

from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.spec import RunSpec, edit

OLDEST = {"torch": "2.11", "transformers": "5.17", "deepspeed": "0.19.8", "megatron-core": "0.19", "peft": "0.21",
          "datasets": "4.7", "numpy": "1.26", "trl": "1.16", "torchao": "0.16", "bitsandbytes": "0.50",
          "lm-eval": "0.4.13"}  # fmt: skip
"""The oldest version of each package with which runs were trained (docs/engines.md)."""

BELOW = {"megatron-core": "0.20", "trl": "2"}
"""The first version of a package that is no longer supported, because the launcher calls its internals."""

PACKAGES = ("llm-launch", "torch", "deepspeed", "megatron-core", "transformers", "peft", "bitsandbytes", "datasets",
            "safetensors", "numpy", "hydra-core", "omegaconf", "submitit", "trl", "accelerate", "torchao",
            "liger-kernel", "triton", "emerging-optimizers", "flash-linear-attention", "mamba-ssm",
            "causal-conv1d", "lm-eval")  # fmt: skip
"""Packages whose version can change a run's numbers: a Python is asked for these, and a record lists them."""

LACKS = (("torch", "2.12", "gives ranks 30 s for their last checkpoint after SIGTERM, instead of 120"),)
"""A package, the first fixed version, and what older ones do to every run (``launcher.job.torchrun``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The packages of a Python that runs jobs."""

    packages: Mapping[str, str] = field(default_factory=dict)  # The version of each installed package.
    where: str = ""  # Completes "torch 2.7 is installed"; empty for this Python.
    pip: str = "pip"  # The command that installs packages there.


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A setting that a package supports only from some version on."""

    package: str  # The package.
    since: str  # The first version that supports it.
    path: str  # The key of the setting.
    asked: Callable[[RunSpec], bool]  # True if a run uses it.
    because: str  # What older versions lack; completes "torch 2.12 is installed, which ...".
    way_out: str  # Overrides that avoid it.


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A setting that needs packages that other runs do not import."""

    path: str  # The key of the setting.
    asked: Callable[[RunSpec], bool]  # True if a run uses it.
    packages: tuple[str, ...]  # The packages.
    extra: str  # The extra of this program that installs them.
    way_out: str  # Overrides that avoid them.


def unusable(
    spec: RunSpec, packages: Sequence[str], needs: Sequence[Need], there: Environment | None = None
) -> Iterator[ConfigError]:
    """Errors for packages outside the supported range, and for settings that need a newer version.

    ``packages`` are those that the run imports, ``needs`` its backend's, also for packages that those import; a user's
    script needs none of them. ``there`` is the Python that runs the job if it is not this one.
    """
    at = there if there is not None else here()
    for package in dict.fromkeys((*packages, *(need.package for need in needs))):
        version = at.packages.get(package)
        if version is None or spec.script is not None:
            continue
        found = f"{package} {version} is installed{at.where}"
        if not is_driven(package, version):
            rule = f"{found}; this version of launch supports {package} {span(package)}"
            taken = f">={OLDEST[package]}" + (f",<{BELOW[package]}" if package in BELOW else "")
            yield ConfigError("backend.name", spec.backend.name, rule, [f"{at.pip} install '{package}{taken}'"])
        for need in needs:
            if need.package == package and need.asked(spec) and numbers(version) < numbers(need.since):
                rule = f"{found}, which {need.because}; {need.since} and later can"
                ways = [f"{at.pip} install '{package}>={need.since}'", need.way_out]
                yield ConfigError(need.path, edit.value_at(spec, need.path), rule, ways)


def is_driven(package: str, version: str) -> bool:
    """True for a version in the supported range, and for a package without a range."""
    found = numbers(version)
    too_new = package in BELOW and found >= numbers(BELOW[package])
    return not too_new and not (package in OLDEST and found < numbers(OLDEST[package]))


def span(package: str) -> str:
    """The range in words: ``from 0.17, below 0.20``."""
    return f"from {OLDEST[package]}" + (f", below {BELOW[package]}" if package in BELOW else "")


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``2.15.0+cu132`` is (2, 15, 0).

    A pre-release counts as its release: ``2.8.0a0+5228986c39.nv25.05`` of an NVIDIA container is the code that became
    2.8, and no other name marks code between 2.7 and that; the same holds for a nightly ``2.9.0.dev20250801``.
    """
    found = []
    for part in text.partition("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)


def installed(package: str) -> str | None:
    """The version of a package in this Python; None if it is not installed."""
    return every().get(package)


def here() -> Environment:
    """The packages of this Python."""
    return Environment(packages=every())


@cache
def every() -> dict[str, str]:
    """Name and version of every installed distribution by its ``.dist-info`` folder, without opening each."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path):
        for path in sorted(Path(folder or ".").glob("*.dist-info")):
            name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return found
