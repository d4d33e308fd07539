"""Checks time limits of the launcher: ``python -m benchmarks.durations``; status 1 if one is exceeded.

A user would notice these limits; a quiet machine stays far below them. They are not tests because a busy machine can
exceed any of them. Times are CPU seconds of this process or of one that it starts, the best of three. Other benchmarks
measure the rest: points per second and the estimate in ``benchmarks.points``, whole commands in ``benchmarks.startup``,
a page of a thousand points in ``benchmarks.report``, hostile input in ``benchmarks.fuzz``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reporting import keep, takes_no_option
from launcher.backends.megatron.translate import translate
from launcher.base import machine, registry
from launcher.cli import main as launch
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.preflight import assess
from launcher.preflight.plan import plan
from launcher.rundir import lock, repository
from launcher.rundir.record import job_as_dict
from launcher.spec import RunSpec

_FILES = Path(__file__).parents[1] / "tests" / "importers" / "files"
_MLA = ("model=deepseek_v3", "parallel=ep", "hardware=h100_80g", "cluster.nodes=8", "cluster.gpus_per_node=8")
_TEXT = ("check", "model=tiny", "hardware=cpu", "cluster.gpus_per_node=1", "data=text", "--no-native")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of ``seconds`` of CPU time on each call of ``act``."""

    name: str
    seconds: float
    act: Callable[[], object]
    times: int = 1


def main() -> int:
    """Measure and record; return 1 if a limit is exceeded."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        os.environ.update(XDG_STATE_HOME=f"{name}/state", XDG_CACHE_HOME=f"{name}/cache")
        _data()
        found = _measured()
    keep("durations", "python -m benchmarks.durations", found)
    late = [name for name, figures in found.items() if figures["seconds"] > figures["limit"]]
    print(f"{len(found)} durations, {len(late)} beyond their limit{': ' if late else ''}{', '.join(late)}")
    return 1 if late else 0


def _measured() -> dict[str, dict[str, float]]:
    """Seconds and limit by name; the longest for a repeated name."""
    found: dict[str, dict[str, float]] = {}
    for limit in _limits():
        seconds = max(_least(limit), found.get(limit.name, {}).get("seconds", 0.0))
        found[limit.name] = {"seconds": seconds, "limit": limit.seconds}
    return found


def _limits() -> Iterator[Limit]:
    mla, tiny = _spec(*_MLA), _spec("model=tiny", "data=text", "data.path=many")
    complete = "from launcher.cli import main; main(['__complete', 'bash', 'launch model=ll', 'll'])"
    yield Limit("a completion, its process included", 0.1, lambda: _program(complete))
    facts = "from launcher.base import machine; machine.facts()"
    yield Limit("the facts of this machine, their process included", 1.0, lambda: _program(facts))
    yield Limit("a translation to Megatron-LM", 0.001, lambda: translate(mla, "python"), times=100)
    yield Limit("a run's lock", 0.3, lambda: _lock(tiny))
    yield Limit("a look at a thousand files", 5.0, lambda: _quietly(*_TEXT, "data.path=many"))
    yield Limit("a look at 50 GB", 5.0, lambda: _quietly(*_TEXT, "data.path=huge.jsonl"))
    for kind in registry.names("importers"):
        for path in sorted((_FILES / kind).iterdir()):
            yield Limit(f"the slowest import of {kind}", 0.5, functools.partial(_quietly, "import", kind, str(path)))


def _least(limit: Limit) -> float:
    found = []
    for _ in range(3):
        before = _used()
        for _ in range(limit.times):
            limit.act()
        found.append((_used() - before) / limit.times)
    return round(min(found), 6)


def _used() -> float:
    """CPU seconds of this process and of its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _spec(*words: str) -> RunSpec:
    return request(list(words), facts=machine.facts(), catalog=Catalog(folder=Path.cwd())).require()


def _program(text: str) -> None:
    subprocess.run([sys.executable, "-c", text], check=True, stdout=subprocess.DEVNULL)


def _quietly(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        launch(words)


def _lock(spec: RunSpec) -> None:
    repository.state.cache_clear()
    this = plan(assess.assess(spec), python="python")
    lock.write(Path("a.yaml"), lock.build(this, job_as_dict(this.job), ()))


def _data() -> None:
    """A thousand files, and a sparse one of 50 GB with its lines where no reader looks."""
    line = f"{json.dumps({'text': 'x' * 1000})}\n".encode()
    with Path("huge.jsonl").open("wb") as file:
        file.write(line * 64)
        file.truncate(50 * 10**9 // len(line) * len(line))
    Path("many").mkdir()
    for number in range(1000):
        Path(f"many/{number}.txt").write_text(f"{number} " * 500)


if __name__ == "__main__":
    takes_no_option(__doc__)
    sys.exit(main())
