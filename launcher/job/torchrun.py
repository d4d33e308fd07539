"""The torchrun command line of a job, the same for every backend."""

import itertools
from collections.abc import Sequence

from launcher.job import RUN
from launcher.spec import RunSpec

HOST = "{host}"
PORT = "{port}"
IS_HOST = "{is_host}"
RENDEZVOUS = "{rendezvous}"
"""Placeholders in argv for facts that only the node knows: the first host of the allocation, the job's port, whether
this node is that host (1 or 0), and an id unique to each allocation. ``launcher.submission.node`` fills them in."""

SAFE_PATH = "PYTHONSAFEPATH"
"""``-P`` as a variable for the ranks: torchrun starts them with ``python -u -m`` and passes on no option of its own."""

SAVING_S = 120
"""Seconds for ranks to write their last checkpoint after a stop request; torchrun's default of 30 cuts large ones."""

ENVIRONMENT = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SAVING_S)}
"""Read by torchrun since torch 2.12, which also has an argument for it; an older one would refuse the argument."""


def command(spec: RunSpec, python: str, program: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """The argv that starts all ranks of one node.

    ``program`` is ``("-m", "launcher.worker.fsdp")`` or ``("{run}/run_script.py",)``. ``--`` precedes it because
    torchrun's parser also reads the program's arguments: without it ``--start 5`` is "ambiguous option: --start could
    match --start-method". The launcher handles restarts.
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
    """The variable that keeps the working folder off our ranks' ``sys.path``; none for a script, whose folder stays."""
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
