"""Reading a ``config.json``: the keys left out, those of them that matter, the errors, and the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from launcher.config.hub import reading
from launcher.importers.hf import read


def left_out(config: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {left.key: (left.effect, left.matters) for left in read(json.dumps(config), "config.json").left_out}


def that_matters(config: dict[str, Any]) -> list[str]:
    return [key for key, (_, matters) in left_out(config).items() if matters]


def refused(config: dict[str, Any]) -> dict[str, str]:
    return {str(error.path).rpartition(" ")[2]: error.way_out[0] for error in read(json.dumps(config), "c.json").errors}


def model_of(config: dict[str, Any]) -> Mapping[str, Any]:
    return reading.read(json.dumps(config), "config.json").model


def errors_of(text: str) -> list[dict[str, object]]:
    return [error.as_dict() for error in read(text, "models/config.json").errors]
