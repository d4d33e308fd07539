"""Where the job runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher import ways
from launcher.errors import ConfigError
from launcher.spec import RunSpec

_SECRET = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)($|_)", re.IGNORECASE)


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """A variable that is both given and inherited, and one whose value would be a secret in every record."""
    for name in sorted(filter(_SECRET.search, spec.cluster.environment)):
        rule = (
            "its name is that of a secret, and settings are recorded: remove it here and let the job inherit it by name"
        )
        way_out = [ways.override("cluster.pass_environment", [*spec.cluster.pass_environment, name])]
        yield ConfigError(f"cluster.environment.{name}", "(not shown)", rule, way_out)
    both = sorted(set(spec.cluster.environment) & set(spec.cluster.pass_environment))
    if both:
        rest = [name for name in spec.cluster.pass_environment if name not in both]
        rule = f"{', '.join(both)} would be inherited and is set in cluster.environment as well"
        way_out = [ways.override("cluster.pass_environment", rest)]
        yield ConfigError("cluster.pass_environment", list(spec.cluster.pass_environment), rule, way_out)
