"""The torchrun command line of a job, the same for every backend."""

import itertools
from collections.abc import Sequence

from launcher.job import RUN
from launcher.spec import RunSpec

HOST = "{host}"
PORT = "{port}"
IS_HOST = "{is_host}"
RENDEZVOUS = "{rendezvous}"
"""Placeholders in argv for facts that only the node knows: the first host of the allocation, the job's port, 1 or 0 for
whether this node is that host, and an id that differs for every allocation. ``launcher.submission.node`` fills them."""

SAFE_PATH = "PYTHONSAFEPATH"
"""``-P`` as a variable, for the ranks: torchrun starts them by ``python -u -m`` and hands no option of its own on."""

SAVING_S = 120
"""Seconds that ranks have for their last checkpoint once they are asked to stop; torchrun's own 30 cut large ones."""

ENVIRONMENT = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SAVING_S)}
"""Read by torchrun from torch 2.12, which also has an argument for it; an older one would refuse the argument."""


def command(spec: RunSpec, python: str, program: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """The argv that starts all ranks of one node.

    ``program`` is ``("-m", "launcher.worker.fsdp")`` or ``("{run}/run_script.py",)``. ``--`` stands before it because
    torchrun's parser also reads the program's arguments: without it ``--start 5`` is "ambiguous option: --start could
    match --start-method". Restarts are the launcher's business.
    """
    module = ("-m",) if program[0] == "-m" else ()
    return (
        python,
        "-P",
        "-m",
        "torch.distributed.run",
        *_rendezvous(spec),
        f"--nproc-per-node={spec.cluster.gpus_per_node}",
        "--max-restarts=0",
        f"--log-dir={RUN}/logs/ranks",
        "--redirects=3",
        *module,
        "--",
        program[-1],
        *arguments,
    )


def environment(argv: Sequence[str]) -> dict[str, str]:
    """The variable that keeps the working folder off ``sys.path`` in our ranks; a script's folder stays first."""
    return {SAFE_PATH: "1"} if _is_module(argv) else {}


def one_rank(argv: Sequence[str]) -> list[str]:
    """One rank's part of the argv of :func:`command`, without torchrun: interpreter, program and arguments."""
    at = list(argv).index("--")
    return [argv[0], *(("-P", "-m") if _is_module(argv) else ()), *argv[at + 1 :]]


def _is_module(argv: Sequence[str]) -> bool:
    return ("-m", "--") in itertools.pairwise(argv)


def _rendezvous(spec: RunSpec) -> tuple[str, ...]:
    if spec.cluster.kind == "local" and spec.cluster.nodes == 1:
        return ("--standalone", "--nnodes=1")
    return (
        f"--nnodes={spec.cluster.nodes}",
        f"--rdzv-id={RENDEZVOUS}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={HOST}:{PORT}",
        f"--rdzv-conf=is_host={IS_HOST}",
    )
