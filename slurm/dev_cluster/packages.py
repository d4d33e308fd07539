"""The packages of the cluster, from Debian's and Ubuntu's own packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from slurm.dev_cluster.texts import ClusterError

SLURM = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
}
ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",  # ``mariadb-install-db`` calls it.
}
"""A program of each package, by which its presence is known."""

_POLICY = Path("/usr/sbin/policy-rc.d")
_TIMEOUT_S = 600


def path() -> str:
    """``PATH`` with the folders of system programs, where the daemons lie and which a user's often lacks."""
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def missing(*, accounting: bool) -> list[str]:
    """Packages to install."""
    wanted = {**SLURM, **(ACCOUNTING if accounting else {})}
    return [package for program, package in wanted.items() if shutil.which(program, path=path()) is None]


def install(*, accounting: bool) -> None:
    """Install what is missing by apt-get, without starting the services that the packages bring.

    Raises:
        ClusterError: It cannot be installed, with apt-get's own last words.
    """
    if not missing(accounting=accounting):
        return
    if shutil.which("apt-get") is None:
        names = ", ".join(missing(accounting=accounting))
        raise ClusterError(f"{names} are missing, and there is no apt-get: the cluster installs on Debian and Ubuntu")
    with (Path(tempfile.gettempdir()) / f"slurm-dev-cluster.{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = missing(accounting=accounting)
        if packages:
            _apt_get(packages)


def _apt_get(packages: list[str]) -> None:
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")  # "Action forbidden by policy": invoke-rc.d(8).
        _POLICY.chmod(0o755)
    try:
        for words in (("update",), ("install", "--yes", "--no-install-recommends", *packages)):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            done = subprocess.run(
                ["apt-get", "-qq", *words],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                last = " ".join(done.stderr.strip().splitlines()[-3:])
                raise ClusterError(f"apt-get {' '.join(words)} failed: {last}")
    finally:
        if ours:
            _POLICY.unlink(missing_ok=True)
