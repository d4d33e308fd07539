"""The evidence of a measured layout: what its recipe says of itself, in lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.units import gib, rounded
from launcher.preflight import job_python
from launcher.rundir import contents
from launcher.sweeping.measurement import Measured, Results, date_of


def summary(found: Results, best: Measured) -> str:
    """What the recipe is for: how its layout was chosen."""
    count = len(found.measured)
    chosen = f"The fastest of {count} measured layouts" if count > 1 else "The one layout that was measured"
    so_far = f", with {found.waits} to come" if found.waits else ""
    return f"{chosen}{so_far}, of {found.content['model']} on {found.content['machine']}"


def source(found: Results, best: Measured) -> str:
    """What was measured, where, with what and when; and the layouts that it was compared with."""
    others = [f"{_name(found, row)} {_outcome(row)}" for row in found.rows if row is not best]
    return "; ".join((*_parts(found, best), *([f"others: {', '.join(others)}"] if others else [])))


def _parts(found: Results, best: Measured) -> Iterator[str]:
    predicted = "" if best.predicted_per_gpu is None else f" (predicted {rounded(best.predicted_per_gpu)})"
    steps = f"median of the last {best.counted} of {best.row.run.progress.step} steps" if best.row.run else ""
    yield f"measured {_outcome(best)}{predicted}, {steps} on random tokens"
    if best.measured_bytes is not None:
        predicted = "" if best.predicted_bytes is None else f" (predicted {gib(best.predicted_bytes)})"
        yield f"{gib(best.measured_bytes)} allocated on the fullest rank{predicted}"
    yield f"on {found.content['machine']}"
    yield _versions(found, best)
    if (date := date_of(best)) is not None:
        yield date
    yield f"run {_name(found, best)}"


def _versions(found: Results, best: Measured) -> str:
    """The launcher's, and of the packages that the run imports those that are known."""
    versions = found.content["versions"]
    needed = [] if best.directory is None else job_python.needed(contents.spec_of(best.directory))
    packages = {name: version for name, version in versions["packages"].items() if name in ("torch", *needed)}
    known = {"launch": versions["launcher"], "Python": versions["python"], **packages}
    return ", ".join(f"{name} {version}" for name, version in known.items() if version is not None)


def _name(found: Results, row: Measured) -> str:
    return f"{found.directory.name}/{row.row.point.id}"


def _outcome(row: Measured) -> str:
    per_gpu = row.tokens_per_second_per_gpu
    return row.state if per_gpu is None else f"{rounded(per_gpu)} tokens/s a {row.unit}"
