"""The measured runs that the estimates of one command use.

The code that reads them is imported only if there are any: most commands have none.
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
    """The path in ``cluster.measurements``, with ``~/`` as the user's home; the user's own file if it is null."""
    named = cluster.measurements
    if named is not None:
        return Path.home() / named.removeprefix("~/") if named.startswith("~/") else Path(named)
    return cache.folder("state") / NAME


class Measured:
    """Gives the speed and storage constants of measured runs; each file is read once."""

    def __init__(self) -> None:
        self._tables: dict[str | None, Mapping[Key, Own]] = {}
        self._rows: dict[str | None, tuple[Row, ...]] = {}
        self._told: list[str] = []

    def __call__(self, spec: RunSpec) -> Constant | None:
        """The constant for a run; None if too few runs were measured, so that the shipped one is used."""
        if spec.hardware.device != "cuda":
            return None
        table = self.read(spec.cluster)
        if not table:
            return None
        from launcher.preflight.measured.constants import constant_of

        return constant_of(spec, table)

    def read(self, cluster: ClusterSpec) -> "Mapping[Key, Own]":
        """The constants from a cluster's file, which is read once."""
        named = cluster.measurements
        if named not in self._tables:
            rows = self._known(cluster)
            if rows:
                from launcher.preflight.measured import constants

            self._tables[named] = constants.of_rows(rows) if rows else {}
        return self._tables[named]

    def storage(self, spec: RunSpec, checkpoint_bytes: int) -> "Storage | None":
        """The bandwidth at which earlier runs on its cluster wrote checkpoints like this run's; None if unknown."""
        rows = self._known(spec.cluster)
        if not rows:
            return None
        from launcher.preflight.measured.constants import storage_of

        return storage_of(rows, spec.cluster.kind, spec.cluster.nodes, checkpoint_bytes)

    def tell(self, say: Callable[[str], None]) -> None:
        """Report each fault of the files once."""
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
            lines = "ignored 1 line that is" if count == 1 else f"ignored {count} lines that are"
            self._told.append(f"{path}: {lines} not a measured run: {found.unreadable[0]}")
        return found.rows


class Anchored(Measured):
    """Gives runs like the anchor its constant, and other runs the constants of the user's measured runs."""

    def __init__(self, anchor: "Anchor", *, others: bool) -> None:
        """Take the anchor; without ``others``, runs unlike it use the shipped constant."""
        super().__init__()
        self._anchor, self._others = anchor, others

    def __call__(self, spec: RunSpec) -> Constant | None:
        """The measured constant for a run; None if the shipped one is used."""
        from launcher.preflight.measured.constants import anchored

        own = anchored(spec, self._anchor)
        return super().__call__(spec) if own is None and self._others else own
