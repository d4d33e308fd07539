"""What keeps this machine from starting a valid run: its GPUs, missing packages, missing files.

These checks are separate from the rules: ``check`` judges a run for any machine, ``run`` also asks whether this machine
can start it. Packages are found without importing them. A Slurm job runs elsewhere, so its missing files are warnings
(:func:`not_seen_here`), never errors.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from launcher import backends
from launcher.base import cache, files, package
from launcher.base.errors import ConfigError
from launcher.base.machine import Machine, cxx
from launcher.data import hub
from launcher.data.files import files_of, is_on_hub
from launcher.data.unusable import Unusable
from launcher.job import versions
from launcher.preflight import job_python
from launcher.rules.cluster import readers_beyond
from launcher.spec import RunSpec, edit
from launcher.spec.parse import closest


def obstacles(spec: RunSpec, machine: Machine) -> list[ConfigError]:
    """All reasons why this machine cannot start a run.

    A Slurm job runs elsewhere; only the packages of its Python may be known here, if it was asked before.
    """
    if spec.cluster.kind != "local":
        return [*job_python.errors(spec), *_unknown_tasks(spec)]
    return [
        *_hardware(spec, machine),
        *(() if spec.script else readers_beyond(spec, machine.cpus, f"this machine has {machine.cpus} cores")),
        *_compiler(spec),
        *_packages(spec),
        *_script(spec),
        *_folders(spec),
        *_unknown_tasks(spec),
        *backends.of(spec).obstacles(spec),
    ]


def is_meant(spec: RunSpec, machine: Machine) -> bool:
    """True if the run is meant for this machine, rather than only judged on it."""
    return spec.cluster.kind == "local" and next(_hardware(spec, machine), None) is None


def _hardware(spec: RunSpec, machine: Machine) -> Iterator[ConfigError]:
    cluster, here = spec.cluster, len(machine.gpus)
    if cluster.nodes > 1:
        rule = "cluster=local is one machine, this one"
        yield ConfigError("cluster.nodes", cluster.nodes, rule, ["cluster.nodes=1", "cluster=slurm"])
    if spec.hardware.device == "cpu":
        return
    if not here:
        rule = "this machine has no GPU; `launch check` works without the hardware, `run` needs it"
        yield ConfigError("hardware.name", spec.hardware.name, rule, ["hardware=auto", "cluster=slurm"])
        return
    if cluster.gpus_per_node > here:
        rule = f"this machine has {here} GPUs"
        yield ConfigError("cluster.gpus_per_node", cluster.gpus_per_node, rule, [f"cluster.gpus_per_node={here}"])
    smallest = min(gpu.memory_bytes for gpu in machine.gpus)
    if spec.hardware.memory_bytes is not None and spec.hardware.memory_bytes > smallest:
        rule = f"the run was checked for more memory than this machine's {machine.gpus[0].name} has, {smallest} bytes"
        yield ConfigError("hardware.name", spec.hardware.name, rule, ["hardware=auto"])


def _compiler(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.train.compile and spec.hardware.device == "cpu" and cxx() is None:
        rule = "torch.compile on a CPU needs a C++ compiler, and this machine has no g++ and no compiler in CXX"
        yield ConfigError("train.compile", True, rule, ["train.compile=false"])


def _packages(spec: RunSpec) -> Iterator[ConfigError]:
    profile = backends.of(spec).profile
    missing = [name for name in profile.packages if find_spec(name) is None]
    if missing:
        yield ConfigError("backend.name", spec.backend.name, _not_installed(missing), [profile.install])
    if spec.script is not None:
        return
    borrowed = job_python.borrowed(spec)
    for each in borrowed:
        if missing := [name for name in each.packages if find_spec(_MODULES.get(name, name.replace("-", "_"))) is None]:
            ways = [package.install(each.extra), each.way_out]
            yield ConfigError(each.path, edit.value_at(spec, each.path), _not_installed(missing), ways)
    imported = dict.fromkeys((*profile.packages, *(name for each in borrowed for name in each.packages)))
    yield from versions.unusable(spec, [*imported], profile.needs)
    kind = spec.tracking.kind
    if kind != "none" and find_spec(kind) is None:  # Each kind is the name of its package.
        rule = "its package is not installed for this Python"
        yield ConfigError("tracking.kind", kind, rule, [package.install("tracking"), "tracking=none"])
    if _asks_the_hub(spec) and find_spec("datasets") is None:
        rule = _not_installed(["datasets"])
        yield ConfigError("data.source", spec.data.source, rule, [package.install(package.TRAINING), "data=synthetic"])


_MODULES = {"flash-linear-attention": "fla"}  # Packages whose module has another name.


def _not_installed(packages: Sequence[str]) -> str:
    return f"needs {', '.join(packages)}, not installed for this Python"


def _asks_the_hub(spec: RunSpec) -> bool:
    """True if the data are on the Hugging Face Hub, which only the package datasets reads."""
    try:
        return any(is_on_hub(each) and not files_of(each) for each in spec.data.sets)
    except Unusable:  # The look at the data reports it.
        return False


def _script(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.script is not None and not Path(spec.script).is_file():
        rule = "it is not a regular file" if Path(spec.script).exists() else "there is no such file"
        yield ConfigError("script", spec.script, rule, ["script=path/to/train.py"])


def _folders(spec: RunSpec) -> Iterator[ConfigError]:
    for path, value in (("model.weights", spec.model.weights), ("save.load", spec.save.load)):
        if value is not None and not Path(value).is_dir():
            run = Path(value).parent
            exported = path == "model.weights" and Path(value).name == "export" and (run / "spec.json").is_file()
            ways = [f"launch resume {run} save.export=safetensors"] if exported else []
            yield ConfigError(path, value, "there is no such folder", [*ways, f"{path}=null"])
    if spec.model.weights is not None and Path(spec.model.weights).is_dir():
        yield from _weights(Path(spec.model.weights))


def _weights(folder: Path) -> Iterator[ConfigError]:
    from launcher.config.hub import own_models  # Late, because few runs need it.

    if not own_models.has_weights(folder):
        yield own_models.weights_missing(folder)


def not_seen_here(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings for files of the run that this machine lacks; the nodes of a cluster may have disks of their own.

    Only existence is checked and nothing is read; :mod:`launcher.preflight.data` looks at the data.
    """
    named = {"script": spec.script, "model.weights": spec.model.weights, "save.load": spec.save.load}
    for path, value in named.items():
        if value is not None and not Path(value).exists():
            rule = "there is no such file or folder on this machine; the nodes of the job must have it"
            yield ConfigError(path, value, rule, [f"{path}=null"])


