"""The translated job as data: the command that is started on a node, its files and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RUN = "{run}"
"""Stands for the run directory in argv, environment and files until it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        argv: Starts the job on a node (torchrun and what it runs).
        worker_argv: The list handed to the training program itself; for Megatron, its argument list.
        environment: Variables added to the job's environment, never a secret's value.
        pass_environment: Names of variables whose values the job takes from where it is submitted.
        files: Generated files by their name inside the run directory.
        nodes: Machines.
        gpus_per_node: Ranks on each of them.
    """

    argv: tuple[str, ...]
    worker_argv: tuple[str, ...]
    environment: Mapping[str, str]
    nodes: int
    gpus_per_node: int
    files: Mapping[str, str] = field(default_factory=dict)
    pass_environment: tuple[str, ...] = ()

    def at(self, run_directory: str) -> Job:
        """The same job with the run directory in place of ``{run}``."""

        def put(text: str) -> str:
            return text.replace(RUN, run_directory)

        return Job(
            argv=tuple(map(put, self.argv)),
            worker_argv=tuple(map(put, self.worker_argv)),
            environment={name: put(value) for name, value in self.environment.items()},
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            files={name: put(text) for name, text in self.files.items()},
            pass_environment=self.pass_environment,
        )
