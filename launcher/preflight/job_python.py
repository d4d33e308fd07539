"""The Python that runs a Slurm job, and its packages where it is not this one.

``cluster.python`` that this machine has is asked once, by a process of its own; its answer is kept by the times and
sizes of the interpreter and of the folders of its packages. One that only the nodes have, a container's among them, is
known where ``launch doctor`` has asked a node, which is kept as well. A run is never submitted to find out.
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
_TIMEOUT_S = 20  # Seconds for a Python's answer; on a cold network file system the start of one takes most of them.
_OLDEST_PYTHON = (3, 12)  # As ``requires-python`` of ``pyproject.toml`` has it.
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


class Unasked(Exception):
    """The packages of the job's Python are not known; the text says why."""


def needed(spec: RunSpec) -> list[str]:
    """The packages that a run imports."""
    profile = backends.of(spec).profile
    framework = [profile.framework] if profile.framework is not None and spec.backend.path is None else []
    return [
        *dict.fromkeys((*profile.packages, *framework, *(name for each in borrowed(spec) for name in each.packages)))
    ]


def borrowed(spec: RunSpec) -> list[Borrowed]:
    """Settings of a run that need packages beside its engine's; a script of the user's own asks nothing of them."""
    return [each for each in backends.of(spec).profile.borrowed if spec.script is None and each.asked(spec)]


def kept(spec: RunSpec) -> Environment | None:
    """The packages of a job's Python as far as they are known, without starting anything; None where they are not."""
    cluster = spec.cluster
    if cluster.kind == "local" or (cluster.python is None and cluster.container == "none"):
        return versions.here()
    try:
        path = _here(cluster)
        return _environment(cluster, cache.answer(_KIND, _question(path), _unasked), f" for {path}")
    except Unasked:
        return _on_a_node(cluster)


def asked(spec: RunSpec) -> Environment | None:
    """As :func:`kept`, but asks a ``cluster.python`` of this machine. Raises Unasked if only a node can tell."""
    if (known := kept(spec)) is not None:
        return known
    path = _here(spec.cluster)
    answer = cache.answer(_KIND, _question(path), lambda: _answer(path))
    return _environment(spec.cluster, answer, f" for {path}")


def note(cluster: ClusterSpec, node: Mapping[str, Any], date: str) -> None:
    """Keep a node's answer to ``launch doctor``, for every later run with the same Python."""
    numbers = [int(part) for part in str(node["python"]).split(".")[:3] if part.isdigit()]
    answer = {"python": numbers, "packages": dict(node["packages"]), "host": node["host"], "date": date}
    cache.keep(_ON_NODES, _way(cluster), answer)


def findings(packages: Mapping[str, str], where: str = "") -> Iterator[str]:
    """Packages out of the range that is driven, and what the installed versions lack, in sentences.

    ``where`` stands behind "torch 2.7", such as " on node7".
    """
    profiles = [registry.load("backends", name).profile for name in registry.names("backends")]
    needs = dict.fromkeys(need for profile in profiles for need in profile.needs)
    for name in versions.OLDEST:
        if (version := packages.get(name)) is None:
            continue
        found = f"{name} {version}{where}"
        if not versions.is_driven(name, version):
            yield f"{found} is out of range: this version of launch drives {name} {versions.span(name)}"
        for need in needs:
            if need.package == name and versions.numbers(version) < versions.numbers(need.since):
                yield f"{found} {need.because} ({need.path}); from {need.since} on it can"
        for package_, since, lack in versions.LACKS:
            if package_ == name and versions.numbers(version) < versions.numbers(since):
                yield f"{found} {lack}; from {since} on it does not"


def errors(spec: RunSpec, asking: Asking = kept) -> Iterator[ConfigError]:
    """Packages of the job's Python that are known to be out of range, and settings that they lack.

    Lines before the job (``cluster.modules``, ``cluster.setup``) may bring others: then only a node knows.
    """
    there = asking(spec)
    if there is not None and not (spec.cluster.modules or spec.cluster.setup):
        yield from versions.unusable(spec, needed(spec), backends.of(spec).profile.needs, there)


def warnings(spec: RunSpec, asking: Asking = kept) -> Iterator[ConfigError]:
    """All that is known against the job's Python: :func:`errors`, packages that it lacks, or that nobody can ask it."""
    cluster = spec.cluster
    key = "cluster.python" if cluster.python is not None else "cluster.container_image"
    try:
        there = asking(spec)
    except Unasked as reason:
        yield ConfigError(key, _named(cluster), f"its packages are not known here: {reason}", [_doctor(cluster)])
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
    """The job's interpreter on this machine. Raises Unasked if it is a container's, or found on the nodes alone."""
    if cluster.container != "none":
        raise Unasked("they are those of the container")
    path = Path(cluster.python or "")
    if not path.is_absolute():
        raise Unasked(f"the nodes look {cluster.python} up by their own PATH")
    import shutil  # Late, as in `launcher.base.machine`.

    if shutil.which(path) is None:
        raise Unasked("this machine has no such program, the nodes may have")
    return path


def _question(path: Path) -> list[object]:
    """All that the packages of an interpreter depend on: itself, and the folders that pip writes to."""
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
    raise Unasked("it was not asked yet")


def _answer(path: Path) -> JsonObject:
    """The interpreter's own answer. Raises Unasked if it gives none."""
    import subprocess  # Late, because few runs have a Python that is to be asked.

    try:
        done = subprocess.run(
            [path, "-c", _PROGRAM, *versions.PACKAGES],
            cwd="/",  # Where nothing is imported from by chance; -P is of Python 3.11 and newer.
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        answer = json.loads(done.stdout)
        return {"python": list(answer["python"]), "packages": dict(answer["packages"])}
    except subprocess.TimeoutExpired:
        raise Unasked(f"it did not answer within {_TIMEOUT_S} s") from None
    except OSError as error:
        raise Unasked(f"it cannot be started: {os.strerror(error.errno or 0)}") from None
    except (ValueError, KeyError, TypeError):
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise Unasked(f"it did not say them: {said}") from None


def _on_a_node(cluster: ClusterSpec) -> Environment | None:
    try:
        answer = cache.answer(_ON_NODES, _way(cluster), _unasked)
    except Unasked:
        return None
    return _environment(cluster, answer, f" on {answer['host']}, as it told launch doctor on {answer['date']}")


def _way(cluster: ClusterSpec) -> list[object]:
    """The settings of a cluster that decide which Python a job finds on a node."""
    words = (cluster.python, cluster.container, cluster.container_image, cluster.partition)
    return [*words, [*cluster.modules], [*cluster.setup]]


def _environment(cluster: ClusterSpec, answer: Mapping[str, Any], where: str) -> Environment:
    packages = {**answer["packages"], "python": ".".join(map(str, answer["python"]))}
    return Environment(packages=packages, where=where, pip=f"{cluster.python or 'python3'} -m pip")
