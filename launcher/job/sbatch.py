"""The sbatch options that a job's script sets itself, each with its key; ``cluster.extra`` may not repeat them."""

import re
from collections.abc import Callable

from launcher.base.frozen import dataclass
from launcher.base.units import seconds_of
from launcher.spec import ClusterSpec

COPIED = ("partition", "account", "qos", "constraint", "reservation", "nodelist", "dependency", "licenses")
"""Keys of ``cluster`` whose value is passed as the option of the same name."""

MAIL_TYPES = ("NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT",
              "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS")  # fmt: skip
"""sbatch(1), ``--mail-type``."""

_USUAL = "END,FAIL"  # Mail types for an address given alone, for which Slurm itself would send none.
_ADDRESS = re.compile(r"[\w.+-]+(@[\w-]+(\.[\w-]+)*)?")

type _Ways = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class ScriptOption:
    """An sbatch option that the script sets itself."""

    option: str  # Its full name.
    why: str  # Where it comes from, or why it is not allowed.
    ways: _Ways = lambda value: []  # The settings equivalent to a value of it, as typed.


def mail(text: str) -> dict[str, str] | None:
    """The options for ``cluster.mail``: an address, ``address:TYPES`` or ``TYPES`` alone; None for anything else."""
    address, colon, types = text.partition(":")
    if not colon and set(address.split(",")) <= set(MAIL_TYPES):
        return {"mail-type": address}
    types = types if colon else _USUAL
    if not _ADDRESS.fullmatch(address) or not set(types.split(",")) <= set(MAIL_TYPES):
        return None
    return {"mail-type": types, "mail-user": address}


def option_of_script(key: str, value: object, cluster: ClusterSpec) -> ScriptOption | None:
    """The script's own option that a key of ``cluster.extra``, spelt as for sbatch, would repeat; None if none."""
    name = key.lstrip("-").replace("_", "-").lower()
    if name in ("gres", "tres-per-task") and "gpu" not in str(value).lower():  # Resources other than GPUs.
        return _OTHER_GRES if name == "gres" and cluster.gpu_request == "gres" else None
    if name == "exclusive" and value in ("user", "mcs", "topo") and not cluster.exclusive:
        return None  # Finer than cluster.exclusive, which is all or nothing.
    if name in _BY_NAME:
        return _BY_NAME[name]
    return next((said for option, said in _BY_NAME.items() if name and option.startswith(name)), None)


def value_text(value: object) -> str:
    """A value of ``cluster.extra`` as used in ways out: a switch without a value is ``true``."""
    return "true" if value is True else str(value)


def _as_it_is(key: str) -> _Ways:
    """The same text for our key; several values are quoted twice, since the shell removes the outer quotes."""
    return lambda value: [f"""'{key}="{value}"'""" if set(value) & set(",[") else f"{key}={value}"]


def _if(pattern: str, *ways: str) -> _Ways:
    """Settings filled with a pattern's matches in the value; none if it does not match."""

    def found(value: str) -> list[str]:
        match = re.fullmatch(pattern, value, re.IGNORECASE)
        return [] if match is None else [way.format(*match.groups()) for way in ways]

    return found


def _gpus(value: str) -> list[str]:
    return _PER_NODE(value) or _TYPED(value)


def _time(value: str) -> list[str]:
    seconds = seconds_of(value)
    return [] if seconds is None else [f"cluster.time_limit_min={-(-seconds // 60)}"]


def _memory(request: str) -> _Ways:
    return lambda value: [f"cluster.memory={value} cluster.memory_request={request}"]


