"""Installs the cluster's packages, and other programs, from Debian's and Ubuntu's own packages."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
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
"""A program of each package that shows that it is installed."""

_POLICY = Path("/usr/sbin/policy-rc.d")
_TIMEOUT_S = 600


def path() -> str:
    """``PATH`` with the folders of system programs, which have the daemons and which a user's often lacks."""
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def install(*, accounting: bool) -> None:
    """Install the cluster's missing packages.

    Raises:
        ClusterError: Installation failed; the message has the end of apt-get's output.
    """
    provide({**SLURM, **(ACCOUNTING if accounting else {})})


def provide(wanted: Mapping[str, str]) -> None:
    """Install the packages of the programs that are missing.

    Args:
        wanted: The package of each required program.

    Raises:
        ClusterError: Installation failed; the message has the end of apt-get's output.
    """
    if missing := _missing(wanted):
        fetch(missing, still=lambda: _missing(wanted))


def fetch(names: Sequence[str], *, still: Callable[[], Sequence[str]]) -> None:
    """Install packages with apt-get, without starting their services.

    Args:
        names: The packages.
        still: Those still missing once no other process is installing.

    Raises:
        ClusterError: Installation failed; the message has the end of apt-get's output.
    """
    if shutil.which("apt-get") is None:
        lacking = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} missing"
        raise ClusterError(f"{lacking}, and there is no apt-get: they can be installed on Debian and Ubuntu only")
    with (Path(tempfile.gettempdir()) / f"slurm-dev-cluster.{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if wanted := still():
            _apt_get(wanted)


def _missing(wanted: Mapping[str, str]) -> list[str]:
    return [package for program, package in wanted.items() if shutil.which(program, path=path()) is None]


def _apt_get(packages: Sequence[str]) -> None:
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
            with contextlib.suppress(OSError):  # It does not exist if it could not be written.
                _POLICY.unlink()
