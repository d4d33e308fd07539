"""Where the job runs."""

from __future__ import annotations

from collections.abc import Iterator

from launcher import ways
from launcher.errors import ConfigError
from launcher.spec import RunSpec


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """A variable that is both given and inherited."""
    both = sorted(set(spec.cluster.environment) & set(spec.cluster.pass_environment))
    if both:
        rest = [name for name in spec.cluster.pass_environment if name not in both]
        rule = f"{', '.join(both)} would be inherited and is set in cluster.environment as well"
        way_out = [ways.override("cluster.pass_environment", rest)]
        yield ConfigError("cluster.pass_environment", list(spec.cluster.pass_environment), rule, way_out)
