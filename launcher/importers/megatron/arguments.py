"""Arguments of a Megatron-LM argument list, as they stand in the text, and the meaning of those without a setting.

``tables/megatron.yaml`` has them by their effect. An argument that changes memory or the model, and that the estimate
does not count, is never kept in silence: it is left out and matters.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, raise_any
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.importers._reading import KeyReader
from launcher.importers._table import table

_INTEGER = re.compile(r"[+-]?\d+(_\d+)*\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_DIGITS = 30
"""Of the largest number that ``files`` lets pass, with underscores; a longer one stays text, which is refused."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as it was spelt, without its dashes; ``True`` where it has no value."""

    spelling: str  # As typed, without the dashes before it.
    value: Any  # Numbers and truth from text, a list of several words; ``$NAME`` stands for what has no value.
    words: tuple[str, ...] = ()  # The words that follow the name, as they are typed.


type Arguments = dict[str, Argument]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """An argument list."""

    arguments: Arguments  # Those of the training program, by name with dashes (the last of each wins).
    # Those of torchrun and of what else starts the program, by name with dashes.
    launcher_arguments: Arguments = field(default_factory=dict)
    program: str | None = None  # The training program's file or module, where the text names one.
    not_understood: tuple[str, ...] = ()  # Sentences: variables without a value, words that belong to no argument.
    # The variables without a value that an argument holds, by the argument's name.
    unset: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Flags of a YAML or JSON file that are ``false`` or ``null``, as typed, with that value.
    not_given: Mapping[str, Any] = field(default_factory=dict)
    other_keys: Mapping[str, Any] = field(default_factory=dict)  # Further keys of a YAML or JSON file, by dotted path.
    # Why this is no argument list of one run, where its words could be read: a variable decides.
    errors: tuple[ConfigError, ...] = ()


def name_of(spelling: str) -> str:
    """The name of an argument, with dashes however it is spelt."""
    return spelling.lstrip("-").replace("_", "-")


class ByName[T]:
    """Values by the names of arguments; a name that ends in ``*`` is a beginning, and the longest counts."""

    def __init__(self, pairs: Iterable[tuple[str, T]]) -> None:
        self._whole = dict(pairs)
        beginnings = [(name[:-1], value) for name, value in self._whole.items() if name.endswith("*")]
        self._beginnings = sorted(beginnings, key=lambda pair: -len(pair[0]))

    def get(self, name: str) -> T | None:
        """The value of a name; None where there is none."""
        if name in self._whole:
            return self._whole[name]
        return next((value for start, value in self._beginnings if name.startswith(start)), None)