def without_template(spec: RunSpec) -> Iterator[ConfigError]:
    """A warning if the tokenizer has no chat template, so that a shipped one renders the conversations."""
    data = spec.data
    here = data.tokenizer == "bytes" or hub.tokenizer_folder(data.tokenizer) is not None
    if not data.is_chat or spec.script is not None or not here:
        return
    from launcher.data.template import GENERAL, PLAIN, lacks_own

    lacks = False
    with suppress(Unusable):  # The tokenizer's file is damaged; the look at the data reports it.
        lacks = lacks_own(data)
    if lacks:
        rule = f"data.tokenizer={data.tokenizer} has no chat template, so the shipped template {PLAIN} is used"
        yield ConfigError("data.template", None, rule, [f"data.template={name}" for name in reversed(GENERAL)])


_NAMED = re.compile(r"""^["']?(?:task|group|tag)["']?:((?:[ \t]*\n[ \t]*- .*)+|.*)""", re.MULTILINE)
_WORD = re.compile(r"[^\s,\[\]'\"]+")


def _unknown_tasks(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for task names that lm-eval does not have, if it is installed here, and for missing task files."""
    for task in spec.eval.tasks:
        if task.endswith((".yaml", ".yml")):
            if spec.cluster.kind == "local" and not Path(task).is_file():
                ways = [f"eval.tasks=[{near}]" for near in files.similar_paths(Path(task))]
                yield ConfigError("eval.tasks", task, "there is no such file", [*ways, "eval.tasks=[]"])
        elif (names := known_tasks()) and not any(fnmatchcase(name, task) for name in names):
            rule = f"lm-eval {versions.here().packages.get('lm-eval')} has no task of this name"
            yield ConfigError("eval.tasks", task, rule, [f"eval.tasks=[{near}]" for near in closest(task, names)])


def known_tasks() -> list[str]:
    """The names of all tasks, groups and tags of the installed lm-eval; empty if it is not installed."""
    found = find_spec("lm_eval")
    if found is None or found.origin is None:
        return []
    folder = Path(found.origin).parent / "tasks"
    names: list[str] = cache.answer(
        "tasks", [str(folder), versions.here().packages.get("lm-eval")], lambda: _tasks_of(folder)
    )
    return names


def _tasks_of(folder: Path) -> list[str]:
    found: set[str] = set()
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.endswith((".py", ".pyc", ".md")):  # Files that others include have any suffix, or none.
                text = files.read_text(Path(place, name), errors="replace")
                found.update(word for part in _NAMED.findall(text) for word in _WORD.findall(part))
    return sorted(found)
