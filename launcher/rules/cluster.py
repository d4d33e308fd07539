"""Rules about the cluster and its devices: container, time margin, cores, card, bandwidths."""

from collections.abc import Iterator
from functools import cache

from launcher.base.errors import ConfigError
from launcher.base.package import shipped
from launcher.spec import RunSpec, edit
from launcher.spec.parse import closest

_LEAST = 1e6
"""Bytes per second below which a bandwidth must be in another unit: no link of the last 20 years is that slow."""

_GIGA = 1e9

_BANDWIDTHS = (
    *(f"hardware.{name}_bandwidth" for name in ("memory", "link", "network", "pcie", "nvme")),
    "cluster.network_bandwidth",
)
_IMAGES = {"pyxis": "sqsh", "apptainer": "sif"}


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of containers without an image, margins beyond the time limit and readers without cores."""
    if spec.cluster.probe and spec.script is not None:
        rule = "launch cannot compare the ranks of your own script before it starts"
        yield ConfigError("cluster.probe", True, rule, ["cluster.probe=null"])
    cluster = spec.cluster
    if cluster.container != "none" and cluster.container_image is None:
        rule = f"{cluster.container} needs an image to run"
        ways = [f"cluster.container_image=path/to/image.{_IMAGES[cluster.container]}", "cluster.container=none"]
        yield ConfigError("cluster.container_image", None, rule, ways)
    limit = cluster.time_limit_min
    if limit is not None and cluster.kind == "slurm" and cluster.save_margin_s >= limit * 60:
        rule = f"the job would be told to save before it starts: its time limit is {limit * 60} s"
        ways_out = [f"cluster.time_limit_min={cluster.save_margin_s // 30}", f"cluster.save_margin_s={limit * 30}"]
        yield ConfigError("cluster.save_margin_s", cluster.save_margin_s, rule, ways_out)
    yield from _readers(spec)
    yield from _device(spec)


def _readers(spec: RunSpec) -> Iterator[ConfigError]:
    cores = spec.cluster.cpus_per_node
    if cores is not None and spec.script is None:
        yield from readers_beyond(spec, cores, f"the job has {cores} cores per node (cluster.cpus_per_node)")


def readers_beyond(spec: RunSpec, cores: int, whose: str) -> Iterator[ConfigError]:
    """Yield an error if the ranks of a node start more data-loading processes than ``cores``."""
    ranks, workers = spec.cluster.gpus_per_node, spec.data.workers
    if workers and ranks * workers > cores:
        rule = f"{whose}, but {ranks} ranks x {workers} workers would start {ranks * workers} data-loading processes"
        yield ConfigError("data.workers", workers, rule, [edit.override("data.workers", cores // ranks)])


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield a warning if the margin for saving takes most of the time limit."""
    cluster = spec.cluster
    seconds = 60 * (cluster.time_limit_min or 0)
    if cluster.kind == "slurm" and seconds > cluster.save_margin_s > seconds / 2:
        rule = f"the job is told to save after less than half of its time limit of {seconds} s"
        ways = [f"cluster.time_limit_min={cluster.save_margin_s // 15}", f"cluster.save_margin_s={seconds // 4}"]
        yield ConfigError("cluster.save_margin_s", cluster.save_margin_s, rule, ways)


def _device(spec: RunSpec) -> Iterator[ConfigError]:
    card = spec.hardware.card
    if card is not None and card not in _cards():
        rule = "must name an option of hardware, whose measured speed is used, and there is none of this name"
        ways_out = [edit.override("hardware.card", near) for near in closest(card, _cards())]
        yield ConfigError("hardware.card", card, rule, [*ways_out, "hardware.card=null"])
    for path in _BANDWIDTHS:
        value = edit.value_at(spec, path)
        if isinstance(value, int | float) and value < _LEAST:
            meant = round(value * _GIGA)
            rule = "bandwidths are in bytes per second, per GPU and in one direction"
            yield ConfigError(path, value, rule, [edit.override(path, meant if meant >= _LEAST else None)])


@cache
def _cards() -> tuple[str, ...]:
    names = (path.stem for path in sorted((shipped("conf") / "hardware").glob("[!_]*.yaml")))
    return tuple(name for name in names if name not in ("auto", "cpu"))
