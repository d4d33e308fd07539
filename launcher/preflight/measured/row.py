"""One measured run as a line of the file: where and with what it ran, what was predicted of it, what was measured.

A file of a cluster is written by others, so a line is read strictly: every value has its type and its bounds, texts
hold no character that acts on a terminal, and what is not a row is refused with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from launcher.base import files
from launcher.base.files import JsonObject

SCHEMA = 1

LONGEST_LINE = 1 << 13
"""Bytes of a line; one of ours has about a thousand."""

_LONGEST_TEXT = 1000
_MOST_VERSIONS = 20

_MOST = 10**18
"""No number of tokens, GPUs or bytes a second is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The prediction that was recorded with a run.

    Attributes:
        tokens_per_second_per_gpu: As it was told; None where it was unknown, as on a CPU.
        uncorrected: The same before any measured constant.
        allocated_bytes: The peak of one rank.
        needed_bytes: Those with which the allocator does not run out.
        reserved_bytes: Those that the allocator would keep.
    """

    tokens_per_second_per_gpu: float | None = None
    uncorrected: float | None = None
    allocated_bytes: int | None = None
    needed_bytes: int | None = None
    reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was measured of a run.

    Attributes:
        tokens_per_second_per_gpu: The median of the second half of its lines, which knows no warm-up.
        steps: The steps that this is of.
        allocated_bytes: The peak of the worst rank.
        reserved_bytes: What its allocator kept.
        checkpoint_bytes: Of a checkpoint.
        save_seconds: From its begin until it was whole, the median of its checkpoints.
        blocking_seconds: Those of them for which training waited; None where it waited for all.
    """

    tokens_per_second_per_gpu: float | None = None
    steps: int = 0
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    checkpoint_bytes: int | None = None
    save_seconds: float | None = None
    blocking_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured run.

    Attributes:
        id: The run's name, as ``launch status`` shows it.
        directory: Its folder, by which it is told from others of this name.
        date: When it had finished, in UTC.
        hardware: The card that it was predicted for, an option of the group ``hardware``.
        title: The device that ran it.
        device: ``cuda`` or ``cpu``.
        nodes: Its nodes.
        gpus: All of its ranks.
        cluster: ``local`` or ``slurm``.
        link_bandwidth: Of its prediction: bytes/s between the GPUs of a node.
        network_bandwidth: Bytes/s of a GPU's share of the network.
        network_latency: Seconds of a step of a ring between nodes.
        framework: The engine, by its name in ``launcher/estimate/speed/calibration.json``.
        versions: Versions of the packages that ran it.
        calibration: The shipped calibration beside which its prediction was made; None is of an older version.
        spec_hash: The run's hash.
        model: The model's name.
        experts: True if it has experts.
        layout: The layout in words; runs of equal words are one layout.
        predicted: Its prediction.
        measured: What was measured.
        left_out: Why its speed is in no constant; None where it may be.
    """

    id: str
    directory: str
    date: str
    hardware: str
    title: str
    device: str
    nodes: int
    gpus: int
    cluster: str
    link_bandwidth: float | None
    network_bandwidth: float | None
    network_latency: float | None
    framework: str
    versions: Mapping[str, str] = field(default_factory=dict)
    calibration: str | None
    spec_hash: str
    model: str
    experts: bool
    layout: str
    predicted: Predicted
    measured: Found
    left_out: str | None = None

    @property
    def ratio(self) -> float | None:
        """Measured / uncorrected predicted speed, where the row may be in a constant."""
        predicted, measured = self.predicted.uncorrected, self.measured.tokens_per_second_per_gpu
        return None if self.left_out is not None or predicted is None or measured is None else measured / predicted

    @property
    def peak_ratio(self) -> float | None:
        """Measured / predicted peak of allocated bytes."""
        predicted, measured = self.predicted.allocated_bytes, self.measured.allocated_bytes
        return None if predicted is None or measured is None else measured / predicted

    def as_dict(self) -> JsonObject:
        """The row as data."""
        return {"schema": SCHEMA, **asdict(self)}

    def as_line(self) -> bytes:
        """The row as a line of the file, in ASCII."""
        return f"{json.dumps(self.as_dict())}\n".encode()


def read(line: bytes) -> Row:
    """Read a line.

    Raises:
        ValueError: It is no row; the message says why.
    """
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it is longer than {LONGEST_LINE} bytes")
    content = files.parse_json(line.decode())
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"it is no row of schema {SCHEMA}")
    found = {name: test(content.get(name), name) for name, test in _FIELDS.items()}
    predicted, measured = (_amounts(content.get(name), name) for name in ("predicted", "measured"))
    steps = _whole(content["measured"].get("steps"), "steps")
    return Row(
        **found,
        predicted=Predicted(**{each.name: predicted(each.name) for each in fields(Predicted)}),
        measured=Found(
            steps=steps, **{each.name: measured(each.name) for each in fields(Found) if each.name != "steps"}
        ),
    )


def _amounts(value: object, name: str) -> Callable[[str], Any]:
    """Gives the amounts of an object by their names."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object {{...}}")
    return lambda key: _amount(value.get(key), key)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value or len(value) > _LONGEST_TEXT or not value.isprintable():
        raise ValueError(f"{name} must be a text of at most {_LONGEST_TEXT} characters that can be shown")
    return value


def _optional_text(value: object, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def _whole(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{name} must be a whole number")
    return value


def _amount(value: object, name: str) -> Any:
    """A positive number or None; bytes are whole."""
    if value is None:
        return None
    kinds = int if name.endswith("_bytes") else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value <= _MOST:
        raise ValueError(f"{name} must be a positive number or null")
    return value


def _versions(value: object, name: str) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > _MOST_VERSIONS:
        raise ValueError(f"{name} must be an object of at most {_MOST_VERSIONS} texts")
    return {_text(key, name): _text(version, name) for key, version in value.items()}


_FIELDS = {
    "id": _text,
    "directory": _text,
    "date": _text,
    "hardware": _text,
    "title": _text,
    "device": _text,
    "nodes": _whole,
    "gpus": _whole,
    "cluster": _text,
    "link_bandwidth": _amount,
    "network_bandwidth": _amount,
    "network_latency": _amount,
    "framework": _text,
    "versions": _versions,
    "calibration": _optional_text,
    "spec_hash": _text,
    "model": _text,
    "experts": _flag,
    "layout": _text,
    "left_out": _optional_text,
}
