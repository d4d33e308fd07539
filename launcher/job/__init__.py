"""The job as frozen data: a node's command, files and environment, and the torchrun command around a worker."""

from collections.abc import Mapping
from dataclasses import field, replace

from launcher.base.frozen import dataclass

RUN = "{run}"  # Placeholder for the run directory in argv, environment and files until it is known.


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job."""

    argv: tuple[str, ...]  # Starts the job on a node (torchrun and what it runs).
    worker_argv: tuple[str, ...]  # Arguments of the training program itself; for Megatron, its argument list.
    environment: Mapping[str, str]  # Variables added to the job's environment, never a secret value.
    nodes: int  # Machines.
    gpus_per_node: int  # Ranks on each of them.
    files: Mapping[str, str] = field(default_factory=dict)  # Generated files by their name inside the run directory.
    pass_environment: tuple[str, ...] = ()  # Names of variables that the job inherits from the submitting shell.

    def at(self, run_directory: str) -> "Job":
        """The same job with ``{run}`` replaced by the run directory."""

        def put(text: str) -> str:
            return text.replace(RUN, run_directory)

        return replace(
            self,
            argv=tuple(map(put, self.argv)),
            worker_argv=tuple(map(put, self.worker_argv)),
            environment={name: put(value) for name, value in self.environment.items()},
            files={name: put(text) for name, text in self.files.items()},
        )
