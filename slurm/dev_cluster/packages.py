"""The packages of the cluster, from Debian's and Ubuntu's own packages; other programs of these, by the same way."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
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


def install(*, accounting: bool) -> None:
    """Install what the cluster lacks.

    Raises:
        ClusterError: It cannot be installed, with apt-get's own last words.
    """
    provide({**SLURM, **(ACCOUNTING if accounting else {})})


def provide(wanted: Mapping[str, str], *, beside: Sequence[str] = ()) -> None:
    """Install what is missing by apt-get, without starting the services that the packages bring.

    Args:
        wanted: The package of each program that is to be there.
        beside: Packages without a program that belong to these.

    Raises:
        ClusterError: It cannot be installed, with apt-get's own last words.
    """
    if not _missing(wanted):
        return
    if shutil.which("apt-get") is None:
        names = _missing(wanted)
        lacking = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
        raise ClusterError(f"{lacking}, and there is no apt-get: they are installed on Debian and Ubuntu")
    with (Path(tempfile.gettempdir()) / f"slurm-dev-cluster.{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = _missing(wanted)
        if packages:
            _apt_get([*packages, *beside])


def _missing(wanted: Mapping[str, str]) -> list[str]:
    return [package for program, package in wanted.items() if shutil.which(program, path=path()) is None]


def _apt_get(packages: list[str]) -> None:
    ours = not _POLICY.exists()
    try:
        if ours:
            _POLICY.write_text("#!/bin/sh\nexit 101\n")  # "Action forbidden by policy": invoke-rc.d(8).
            _POLICY.chmod(0o755)
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
    except subprocess.TimeoutExpired:
        raise ClusterError(f"apt-get {' '.join(words)} has not ended after {_TIMEOUT_S} s") from None
    except OSError as error:
        raise ClusterError(f"packages cannot be installed here: {error}") from None
    finally:
        if ours:
            with contextlib.suppress(OSError):  # It is not there where it could not be written.
                _POLICY.unlink()
