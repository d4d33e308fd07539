"""The answer of Megatron-LM's own ``validate_args`` to a run, in the words of our settings.

Asked where a supported megatron-core is installed, for the GPU of the run and not of this machine
(``launcher.worker.megatron.validate``). Elsewhere the rules of ``check`` answer alone.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from launcher.backends import Judgement
from launcher.backends import _validator as engines
from launcher.backends.megatron import installed
from launcher.backends.megatron.arguments import argument_list, name
from launcher.backends.megatron.extra import SETTINGS
from launcher.backends.megatron.translate import environment
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

VALIDATOR = "launcher.worker.megatron.validate"

_ALIASES = {
    "decoder-first-pipeline-num-layers": ("num-layers-in-first-pipeline-stage",),
    "decoder-last-pipeline-num-layers": ("num-layers-in-last-pipeline-stage",),
    "fp8-recipe": ("fp8", "delayed-scaling"),
    "num-experts": ("num-moe-experts",),
    "num-virtual-stages-per-pipeline-rank": ("virtual-pipeline-model-parallel-size",),
}
"""Arguments that the configuration classes know by other names."""

_ARGUMENT = {other: key for key, others in _ALIASES.items() for other in others}
_NAME = re.compile(r"--[a-z0-9][\w-]*|\b[a-z0-9]+(?:_[a-z0-9]+)+\b")


def native(spec: RunSpec) -> Judgement:
    """The judgement of the installed megatron-core on the translated argument list."""
    found = installed.found_version()
    if spec.script is not None:
        return Judgement()
    if found is None or not installed.is_supported(found):
        which = (
            "is not installed here"
            if found is None
            else f"{found} is installed, and those driven are {installed.RANGE}"
        )
        rule = f"megatron-core {which}, so that its own validator was not asked; these rules are the launcher's"
        return _unasked(spec, rule, installed.INSTALL)
    try:
        answer = engines.asked(VALIDATOR, question(spec), found)
    except RuntimeError as error:
        return _unasked(spec, f"megatron-core's own validator did not answer: {error}", "--no-native")
    return Judgement() if answer is None else Judgement(errors=(explained(spec, answer, found),))


def natives(specs: Sequence[RunSpec]) -> tuple[Judgement, ...]:
    """The judgements of :func:`native` on several runs: what is not known of them yet is asked in one process."""
    found = installed.found_version()
    if found is not None and installed.is_supported(found):
        # Where nothing is answered, each is asked again by itself, and says why.
        with contextlib.suppress(RuntimeError):
            engines.asked_together(VALIDATOR, [question(spec) for spec in specs if spec.script is None], found)
    return tuple(native(spec) for spec in specs)


def question(spec: RunSpec) -> dict[str, Any]:
    """The question to the validator: the argument list, and the machine that it is for."""
    return {
        "arguments": list(argument_list(spec)),
        "world": spec.gpus,
        "environment": {**environment(spec), **spec.cluster.environment},
        "device": spec.hardware.device,
        "capability": [int(part) for part in str(spec.hardware.effective_capability).split(".")],
    }


def explained(spec: RunSpec, answer: dict[str, Any], version: str) -> ConfigError:
    """The answer with the setting that it is about: the first argument it names that we know, else ``backend``."""
    text = answer["text"]
    names = [name(word) for word in _NAME.findall(text)]
    extra = {name(key): key for key in spec.backend.extra}
    if "unrecognized arguments" in text and (key := next((extra[word] for word in names if word in extra), None)):
        value = spec.backend.extra[key]
        rule = f"megatron-core {version} has no argument --{name(key)}"
        near = [f"+backend.extra.{word.lstrip('-')}={edit.override('', value)[1:]}" for word in answer["near"]]
        return ConfigError(f"backend.extra.{key}", value, rule, [*near, f"+backend.extra.{key}=null"])
    rule = f"Megatron-LM {version} refuses it: {text}"
    for word in names:
        word = _ARGUMENT.get(word, word)
        if word in extra:
            key, value = extra[word], spec.backend.extra[extra[word]]
            way_out = [f"+backend.extra.{key}={'null' if value else 'true'}"]
            return ConfigError(f"backend.extra.{key}", value, rule, way_out)
        if word in SETTINGS and SETTINGS[word] != "run.directory":
            path = SETTINGS[word]
            return ConfigError(path, edit.value_at(spec, path), rule, [f"launch show {path.partition('.')[0]}"])
    return ConfigError("backend", spec.backend.name, rule, ["--no-native"])


def _unasked(spec: RunSpec, rule: str, way_out: str) -> Judgement:
    return Judgement(warnings=(ConfigError("backend.name", spec.backend.name, rule, [way_out]),))
