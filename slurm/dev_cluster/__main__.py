"""``python -m slurm.dev_cluster``: start or stop a cluster, or run one command with a cluster that ends with it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from slurm.dev_cluster import cluster
from slurm.dev_cluster.cluster import LIFETIME_S
from slurm.dev_cluster.texts import ClusterError

FOLDER = Path("/tmp/slurm-dev-cluster")

_EXPLAINED = """
A Slurm cluster of {layout.nodes} nodes with {layout.gpus} fake GPUs each is running. The line above is for the shell
that submits: it makes sbatch, squeue and launch use this cluster and no other. To do all of it at once:
  eval "$(python -m slurm.dev_cluster --folder={folder} start)"
  launch model=tiny cluster=slurm hardware.device=cpu cluster.nodes=2 cluster.gpus_per_node=2
The #SBATCH lines of that job, which `launch show` prints for the same arguments, request fake GPUs; its processes
compute on the CPU. To stop the cluster:
  python -m slurm.dev_cluster --folder={folder} stop"""


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m slurm.dev_cluster", description=__doc__)
    parser.add_argument("verb", choices=("start", "stop", "run"))
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command for `run`")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"folder for all its state (default {FOLDER})")
    parser.add_argument(
        "--lifetime", type=float, default=LIFETIME_S, metavar="S", help="stop by itself after S seconds"
    )
    parser.add_argument("--accounting", action="store_true", help="run slurmdbd and a database, so that sacct works")
    parser.add_argument("--nodes", type=int, default=4, help="number of nodes (default 4)")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs per node (default 8)")
    options = parser.parse_args()
    if options.command and options.verb != "run":
        parser.error(f"options go before the verb: --folder=... {options.verb}")
    if options.verb == "stop":
        print("stopped" if cluster.stop(options.folder) else "no cluster was running")
        return 0
    try:
        running = cluster.start(
            options.folder,
            lifetime_s=options.lifetime,
            accounting=options.accounting,
            nodes=options.nodes,
            gpus=options.gpus,
        )
    except ClusterError as error:
        print(f"slurm.dev_cluster: {error}", file=sys.stderr)
        return 4
    if options.verb == "start":
        print(f"export SLURM_CONF={running.layout.conf}")
        print(_EXPLAINED.format(layout=running.layout, folder=options.folder), file=sys.stderr)
        return 0
    try:
        return subprocess.run(options.command, env={**os.environ, **running.environment}, check=False).returncode
    finally:
        running.stop()


if __name__ == "__main__":
    sys.exit(main())
