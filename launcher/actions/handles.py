"""A run and a sweep as objects: what ``status``, ``logs`` and ``cancel`` know of them, for the Python API."""

import math
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.actions import diagnosis, stop
from launcher.actions.find_runs import named
from launcher.base import package
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.rundir import contents, results, state, status
from launcher.rundir.status import RunState
from launcher.spec import RunSpec
from launcher.sweeping import sweep
from launcher.sweeping.point import Point
from launcher.views import runs
from launcher.views.why import Explained

if TYPE_CHECKING:
    import pandas

_POLL_S = 0.3  # Seconds between two looks at the run's file, which costs next to nothing.


class Run:
    """A recorded run in its ``directory``, found by its name below ``runs/``, its directory or its job id."""

    directory: Path

    def __init__(self, name: str | Path) -> None:
        """Find the run; raises ConfigErrors if it does not exist or is a sweep."""
        found = named([str(name)])
        if found.sweep is not None:
            raise ConfigErrors([ConfigError("RUN", str(name), f"it is a sweep: launcher.Sweep({str(found.sweep)!r})")])
        self.directory = found.runs[0].absolute()

    @property
    def id(self) -> str:
        """Its name, with the sweep's name in front for a run of a sweep."""
        return self.status.id

    @property
    def status(self) -> RunState:
        """Its state now, as ``launch status`` shows it: ``.state``, ``.job_id``, ``.reason``, ``.as_dict()``."""
        return status.read(self.directory)

    @property
    def spec(self) -> RunSpec:
        """Its resolved settings: ``run.spec.train.steps``."""
        return contents.spec_of(self.directory)

    def steps(self) -> list[JsonObject]:
        """The lines of ``metrics.jsonl`` so far, one per logged step."""
        return results.steps(self.directory)

    def metrics(self) -> "pandas.DataFrame":
        """The same as a pandas data frame, a row per step; raises ConfigErrors if pandas is not installed."""
        return _frame(self.steps(), "Run.steps()")

    def logs(self, *, lines: int = 20, rank: int | None = None) -> str:
        """The last lines of each of its files, errors first; raises ConfigErrors if there is no such rank."""
        files = diagnosis.document(self.status, lines=lines, rank=rank)["files"]
        return "\n".join("\n".join([f"==> {file['path']} <==", *file["lines"]]) for file in files)

    def why(self) -> Explained:
        """Why it ended, as from ``launch why``: ``.cause``, ``.pile``, ``.ways``, ``.as_dict()``."""
        return Explained.of(diagnosis.explain_end(self.directory))

    def cancel(self) -> bool:
        """Stop it after it saves a checkpoint; False if it is not running; SubmitError if Slurm refuses."""
        return stop.stop(self.directory, signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> RunState:
        """Wait up to ``timeout`` seconds for its end and return its state; TimeoutError if it still runs."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        asked = status.PolledState(self.directory)
        while (now := asked.row).state not in state.ENDED:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{now.id} is {now.state} after {timeout:g} s")
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
            asked.look()
        return now

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"


class Sweep:
    """A sweep: its points, and the runs of those that were started."""

    directory: Path | None  # The sweep's folder; None if the points were only checked.
    points: tuple[Point, ...]  # Each with ``id``, ``overrides``, ``verdict``, and the ``reason`` if it is left out.

    def __init__(self, name: str | Path | None, points: Sequence[Point] | None = None) -> None:
        """Find the sweep by its name below ``runs/`` or its folder; raises ConfigErrors if it does not exist."""
        self.directory = None if name is None else named([str(name)]).sweep
        if name is not None and self.directory is None:
            raise ConfigErrors([ConfigError("SWEEP", str(name), "no such sweep", ["launch status"])])
        known = points if self.directory is None else sweep.points(self.directory)
        self.points = tuple(known or ())

    @property
    def runs(self) -> list[Run]:
        """The runs of the points that were not left out."""
        directory = self.directory
        return [] if directory is None else [Run(directory / point.id) for point in self.points if point.kept]

    def rows(self) -> list[JsonObject]:
        """One row per point, as in ``launch status SWEEP --json`` or ``launch check -m --json``."""
        if self.directory is None:
            return [point.as_dict() for point in self.points]
        return [row.as_dict() for row in sweep.rows(self.directory)]

    def metrics(self) -> "pandas.DataFrame":
        """The same as a pandas data frame, a row per point; raises ConfigErrors if pandas is not installed."""
        return _frame(self.rows(), "Sweep.rows()")

    def __str__(self) -> str:
        if self.directory is None:
            return runs.judged(self.points)
        return runs.sweep_text(sweep.rows(self.directory))


def _frame(rows: list[JsonObject], otherwise: str) -> "pandas.DataFrame":
    try:
        import pandas  # Late, because it takes half a second and comes with the training extras.
    except ImportError:
        rule = f"metrics() returns a data frame, and pandas is not installed; {otherwise} returns the same as a list"
        raise ConfigErrors([ConfigError("pandas", None, rule, [package.install(package.TRAINING)])]) from None
    return pandas.DataFrame(rows)
