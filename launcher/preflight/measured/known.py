"""The measured runs that the estimates of one command rest on.

What reads them is imported where there are some: most commands have none.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base import cache
from launcher.estimate.speed.calibration import Constant
from launcher.spec import ClusterSpec, RunSpec

if TYPE_CHECKING:
    from launcher.preflight.measured.constants import Anchor, Key, Own, Storage
    from launcher.preflight.measured.file import Row

NAME = "measurements.jsonl"


def place(cluster: ClusterSpec) -> Path:
    """The file that ``cluster.measurements`` names, ``~/`` being the user's home; the user's own where it is null."""
    named = cluster.measurements
    if named is not None:
        return Path.home() / named.removeprefix("~/") if named.startswith("~/") else Path(named)
    return cache.folder("state") / NAME


class Measured:
    """Gives the constants of speed and storage that measured runs have; each file is read once."""

    def __init__(self) -> None:
        self._tables: dict[str | None, Mapping[Key, Own]] = {}
        self._rows: dict[str | None, tuple[Row, ...]] = {}
        self._told: list[str] = []

    def __call__(self, spec: RunSpec) -> Constant | None:
        """The constant of a run; None where too little was measured, and the shipped one is taken."""
        if spec.hardware.device != "cuda":
            return None
        table = self.read(spec.cluster)
        if not table:
            return None
        from launcher.preflight.measured.constants import constant_of

        return constant_of(spec, table)

    def read(self, cluster: ClusterSpec) -> "Mapping[Key, Own]":
        """The constants of a cluster by the file that it names, read once."""
        named = cluster.measurements
        if named not in self._tables:
            rows = self._known(cluster)
            if rows:
                from launcher.preflight.measured import constants

            self._tables[named] = constants.of_rows(rows) if rows else {}
        return self._tables[named]

    def storage(self, spec: RunSpec, checkpoint_bytes: int) -> "Storage | None":
        """The speed at which runs of its cluster wrote checkpoints like that of a run; None where none says it."""
        rows = self._known(spec.cluster)
        if not rows:
            return None
        from launcher.preflight.measured.constants import storage_of

        return storage_of(rows, spec.cluster.kind, spec.cluster.nodes, checkpoint_bytes)

    def tell(self, say: Callable[[str], None]) -> None:
        """Report the faults of the files, each once."""
        while self._told:
            say(f"launch: {self._told.pop(0)}")

    def _known(self, cluster: ClusterSpec) -> "tuple[Row, ...]":
        named = cluster.measurements
        if named not in self._rows:
            self._rows[named] = self._read(place(cluster))
        return self._rows[named]

    def _read(self, path: Path) -> "tuple[Row, ...]":
        try:
            path.stat()
            from launcher.preflight.measured import file

            found = file.load(path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            self._told.append(f"the measured runs of {path} cannot be read: {error.strerror or error}")
            return ()
        if found.unreadable:
            count = len(found.unreadable)
            lines = "1 line is no measured run" if count == 1 else f"{count} lines are no measured runs"
            self._told.append(f"{path}: {lines} and left out: {found.unreadable[0]}")
        return found.rows


class Anchored(Measured):
    """Gives the constant of one measured run to runs that are like it, and to others those of the user's runs."""

    def __init__(self, anchor: "Anchor", *, others: bool) -> None:
        """Take the anchor; without ``others`` what is not like it has the shipped constant."""
        super().__init__()
        self._anchor, self._others = anchor, others

    def __call__(self, spec: RunSpec) -> Constant | None:
        """The measured constant of a run; None where the shipped one holds."""
        from launcher.preflight.measured.constants import anchored

        own = anchored(spec, self._anchor)
        return super().__call__(spec) if own is None and self._others else own
