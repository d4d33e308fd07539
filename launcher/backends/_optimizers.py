"""Rules and settings that several engines' optimizers share."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_SECOND_MOMENT: dict[str, object] = {"optimizer.beta2": 0.95, "optimizer.epsilon": 1e-8}
"""Keys that only Adam reads, with the defaults of conf/optimizer/_base.yaml."""


def idle_beside_sgd(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings of a second moment, which SGD does not have."""
    if spec.optimizer.name != "sgd":
        return
    for path, neutral in _SECOND_MOMENT.items():
        if (value := edit.value_at(spec, path)) != neutral:
            rule = "sgd has no second moment; it reads optimizer.beta1 as its momentum"
            yield ConfigError(path, value, rule, ["optimizer=adamw", edit.override(path, neutral)])
