"""``backend.extra``: raw Megatron-LM arguments, put in their places. None may rival a setting.

An argument that a setting gives is refused with the setting to use, because the estimate and the record read settings.
Arguments whose memory the estimate counts (``implementation.COUNTED``) are read there; those that change no memory are
passed on, and the others are refused (``options``). Names are compared as Megatron-LM spells them, with dashes; the
parser of a checkout or another version decides which arguments that version has (``validator``).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.backends.megatron import installed, options
from launcher.backends.megatron.implementation import COUNTED, implementation, recipe
from launcher.backends.megatron.options import SETTINGS
from launcher.backends.megatron.translate import name
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit
from launcher.spec.parse import accepts, closest

BEYOND: Mapping[str, tuple[str, ...]] = {"position-embedding-type": ("yarn",)}
"""Values of such arguments that no setting can express: only those are passed on."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for arguments that are unknown, that a setting gives, or whose memory is not counted."""
    for key, value in spec.backend.extra.items():
        path, argument, found = f"backend.extra.{key}", name(key), _plain(value)
        without, setting, least = f"+{path}=null", SETTINGS.get(argument), options.NUMBERS.get(argument)
        if value is not None and _is_unknown(spec, argument):
            rule, near = f"megatron-core {options.VERSION} has no argument --{argument}", closest(argument, _KNOWN)
            ways = [edit.addition(f"backend.extra.{each}", value) for each in near]
            yield ConfigError(path, found, rule, [*ways, without, "backend.path=path/to/Megatron-LM"])
        if (why := _refused(spec, argument, value)) is not None:
            instead = options.INSTEAD.get(argument)
            yield ConfigError(path, found, why, [*([f"{instead} {without}"] if instead else []), without])
        if argument == "cross-entropy-fusion-impl" and value == "te" and not spec.backend.path:
            rule = f"megatron-core {options.VERSION} refuses Transformer Engine's loss, which older checkouts have"
            yield ConfigError(path, value, rule, [without])
        count = isinstance(value, int) and value is not True
        if least is not None and value not in (None, False) and not (count and value >= least):
            yield ConfigError(path, found, f"must be a whole number of at least {least}", [without])
        if setting is not None and value is not None and value not in BEYOND.get(argument, ()):
            rule = f"the setting {setting} gives it, and the memory estimate reads that setting"
            way = _by_setting(spec, argument, setting, value)
            yield ConfigError(path, found, rule, [way if way.startswith("launch ") else f"{way} {without}"])


_KNOWN = [*COUNTED, *options.known()]  # Candidates for a misspelt argument.


def _is_unknown(spec: RunSpec, argument: str) -> bool:
    """True if the launcher's own worker would stop at the argument; another version's parser decides for itself."""
    asked = spec.backend.path is not None or spec.script is not None
    asked = asked or installed.found_version() not in (None, options.VERSION)
    return not asked and argument not in COUNTED | SETTINGS.keys() and options.line(argument) is None


def _refused(spec: RunSpec, argument: str, value: Any) -> str | None:
    reason, is_refused = options.line(argument) or ("", False)
    if argument == "attention-dropout" and implementation(spec).attention == "unfused":
        same = bool(value) == (spec.model.dropout > 0)
        return None if same else "scores are counted with a dropout mask if model.dropout is above 0"
    if value and argument in ("fp8-param-gather", "fp4-param-gather"):
        return _parameters_refused(spec, argument[:3])
    if not is_refused or value is None or value is False or argument in SETTINGS or argument in COUNTED:
        return None
    return None if value in options.LET_THROUGH.get(argument, ()) or _is_harmless(spec, argument, value) else reason


def _is_harmless(spec: RunSpec, argument: str, value: Any) -> bool:
    """True if a refused argument has a value that changes nothing in this run."""
    match argument:
        case "disable-jit-fuser":
            return spec.hardware.device == "cpu"  # The launcher passes it itself.
        case "eval-micro-batch-size":
            return isinstance(value, int) and value <= spec.micro_batch_size
        case "moe-expert-capacity-factor":
            return isinstance(value, int | float) and value <= 1
        case "moe-shared-expert-overlap":
            return spec.parallel.tensor == 1
    return False


def _parameters_refused(spec: RunSpec, word: str) -> str | None:
    """Why parameters cannot be gathered in the format, or None (``fp8_param``, ``--fp8-param-gather``)."""
    if spec.precision.compute != word:
        return f"parameters are in {word} only if products are, too (precision.compute={word})"
    if spec.zero.stage == 0:
        return f"only the distributed optimizer (zero.stage=1) or Megatron-FSDP gathers parameters in {word}"
    if spec.zero.offload_optimizer == "cpu" and recipe(spec) != "delayed":
        return "with zero.offload_optimizer=cpu parameters are in fp8 only with precision.recipe=delayed"
    return None


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings for arguments passed on unchecked: only Megatron-LM itself checks them."""
    groups = dict[str, list[str]]()
    version = f"unclassified: its memory is unknown (only arguments of megatron-core {options.VERSION} are known)"
    for argument in map(name, spec.backend.extra):
        line = options.line(argument)
        if argument not in COUNTED and argument not in SETTINGS and not (line and line[1]):
            groups.setdefault("checked only there; no memory depends on it" if line else version, []).append(argument)
    path, found = "backend.extra.moe-flex-dispatcher-backend", spec.backend.argument("moe-flex-dispatcher-backend")
    if found not in (None, "deepep"):
        rule = "its buffers are outside torch's allocator and are not counted; DeepEP's are"
        yield ConfigError(path, found, rule, [f"{path}=deepep", "+backend.extra.moe-token-dispatcher-type=alltoall"])
    for rule, names in groups.items():
        words = f"passed to Megatron-LM unchanged and {rule}: {', '.join(f'--{each}' for each in names)}"
        yield ConfigError("backend.extra", {key: _plain(value) for key, value in spec.backend.extra.items()}, words)


def _by_setting(spec: RunSpec, argument: str, setting: str, value: Any) -> str:
    known = options.WORDS.get(argument, {})
    if isinstance(value, bool | str) and value in known:
        return known[value]
    if argument not in options.OTHER_UNITS.split() and accepts(setting, _plain(value)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        beside = f"{options.BESIDE[argument]} " if number and argument in options.BESIDE else ""
        return beside + edit.override(setting, value)
    return f"launch show {setting.partition('.')[0]}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
