"""The Python interpreter that runs a Slurm job, and its packages if it is not this one.

If this machine has ``cluster.python``, it is asked once in a subprocess, and the answer is cached by modification time
and size of the interpreter and of its package folders. The packages of an interpreter that only the nodes have, such as
a container's, are known after ``launch doctor`` has asked a node; that answer is cached too. No job is ever submitted
just to find out.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher import backends
from launcher.base import cache, files, package, registry
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.job import versions
from launcher.job.versions import Borrowed, Environment
from launcher.spec import ClusterSpec, RunSpec

type Asking = Callable[[RunSpec], Environment | None]

_KIND, _ON_NODES = "python", "python-of-nodes"
_TIMEOUT_S = 20  # Seconds to wait for an answer; on a cold network file system starting Python takes most of them.
_OLDEST_PYTHON = (3, 12)  # As in ``requires-python`` of ``pyproject.toml``.
_PROGRAM = """
import json, sys
from importlib import metadata, util
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
if util.find_spec("launcher"):
    found.setdefault("llm-launch", "0")
print(json.dumps({"python": list(sys.version_info[:3]), "packages": found}))
"""


class PackagesUnknown(Exception):
    """Raised if the packages of the job's Python are unknown; the text says why."""


def needed(spec: RunSpec) -> list[str]:
    """The packages that a run imports."""
    profile = backends.of(spec).profile
    framework = [profile.framework] if profile.framework is not None and spec.backend.path is None else []
    return [
        *dict.fromkeys((*profile.packages, *framework, *(name for each in borrowed(spec) for name in each.packages)))
    ]


def borrowed(spec: RunSpec) -> list[Borrowed]:
    """Settings of a run that need packages besides the engine's; none for a user's script."""
    return [each for each in backends.of(spec).profile.borrowed if spec.script is None and each.asked(spec)]


def kept(spec: RunSpec) -> Environment | None:
    """The packages of a job's Python, found without starting anything; None if they are unknown."""
    cluster = spec.cluster
    if cluster.kind == "local" or (cluster.python is None and cluster.container == "none"):
        return versions.here()
    try:
        path = _here(cluster)
        return _environment(cluster, cache.answer(_KIND, _cache_key(path), _unasked), f" for {path}")
    except PackagesUnknown:
        return _on_a_node(cluster)


def asked(spec: RunSpec) -> Environment | None:
    """Like :func:`kept`, but runs ``cluster.python`` if this machine has it. PackagesUnknown if only a node has it."""
    if (known := kept(spec)) is not None:
        return known
    path = _here(spec.cluster)
    answer = cache.answer(_KIND, _cache_key(path), lambda: _answer(path))
    return _environment(spec.cluster, answer, f" for {path}")


def note(cluster: ClusterSpec, node: Mapping[str, Any], date: str) -> None:
    """Cache a node's answer to ``launch doctor`` for later runs with the same Python."""
    numbers = [int(part) for part in str(node["python"]).split(".")[:3] if part.isdigit()]
    answer = {"python": numbers, "packages": dict(node["packages"]), "host": node["host"], "date": date}
    cache.keep(_ON_NODES, _node_key(cluster), answer)


def findings(packages: Mapping[str, str], where: str = "") -> Iterator[str]:
    """Sentences about packages outside the supported range, and about what the installed versions lack.

    ``where`` follows the version: " on node7" gives "torch 2.7 on node7".
    """
    profiles = [registry.load("backends", name).profile for name in registry.names("backends")]
    needs = dict.fromkeys(need for profile in profiles for need in profile.needs)
    for name in versions.OLDEST:
        if (version := packages.get(name)) is None:
            continue
        found = f"{name} {version}{where}"
        if not versions.is_driven(name, version):
            yield f"{found} is out of range: this version of launch supports {name} {versions.span(name)}"
        for need in needs:
            if need.package == name and versions.numbers(version) < versions.numbers(need.since):
                yield f"{found} {need.because} ({need.path}); {need.since} and later can"
        for package_, since, lack in versions.LACKS:
            if package_ == name and versions.numbers(version) < versions.numbers(since):
                yield f"{found} {lack}; {since} and later does not"


def errors(spec: RunSpec, asking: Asking = kept) -> Iterator[ConfigError]:
    """Errors of a job's Python: packages known to be out of range, and settings that they do not support.

    ``cluster.modules`` and ``cluster.setup`` may load other packages, so with these set there are no errors.
    """
    there = asking(spec)
    if there is not None and not (spec.cluster.modules or spec.cluster.setup):
        yield from versions.unusable(spec, needed(spec), backends.of(spec).profile.needs, there)


