"""Variables of the job: their names, those that are not the user's to set, and those that are given twice."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_RESERVED = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|(MASTER|SLURM|TORCHELASTIC|PET|SUBMITIT)_.*|LAUNCH_(?!CACHE$).*)"
)
"""Set by torchrun (docs.pytorch.org, "Environment Variables" of torchrun; it reads its own options from ``PET_``), by
Slurm, submitit and ``launch``; ``LAUNCH_CACHE`` is the user's, the folder of token ids."""

_PATH = "cluster.pass_environment"


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Names that are none, reserved names, and names that are set and inherited."""
    cluster = spec.cluster
    for name in cluster.environment:
        if not _VARIABLE.fullmatch(name):
            rule = "a variable's name is letters, digits and _, and begins with no digit: take this one out"
            yield ConfigError(f"cluster.environment.{name}", None, rule)
        elif _RESERVED.fullmatch(name):
            rule = "the launcher, torchrun or Slurm sets it for each process: take it out"
            yield ConfigError(f"cluster.environment.{name}", None, rule)
    yield from _inherited(spec)


def _inherited(spec: RunSpec) -> Iterator[ConfigError]:
    given, names = spec.cluster.environment, spec.cluster.pass_environment
    malformed = [name for name in names if not _VARIABLE.fullmatch(name)]
    reserved = [name for name in names if _RESERVED.fullmatch(name)]
    both = sorted(set(given) & set(names))
    left_out = {*malformed, *reserved, *both}
    way_out = [edit.override(_PATH, [name for name in names if name not in left_out])]
    if malformed:
        rule = "it is a list of names, each of letters, digits and _ with no digit first; values come from your shell"
        yield ConfigError(_PATH, list(names), rule, way_out)
    if reserved:
        rule = f"the launcher, torchrun or Slurm sets {', '.join(reserved)} for each process: take it out"
        yield ConfigError(_PATH, list(names), rule, way_out)
    if both:
        rule = f"{', '.join(both)} would be inherited and is set in cluster.environment as well"
        yield ConfigError(_PATH, list(names), rule, way_out)
