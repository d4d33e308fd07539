"""Verdict of Megatron-LM's own ``validate_args`` on a run, in terms of our settings.

It runs where a supported megatron-core is installed, for the run's GPU and not this machine's
(``launcher.worker.megatron.validate``). Elsewhere only the rules of ``check`` apply.
"""

import json
import re
import subprocess
from collections.abc import Sequence

from launcher.backends import Judgement
from launcher.backends.megatron import installed
from launcher.backends.megatron.options import SETTINGS
from launcher.backends.megatron.translate import argument_list, environment, name
from launcher.base import cache
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.base.package import run_module
from launcher.spec import RunSpec, edit

VALIDATOR = "launcher.worker.megatron.validate"
TIMEOUT_S = 120  # Seconds for an answer; nearly all of it is importing the frameworks, 7 s on an idle core.

_ALIASES = {
    "decoder-first-pipeline-num-layers": ("num-layers-in-first-pipeline-stage",),
    "decoder-last-pipeline-num-layers": ("num-layers-in-last-pipeline-stage",),
    "fp4-recipe": ("fp4",),
    "fp8-recipe": ("fp8", "delayed-scaling"),
    "num-experts": ("num-moe-experts",),
    "num-virtual-stages-per-pipeline-rank": ("virtual-pipeline-model-parallel-size",),
}
"""Arguments that the configuration classes know by other names."""

_ARGUMENT = {other: key for key, others in _ALIASES.items() for other in others}
_NAME = re.compile(r"--[a-z0-9][\w-]*|\b[a-z0-9]+(?:_[a-z0-9]+)+\b")


def native(spec: RunSpec) -> Judgement:
    """Verdict of the installed megatron-core on the translated argument list."""
    found = installed.found_version()
    if spec.script is not None:
        return Judgement()
    if found is None or not installed.is_supported(found):
        which = (
            "is not installed here"
            if found is None
            else f"{found} is installed, and this version supports {installed.RANGE}"
        )
        rule = f"megatron-core {which}, so its own validator was not run; the launcher's own rules were checked"
        return _unasked(spec, rule, installed.INSTALL)
    try:
        answer = asked(question(spec), found)
    except (RuntimeError, TimeoutError) as error:
        return _unanswered(spec, error)
    return Judgement() if answer is None else Judgement(errors=(explained(spec, answer, found),))


def natives(specs: Sequence[RunSpec]) -> tuple[Judgement, ...]:
    """Return the verdicts of :func:`native` on several runs; new questions go to one process."""
    found = installed.found_version()
    if found is not None and installed.is_supported(found):
        try:
            _ask_together([question(spec) for spec in specs if spec.script is None], found)
        except TimeoutError as error:  # Asked one by one, each would wait just as long.
            return tuple(_unanswered(spec, error) for spec in specs)
        except RuntimeError:
            pass  # One may have ended the program for all: ask each by itself, so that it says why.
    return tuple(native(spec) for spec in specs)


def question(spec: RunSpec) -> JsonObject:
    """The question for the validator: the argument list and the machine that it is for."""
    return {
        "arguments": list(argument_list(spec)),
        "world": spec.gpus,
        "environment": {**environment(spec), **spec.cluster.environment},
        "device": spec.hardware.device,
        "capability": [int(part) for part in str(spec.hardware.effective_capability).split(".")],
    }


def explained(spec: RunSpec, answer: JsonObject, version: str) -> ConfigError:
    """The answer as an error of the first setting whose argument it names, else of ``backend``."""
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


def _unanswered(spec: RunSpec, error: Exception) -> Judgement:
    return _unasked(spec, f"megatron-core's own validator did not answer: {error}", "--no-native")


def asked(question: JsonObject, version: str) -> JsonObject | None:
    """The validator's answer to one question, from the user's cache folder if it was asked before.

    Raises:
        RuntimeError: The program ended without an answer; the message is its last line.
        TimeoutError: It took too long.
    """
    found: JsonObject | None = cache.answer("native", [VALIDATOR, version, question], lambda: answers([question])[0])
    return found


def _ask_together(questions: Sequence[JsonObject], version: str) -> None:
    """Cache the answers of :func:`asked` to several questions; new ones come from one process."""
    new = [each for each in questions if not cache.is_kept("native", [VALIDATOR, version, each])]
    if new:
        for each, answer in zip(new, answers(new), strict=True):
            cache.keep("native", [VALIDATOR, version, each], answer)


def answers(
    questions: list[JsonObject], *, module: str = VALIDATOR, timeout_s: int = TIMEOUT_S
) -> list[JsonObject | None]:
    """The answers to many questions, from one process; raises the same errors as :func:`asked`.

    ``module`` reads a JSON list of questions and writes a list of answers; ``timeout_s`` is the limit for all of them.
    """
    try:
        done = run_module(module, text=json.dumps(questions), timeout_s=timeout_s)
        found: list[JsonObject | None] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer in {timeout_s} s") from None
    except ValueError:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1]) from None
    return found