def warnings(spec: RunSpec, asking: Asking = kept) -> Iterator[ConfigError]:
    """Warnings about a job's Python: :func:`errors`, missing packages, or that its packages are unknown."""
    cluster = spec.cluster
    key = "cluster.python" if cluster.python is not None else "cluster.container_image"
    try:
        there = asking(spec)
    except PackagesUnknown as reason:
        yield ConfigError(key, _named(cluster), f"its packages are unknown here: {reason}", [_doctor(cluster)])
        return
    if there is None:
        return
    yield from versions.unusable(spec, needed(spec), backends.of(spec).profile.needs, there)
    if _named(cluster) is not None:
        yield from _missing(spec, there, key)


def _missing(spec: RunSpec, there: Environment, key: str) -> Iterator[ConfigError]:
    version, named = there.packages.get("python"), _named(spec.cluster)
    if version is not None and versions.numbers(version) < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        yield ConfigError(key, named, f"this is Python {version}, and launch needs {oldest}", [f"{key}=null"])
    own = [] if spec.script is not None else needed(spec)
    lacks = [name for name in (package.NAME, *own) if name not in there.packages]
    if lacks:
        rule = f"{', '.join(lacks)} {'is' if len(lacks) == 1 else 'are'} not installed{there.where}"
        extras = {name: package.install(each.extra) for each in borrowed(spec) for name in each.packages}
        installs = dict.fromkeys(extras.get(name, backends.of(spec).profile.install) for name in lacks)
        commands = [f"{there.pip} {install.partition(' -m pip ')[2]}" for install in installs]
        yield ConfigError(key, named, rule, [" && ".join(commands)])


def _named(cluster: ClusterSpec) -> str | None:
    return cluster.python or (cluster.container_image if cluster.container != "none" else None)


def _doctor(cluster: ClusterSpec) -> str:
    keys = ("partition", "python", "container", "container_image")
    given = {key: getattr(cluster, key) for key in keys if getattr(cluster, key) not in (None, "none")}
    return " ".join(["launch doctor", *(f"cluster.{key}={value}" for key, value in given.items())])


def _here(cluster: ClusterSpec) -> Path:
    """The job's interpreter on this machine. PackagesUnknown if it is a container's, or exists only on the nodes."""
    if cluster.container != "none":
        raise PackagesUnknown("they are inside the container")
    path = Path(cluster.python or "")
    if not path.is_absolute():
        raise PackagesUnknown(f"each node finds {cluster.python} through its own PATH")
    import shutil  # Late, as in `launcher.base.machine`.

    if shutil.which(path) is None:
        raise PackagesUnknown("this machine has no such program, but the nodes may have it")
    return path


def _cache_key(path: Path) -> list[object]:
    """A cache key for an interpreter's packages: its own file and the folders that pip writes to."""
    seen = [path, files.real(path), *sorted(path.parent.parent.glob("lib*/python3*/*-packages"))]
    facts: list[object] = []
    for each in seen:
        try:
            status = each.stat()
        except OSError:
            continue
        facts.append([str(each), status.st_mtime_ns, status.st_size])
    return [*facts, sorted(versions.PACKAGES)]


def _unasked() -> Any:
    raise PackagesUnknown("it has not been asked yet")


def _answer(path: Path) -> JsonObject:
    """The interpreter's version and packages, by running it. Raises PackagesUnknown if it gives no answer."""
    import subprocess  # Late, because few runs have a Python that must be asked.

    try:
        done = subprocess.run(
            [path, "-c", _PROGRAM, *versions.PACKAGES],
            cwd="/",  # A folder from which nothing is imported by accident; -P needs Python 3.11.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        answer = json.loads(done.stdout)
        return {"python": list(answer["python"]), "packages": dict(answer["packages"])}
    except subprocess.TimeoutExpired:
        raise PackagesUnknown(f"it did not answer within {_TIMEOUT_S} s") from None
    except OSError as error:
        raise PackagesUnknown(f"it cannot be started: {os.strerror(error.errno or 0)}") from None
    except (ValueError, KeyError, TypeError):
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise PackagesUnknown(f"it did not list them: {said}") from None


def _on_a_node(cluster: ClusterSpec) -> Environment | None:
    try:
        answer = cache.answer(_ON_NODES, _node_key(cluster), _unasked)
    except PackagesUnknown:
        return None
    return _environment(cluster, answer, f" on {answer['host']}, according to launch doctor on {answer['date']}")


def _node_key(cluster: ClusterSpec) -> list[object]:
    """The cluster settings that determine which Python a job finds on a node."""
    words = (cluster.python, cluster.container, cluster.container_image, cluster.partition)
    return [*words, [*cluster.modules], [*cluster.setup]]


def _environment(cluster: ClusterSpec, answer: Mapping[str, Any], where: str) -> Environment:
    packages = {**answer["packages"], "python": ".".join(map(str, answer["python"]))}
    return Environment(packages=packages, where=where, pip=f"{cluster.python or 'python3'} -m pip")