_FROM = "the script already sets it, from {}, and Slurm would silently use only one of two"
_RANKS = "a node runs one task, which starts cluster.gpus_per_node ranks"
_POINTS = "the points of a sweep (launch -m) are the tasks of an array"
_PLACE = "launch reads the job's output from the run directory (launch logs)"
_ANSWER = "launch reads sbatch's answer, which must be one pending or running job"
_FOLDER = "the job runs in the folder that it is submitted from, since relative paths start there"
_GPUS = _FROM.format("cluster.gpus_per_node, cluster.gpu_type and cluster.gpu_request")
_MARGIN = _FROM.format("cluster.save_margin_s")
_CPUS = _FROM.format("cluster.cpus_per_node")
_MEMORY = _FROM.format("cluster.memory and cluster.memory_request")
_PER_NODE = _if(r"(?:gres[:/])?(?:gpu:)?(\d+)", "cluster.gpus_per_node={}")
_TYPED = _if(r"(?:gres[:/])?(?:gpu:)?([a-z][\w.-]*):(\d+)", "cluster.gpus_per_node={1} cluster.gpu_type={0}")
_OTHER_GRES = ScriptOption("gres", _GPUS, lambda value: ["cluster.gpu_request=gpus_per_node"])

_BY_NAME = {
    said.option: said
    for said in (
        *(ScriptOption(key, _FROM.format(f"cluster.{key}"), _as_it_is(f"cluster.{key}")) for key in COPIED),
        ScriptOption("nodes", _FROM.format("cluster.nodes"), _if(r"(\d+)(?:-\d+)?", "cluster.nodes={}")),
        ScriptOption("nodefile", _FROM.format("cluster.nodelist")),
        ScriptOption("time", _FROM.format("cluster.time_limit_min"), _time),
        ScriptOption("job-name", _FROM.format("run.name"), _as_it_is("run.name")),
        ScriptOption("array", _POINTS, _if(r".*%(\d+)", "sweep.parallelism={}")),
        ScriptOption("ntasks", _RANKS),
        ScriptOption("ntasks-per-node", _RANKS, _if(r"(\d+)", "cluster.gpus_per_node={}")),
        ScriptOption("tasks-per-node", _RANKS, _if(r"(\d+)", "cluster.gpus_per_node={}")),
        ScriptOption("ntasks-per-core", _RANKS),
        ScriptOption("ntasks-per-gpu", _RANKS),
        ScriptOption("ntasks-per-socket", _RANKS),
        ScriptOption("gpus", _GPUS),
        ScriptOption("gpus-per-node", _GPUS, _gpus),
        ScriptOption("gpus-per-task", _GPUS, _gpus),
        ScriptOption("gpus-per-socket", _GPUS),
        ScriptOption("gres", _GPUS, _gpus),
        ScriptOption("tres-per-task", _GPUS, _gpus),
        ScriptOption("cpus-per-task", _CPUS, _as_it_is("cluster.cpus_per_node")),
        ScriptOption("cpus-per-gpu", _CPUS),
        ScriptOption("mem", _MEMORY, _as_it_is("cluster.memory")),
        ScriptOption("mem-per-gpu", _MEMORY, _memory("mem_per_gpu")),
        ScriptOption("mem-per-cpu", _MEMORY, _memory("mem_per_cpu")),
        ScriptOption("exclusive", _FROM.format("cluster.exclusive"), _if("true", "cluster.exclusive=true")),
        ScriptOption("requeue", _FROM.format("cluster.requeues"), _if("true", "cluster.requeues=3")),
        ScriptOption("no-requeue", _FROM.format("cluster.requeues"), _if("true", "cluster.requeues=0")),
        ScriptOption("signal", _MARGIN, _if(r".*@(\d+)", "cluster.save_margin_s={}")),
        ScriptOption("mail-type", _FROM.format("cluster.mail"), _as_it_is("cluster.mail")),
        ScriptOption("mail-user", _FROM.format("cluster.mail"), _as_it_is("cluster.mail")),
        ScriptOption("comment", "launch uses the comment to find a job whose id it could not record"),
        *(ScriptOption(option, _PLACE) for option in ("output", "error", "open-mode")),
        *(ScriptOption(option, _FOLDER) for option in ("chdir", "workdir")),
        *(
            ScriptOption(option, _ANSWER)
            for option in ("parsable", "quiet", "test-only", "wait", "wrap", "help", "usage", "version")
        ),
    )
}  # fmt: skip
