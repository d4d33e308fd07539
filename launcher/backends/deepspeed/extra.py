"""``backend.extra``: raw keys of ds_config.json, merged in last. Typos and rivals of a setting are refused.

DeepSpeed ignores unknown keys at the top of its file and stops at unknown keys inside its blocks, so only keys that
its release reads pass. A key that one of our settings gives is refused with that setting, with the key's value where
it can be translated: the memory estimate and the record read settings, and a rival would make them wrong. What would
change memory that nothing counts is refused unless it is the default (``options``). Blocks that need support from the
training program are refused for our worker and left to a script.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from launcher.backends._shared import given
from launcher.backends.deepspeed import options
from launcher.backends.deepspeed.options import SETTINGS
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, bounds, edit
from launcher.spec.parse import accepts, closest

_PARAMETERS = {"lr": "lr", "weight_decay": "weight_decay", "eps": "epsilon"}
_DIVIDING = {"gradient_predivide_factor": 1.0, "prescale_gradients": False}
"""Options, with their defaults, that ``reduce_scatter`` of stages 2 and 3 refuses (``stage3.py``)."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for keys that DeepSpeed lacks, that have a setting, that the worker ignores, or of uncounted memory."""
    for error in (*_unknown(spec), *_known(spec)) if spec.backend.extra else ():
        yield ConfigError(error.path, error.found, error.rule, error.way_out or [f"+{error.path}=null"])


def _in_its_place(ways: Iterable[str], path: str) -> list[str]:
    return [way if way.startswith("launch ") else f"{way} +{path}=null" for way in ways]


def _known(spec: RunSpec) -> Iterator[ConfigError]:
    refused = set[str]()
    for path, value in _leaves(given(spec.backend.extra)):
        block = sorted(key for key in SETTINGS if key.startswith(f"{options.named(path)}."))
        if block and value != {}:
            rule = f"settings give part of this block ({block[0]}): set its other keys one by one"
            way_out = [f"launch show {SETTINGS[block[0]].partition('.')[0]}"]
            yield ConfigError(f"backend.extra.{path}", value, rule, way_out)
            continue
        line = options.line(path) or ""
        if line in SETTINGS:
            yield _by_setting(spec, path, SETTINGS[line], value)
        elif path.partition(".")[0] == "tensor_parallel" and spec.parallel.tensor == 1:
            rule = "DeepSpeed reads it only with tensor parallelism, which this run does not use"
            degrees = edit.divisors(spec.model.key_value_heads)
            cut = edit.nearest(
                spec,
                "parallel.tensor",
                degrees,
                lambda to: to.parallel.tensor > 1 and to.gpus % to.model_parallel == 0,
                limit=2,
            )
            yield ConfigError(f"backend.extra.{path}", value, rule, cut)
        elif line in options.REFUSED and line not in refused:
            whole = ".".join(path.split(".")[: line.count(".") + 1])
            yield from _uncounted(path, value, options.REFUSED[line], whole)
            refused.add(line)
        elif line in _DIVIDING and spec.zero.stage >= 2 and value != _DIVIDING[line]:
            rule = f"DeepSpeed refuses it with ZeRO {spec.zero.stage}, which reduce-scatters gradients"
            yield ConfigError(f"backend.extra.{path}", value, rule, [_extra(path, _DIVIDING[line]), "zero=1"])


def _unknown(spec: RunSpec) -> Iterator[ConfigError]:
    extra = given(spec.backend.extra)
    for key, value in _plain(extra).items():
        path, release = f"backend.extra.{key}", f"DeepSpeed {options.VERSION}"
        if key in options.GONE:
            yield ConfigError(path, value, f"{release} no longer has it", _in_its_place(options.GONE[key], path))
        elif key not in options.top():
            near = [_extra(name, value) for name in closest(key, options.top())[:2]]
            yield ConfigError(path, value, f"{release} reads no such key and would ignore it", near)
        elif key in options.PROGRAM and spec.script is None:
            rule = "it needs support from the training program, and the launcher's own worker has none"
            ways = [*_in_its_place(options.PROGRAM[key], path), "script=path/to/train.py"]
            yield ConfigError(path, value, rule, ways)
    for path, value in _leaves(extra):
        head, _, key = options.named(path).rpartition(".")
        if head and options.line(path) is None and path.partition(".")[0] in options.top():
            rule = f"DeepSpeed {options.VERSION} has no such option, so its memory is not counted"
            names = {known.rpartition(".")[2] for known in options.inside(head)}
            near = [_extra(f"{head}.{name}", value) for name in closest(key, sorted(names))[:2]]
            yield ConfigError(f"backend.extra.{path}", value, rule, near)


