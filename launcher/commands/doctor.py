"""Report what this machine and its Slurm offer and lack, and the cluster profile that results.

Overrides select a node (cluster.account=team cluster.partition=gpu). One short job tests from a node whether it can
write to the shared folder, and which Python, packages and GPUs a job finds there. Exit status: 0, or 4 if Slurm is
installed but does not answer.
"""

import argparse

from launcher.actions.doctor import DoctorRequest, examine
from launcher.commands._options import add_shared, print_output, request_from


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="select a node: cluster.partition=gpu")
    add_shared(parser, "--json")
    words = "seconds to wait for a node's answer (60); 0 starts no job"
    parser.add_argument("--wait", type=float, default=60, metavar="S", help=words)
    add_shared(parser, "--trust")
    parser.add_argument("--write", metavar="NAME", help="save the profile as conf/cluster/NAME.yaml")


def run(options: argparse.Namespace) -> int:
    """Survey the machine and its Slurm, print the findings, and write the profile with ``--write``."""
    return print_output(examine(request_from(DoctorRequest, options)), as_json=options.json)
