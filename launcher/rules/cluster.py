"""Rules about the machine or cluster that the job runs on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from launcher.errors import ConfigError
from launcher.spec import RunSpec, edit

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)($|_)", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = re.compile(r"(^|[_-])(KEY|TOKEN|SECRET|PASSWORD)=", re.IGNORECASE)


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Variables given twice, recorded secrets, a container without an image, a stray name, a margin without time."""
    yield from _variables(spec)
    yield from _slurm(spec)
    if spec.cluster.probe and spec.script is not None:
        rule = "the ranks of a script of your own start by themselves, and are not compared first"
        yield ConfigError("cluster.probe", True, rule, ["cluster.probe=null"])
    name = spec.run.name
    if name is not None and (not name or PurePath(name).is_absolute() or {".", ".."} & set(name.split("/"))):
        rule = "a name is a folder below runs/; run.directory puts a run anywhere else"
        yield ConfigError("run.name", name, rule, ["run.name=null"])


def _slurm(spec: RunSpec) -> Iterator[ConfigError]:
    cluster = spec.cluster
    if any(map(_WORDS.search, cluster.setup)):
        rule = "a line of it sets what looks like a secret, and scripts are kept: let the job inherit it by name"
        yield ConfigError("cluster.setup", "(not shown)", rule, ["cluster.setup=[]"])
    if cluster.container != "none" and cluster.container_image is None:
        rule = f"{cluster.container} needs the image to run"
        yield ConfigError("cluster.container_image", None, rule, ["cluster.container=none"])
    limit = cluster.time_limit_min
    if limit is not None and cluster.kind == "slurm" and cluster.save_margin_s >= limit * 60:
        rule = f"the job would be told to save before it starts: its time limit is {limit * 60} s"
        ways_out = [f"cluster.time_limit_min={cluster.save_margin_s // 30}", f"cluster.save_margin_s={limit * 30}"]
        yield ConfigError("cluster.save_margin_s", cluster.save_margin_s, rule, ways_out)


def _variables(spec: RunSpec) -> Iterator[ConfigError]:
    for name in sorted(filter(_SECRET.search, spec.cluster.environment)):
        rule = (
            "its name is that of a secret, and settings are recorded: remove it here and let the job inherit it by name"
        )
        way_out = [edit.override("cluster.pass_environment", [*spec.cluster.pass_environment, name])]
        yield ConfigError(f"cluster.environment.{name}", "(not shown)", rule, way_out)
    for name in spec.cluster.environment:
        if not _VARIABLE.fullmatch(name):
            rule = "a variable's name is letters, digits and _, and begins with no digit"
            yield ConfigError("cluster.environment", name, rule, ["cluster.environment={}"])
    both = sorted(set(spec.cluster.environment) & set(spec.cluster.pass_environment))
    if both:
        rest = [name for name in spec.cluster.pass_environment if name not in both]
        rule = f"{', '.join(both)} would be inherited and is set in cluster.environment as well"
        way_out = [edit.override("cluster.pass_environment", rest)]
        yield ConfigError("cluster.pass_environment", list(spec.cluster.pass_environment), rule, way_out)