def _uncounted(path: str, value: Any, refusal: options.Refusal, block: str) -> Iterator[ConfigError]:
    usual, why, instead = refusal
    if usual is None or value != usual:
        ways = [*(f"{way} {_extra(block, None)}" for way in instead), _extra(block if usual is None else path, usual)]
        yield ConfigError(f"backend.extra.{path}", value, why, ways)


def _by_setting(spec: RunSpec, path: str, setting: str, value: Any) -> ConfigError:
    rule = f"the setting {setting} gives it, and the memory estimate reads that setting"
    ways = _same_by_setting(spec, path, setting, value)
    if path == "optimizer.type" and str(value).lower() in options.ONE_BIT:
        rule = f"DeepSpeed {options.VERSION} no longer has 1-bit optimizers; ZeRO 3 can send gradients in 4 bits"
        ways = ["optimizer=adamw"]
    return ConfigError(f"backend.extra.{path}", value, rule, _in_its_place(ways, f"backend.extra.{path}"))


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings for keys passed on unchecked, to DeepSpeed or to the user's script."""
    groups = dict[str, list[str]]()
    for path, value in _leaves(given(spec.backend.extra)):
        line = options.line(path)
        is_usual = line in options.REFUSED and value == options.REFUSED[line].usual
        is_scripts = line in options.PROGRAM and spec.script is not None
        if is_usual or is_scripts or line in options.NO_MEMORY:
            whose = "left to the script: the memory estimate does not include it"
            rule = whose if is_scripts else "checked only there; no memory depends on it"
            groups.setdefault(rule, []).append(path)
    for rule, paths in groups.items():
        words = f"passed to DeepSpeed unchanged and {rule}: {', '.join(paths)}"
        yield ConfigError("backend.extra", _plain(spec.backend.extra), words)


def _leaves(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _extra(path: str, value: Any) -> str:
    return edit.addition(f"backend.extra.{path}", value)


def _same_by_setting(spec: RunSpec, path: str, setting: str, value: Any) -> list[str]:
    if setting == "precision.compute":
        block = path.partition(".")[0]
        value = (block if value else "fp32") if block in ("bf16", "fp16") else value
        return [f"precision={value}" if accepts(setting, value) else "launch show precision"]
    if setting in ("precision.master", "precision.optimizer_states"):
        return [" ".join(f"precision.{key}={'bf16' if value else 'null'}" for key in ("master", "optimizer_states"))]
    if setting == "precision.loss_scale" and not value:
        return ["precision.loss_scale=null"]
    if setting == "precision.initial_loss_scale" and value in range(bounds.LARGEST_SCALE_POWER + 1):
        return [edit.override(setting, 2**value)]
    if setting == "optimizer.name":
        key = _PARAMETERS.get(path.rpartition(".")[2])
        return [f"optimizer.{key}={value}"] if key else ["optimizer=adamw", "optimizer=sgd"]
    if setting == "optimizer.schedule":
        return [f"optimizer.schedule={name}" for name in ("constant", "linear", "cosine")]
    if setting == "zero.gather_16bit_weights_on_save":
        return ["save.export=safetensors"]
    if path.rpartition(".")[2].startswith("cpu_offload"):
        return [f"{setting}={'cpu' if value else 'none'}"]
    return [edit.override(setting, value) if accepts(setting, value) else f"launch show {setting.partition('.')[0]}"]
