"""Rules about sbatch options: values that sbatch would refuse, options set twice, a job without CPUs."""

import re
from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.job import sbatch
from launcher.spec import RunSpec

_MEMORY = re.compile(r"\d+[KMGT]?", re.IGNORECASE)
"""sbatch(1), ``--mem``: a whole number and an optional K, M, G or T."""

_WORD = re.compile(r"[^\s'\"`$;&|<>#%,]+(,[^\s'\"`$;&|<>#%,]+)*")
_WORDS = ("partition", "account", "qos", "reservation", "gpu_type")
"""Keys that take one name, or several separated by commas."""

_AFTER = (
    r"(after|afterany|aftercorr|afternotok|afterok|afterburstbuffer):\d+(_\d+|_\*)?(\+\d+)?(:\d+(_\d+|_\*)?(\+\d+)?)*"
)
_KIND = rf"({_AFTER}|singleton)"
_NODES = r"[\w.-]+(\[[\d,-]+\][\w.-]*)*"
_LICENSE = r"[\w.-]+(@[\w.-]+)?(:\d+)?"

_FORMS = {
    "dependency": (
        rf"{_KIND}(,{_KIND})*|{_KIND}(\?{_KIND})*",
        "sbatch takes afterok:ID or another type followed by job ids, several separated by commas",
    ),
    "nodelist": (
        rf"{_NODES}(,{_NODES})*",
        "sbatch takes node names, as in n1,n2 or n[1-4,7]",
    ),
    "licenses": (
        rf"{_LICENSE}([,|]{_LICENSE})*",
        "sbatch takes license names with their counts, as in matlab:2,nastran@server:1",
    ),
}  # fmt: skip
"""Keys with their own syntax, sbatch(1): ``--dependency``, ``--nodelist``, ``--licenses``. Few runs set any."""

_DIRECTIVE = re.compile(r"#(SBATCH|PBS|BSUB)\b")
"""Lines that sbatch reads as options if they precede the first command."""

_OPTION = re.compile(r"#SBATCH\s+--([\w-]+)(?:[=\s]\s*(\S+))?\s*")
_NAME = re.compile(r"[A-Za-z][\w-]*")


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of values that sbatch would refuse, options that are set twice, and directives in cluster.setup."""
    yield from _memory(spec)
    for key in _WORDS:
        value = getattr(spec.cluster, key)
        if value is not None and not _WORD.fullmatch(str(value)):
            rule = "Slurm takes one name here, or several separated by commas: no spaces, quotes or special characters"
            yield ConfigError(f"cluster.{key}", value, rule, [f"cluster.{key}=null"])
    yield from _forms(spec)
    if spec.cluster.kind == "slurm":
        yield from _said_twice(spec)
        yield from _directives(spec)


def _memory(spec: RunSpec) -> Iterator[ConfigError]:
    memory = None if spec.cluster.memory is None else str(spec.cluster.memory)  # A way out is tried as a number.
    if memory is not None and not _MEMORY.fullmatch(memory):
        rule = "Slurm takes a whole number followed by K, M, G or T (sbatch(1), --mem); 0 is all of the node's memory"
        found = re.match(r"\s*(\d+)\s*([KMGT])", memory, re.IGNORECASE)
        near = [f"cluster.memory={found[1]}{found[2].upper()}"] if found else []
        yield ConfigError("cluster.memory", memory, rule, [*near, "cluster.memory=0"])


def _forms(spec: RunSpec) -> Iterator[ConfigError]:
    cluster = spec.cluster
    for key, (form, rule) in _FORMS.items():
        value = getattr(cluster, key)
        if value is not None and not re.fullmatch(form, str(value)):
            near = [f"cluster.dependency=afterok:{value}"] if key == "dependency" and str(value).isdigit() else []
            yield ConfigError(f"cluster.{key}", value, f"{rule} (sbatch(1), --{key})", [*near, f"cluster.{key}=null"])
    if "?" in (cluster.dependency or "") and spec.sweep.parallelism is not None:
        rule = "sweep.parallelism makes arrays depend on each other, which Slurm cannot combine with any-of (?)"
        yield ConfigError("cluster.dependency", cluster.dependency, rule, ["sweep.parallelism=null"])
    if cluster.mail is not None and sbatch.mail(str(cluster.mail)) is None:
        rule = "Slurm takes an address, a colon and the events to report: me@lab.org:BEGIN,END (sbatch(1), --mail-type)"
        yield ConfigError("cluster.mail", cluster.mail, rule, ["cluster.mail=null"])


def _said_twice(spec: RunSpec) -> Iterator[ConfigError]:
    for key, value in spec.cluster.extra.items():
        path = f"cluster.extra.{key}"
        if value is None:
            continue
        if not _NAME.fullmatch(key.lstrip("-")):
            rule = "an option's name has only letters, digits, dashes and underscores"
            yield ConfigError(path, value, rule, ["cluster.extra={}"])
        elif (said := sbatch.option_of_script(key, value, spec.cluster)) is not None:
            ways = [f"{way} {path}=null" for way in said.ways(sbatch.value_text(value))]
            yield ConfigError(path, value, f"--{said.option}: {said.why}", ways or [f"{path}=null"])


def _directives(spec: RunSpec) -> Iterator[ConfigError]:
    lines = spec.cluster.setup
    for line in lines:
        if not _DIRECTIVE.match(line.lstrip()):
            continue
        rule = (
            "sbatch would read this line as options that bypass those of launch: set them in cluster or cluster.extra"
        )
        found, ways = _OPTION.fullmatch(line.strip()), [""]
        if found is not None:
            said = sbatch.option_of_script(found[1], found[2] or True, spec.cluster)
            ways = said.ways(found[2] or "true") if said else [f"cluster.extra.{found[1]}={found[2] or 'true'}"]
        alone = [
            f"cluster.setup=[] {way}".strip() for way in ways or [""]
        ]  # A way out would have to repeat the other lines.
        yield ConfigError("cluster.setup", line, rule, alone if len(lines) == 1 else [])


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield a warning about a job that requests no CPUs: a cluster may give it a single one."""
    cluster = spec.cluster
    if (
        cluster.kind == "slurm"
        and cluster.cpus_per_node is None
        and not cluster.exclusive
        and cluster.gpus_per_node > 1
    ):
        rule = (
            f"unless the partition says otherwise, Slurm gives a job that requests no CPUs one per node, for "
            f"{cluster.gpus_per_node} ranks: set how many a node has (launch doctor asks the cluster)"
        )
        yield ConfigError("cluster.cpus_per_node", None, rule, ["cluster.exclusive=true"])