def typed(value: Any) -> Any:
    """Numbers and truth from text; ``[a b]`` and ``a,b`` stay text, since only the argument knows what they are."""
    if isinstance(value, list | tuple):
        return [typed(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if _INTEGER.match(value):
        return int(value) if len(value) <= _DIGITS else value
    return float(value) if _NUMBER.match(value) else value


def check_numbers(found: Iterable[Argument], path: str) -> None:
    """See whether the numbers, which stand as text in all of these files, keep within the limits."""
    errors = []
    for argument in found:
        values = argument.value if isinstance(argument.value, list) else [argument.value]
        try:
            files.check_numbers(map(_as_number, values))
        except ValueError as error:
            errors.append(ConfigError(f"{path}: --{argument.spelling}", None, str(error)))
    raise_any(errors)


def _as_number(value: object) -> object:
    is_number = isinstance(value, str) and _INTEGER.match(value)
    return files.integer(value.replace("_", "")) if is_number and isinstance(value, str) else value


# The meaning of arguments that no setting here says.

TABLES: JsonObject = table("megatron")


def names_table(name: str) -> dict[str, tuple[str, ...]]:
    """A part of ``tables/megatron.yaml``: names of arguments by what they have in common."""
    return {key: tuple(names.split()) for key, names in TABLES[name].items()}


KEPT = tuple(TABLES["kept"].split())
"""Arguments on which the engine acts and that leave memory as it is, or are counted: ``backend.extra``."""

SWITCHES = frozenset(TABLES["switches"].split())
"""Arguments without a value whose names do not say so by their beginning."""

NO_EFFECT = names_table("no_effect")
"""Arguments without an effect on what is trained here, by the sentence that says why."""

MATTERS = names_table("matters")
"""Arguments that change the maths, the memory or the data, and that the run does not have, by what differs."""

DEFAULTS: Mapping[str, object] = {
    "add-position-embedding": True, "cross-entropy-fusion-impl": "native", "cuda-graph-impl": "none",
    "dataloader-type": "single", "distributed-backend": "nccl", "exit-signal-handler": True, "moe-router-dtype": "fp32",
    "moe-token-dispatcher-type": "alltoall", "optimizer-offload-fraction": 1.0,
    "outer-dp-sharding-strategy": "no_shard", "transformer-impl": "transformer_engine", "softmax-type": "vanilla",
    "vocab-extra-ids": 0,
}  # fmt: skip
"""Values with which a run here is what it is without them, whatever else the argument can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The meaning of an argument: with an effect it is left out, without one the engine has it."""

    effect: str | None = None
    matters: bool = False


def by_value(name: str, values: Mapping[str, object]) -> Meaning | None:
    """The meaning of an argument whose value decides, among the values of all; None where its name does."""
    value, capacity = values[name], values.get("moe-expert-capacity-factor")
    even = isinstance(capacity, int | float) and capacity <= 1
    kept = {
        "transformer-impl": value == "local",
        "moe-router-dtype": True,
        "moe-expert-capacity-factor": even,
        "moe-pad-expert-input-to-capacity": even,
    }
    return Meaning() if kept.get(name) else None


MEANINGS = ByName((
    *((name, Meaning()) for name in KEPT),
    *((name, Meaning(effect=f"no effect: {why}")) for why, names in NO_EFFECT.items() for name in names),
    *((name, Meaning(effect=effect, matters=True)) for effect, names in MATTERS.items() for name in names),
))  # fmt: skip
"""The meaning of each argument that is known."""


# Megatron-core's names in the files of programs that train by it.

_LONG = {
    "microbatch-group-size-per-vp-stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "layernorm-zero-centered-gamma": "apply-layernorm-1p",
}


def enter(reading: KeyReader, keys: re.Pattern[str]) -> None:
    """Enter open keys by the argument of Megatron-LM whose name a pattern finds in them; unknown ones stay open."""
    for key, value in reading.ledger.values.items():
        found = keys.match(key)
        if not reading.ledger.is_open(key) or found is None or not isinstance(value, bool | int | float | str):
            continue
        name = found[1].replace("_", "-")
        name = _LONG.get(name, name)
        meaning = MEANINGS.get(name)
        if value is False or DEFAULTS.get(name) == value:
            reading.ledger.default(key)
        elif meaning is not None and meaning.effect is None and reading.choose.get("adapter", "none") != "none":
            reading.idle("of Megatron's kernels, and an adapter trains by DDP or FSDP here", key)
        elif meaning is not None and meaning.effect is None:
            reading.settings[f"backend.extra.{name}"] = value
            reading.ledger.keep(key)
        elif meaning is not None:
            reading.ledger.leave(key, str(meaning.effect), matters=meaning.matters)


def degrees(reading: KeyReader) -> dict[str, int]:
    """The degrees by which ranks cut the model and its sequences, 1 where the file says none."""
    names = ("tensor", "pipeline", "context", "expert")
    return {name: int(reading.settings.get(f"parallel.{name}", 1)) for name in names}


def preset(degree: Mapping[str, int]) -> str:
    """The preset of Megatron-LM whose axes some degrees need."""
    if degree["expert"] > 1:
        return "ep"
    if degree["pipeline"] > 1:
        return "tp_pp"
    return "cp" if degree["context"] > 1 and degree["tensor"] == 1 else "tp"
