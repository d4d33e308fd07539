"""Rules about the cluster that the job runs on: its container, its margin of time, its cores."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """A container without an image, a margin without time, readers without cores."""
    if spec.cluster.probe and spec.script is not None:
        rule = "the ranks of a script of your own start by themselves, and are not compared first"
        yield ConfigError("cluster.probe", True, rule, ["cluster.probe=null"])
    cluster = spec.cluster
    if cluster.container != "none" and cluster.container_image is None:
        rule = f"{cluster.container} needs the image to run"
        yield ConfigError("cluster.container_image", None, rule, ["cluster.container=none"])
    limit = cluster.time_limit_min
    if limit is not None and cluster.kind == "slurm" and cluster.save_margin_s >= limit * 60:
        rule = f"the job would be told to save before it starts: its time limit is {limit * 60} s"
        ways_out = [f"cluster.time_limit_min={cluster.save_margin_s // 30}", f"cluster.save_margin_s={limit * 30}"]
        yield ConfigError("cluster.save_margin_s", cluster.save_margin_s, rule, ways_out)
    yield from _readers(spec)


def _readers(spec: RunSpec) -> Iterator[ConfigError]:
    """More processes that read data than a node's share of cores; of this machine ``this_machine`` says it."""
    cores = spec.cluster.cpus_per_node
    if cores is not None and spec.script is None:
        yield from readers_beyond(spec, cores, f"the job has {cores} cores of a node (cluster.cpus_per_node)")


def readers_beyond(spec: RunSpec, cores: int, said: str) -> Iterator[ConfigError]:
    """An error where the ranks of a node start more readers than there are cores.

    Args:
        spec: The run.
        cores: The cores.
        said: Whose they are, for the message.
    """
    ranks, workers = spec.cluster.gpus_per_node, spec.data.workers
    if workers and ranks * workers > cores:
        rule = f"{said}, and {ranks} ranks x {workers} workers would be {ranks * workers} processes that read data"
        yield ConfigError("data.workers", workers, rule, [edit.override("data.workers", cores // ranks)])


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """A margin to save in that takes most of the time."""
    cluster = spec.cluster
    seconds = 60 * (cluster.time_limit_min or 0)
    if cluster.kind == "slurm" and seconds > cluster.save_margin_s > seconds / 2:
        rule = f"the job is told to save after less than half of its time limit of {seconds} s"
        ways = [f"cluster.time_limit_min={cluster.save_margin_s // 15}", f"cluster.save_margin_s={seconds // 4}"]
        yield ConfigError("cluster.save_margin_s", cluster.save_margin_s, rule, ways)
