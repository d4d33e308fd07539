"""Process 1 of the cluster's PID namespace: it starts the daemons, reaps, and ends everything when it ends.

Started by :func:`slurm.dev_cluster.start` under ``unshare --pid --kill-child``; it ends after its lifetime or with the
``unshare`` above it, and then the kernel kills everything left in the namespace, including daemons.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm.dev_cluster.texts import ClusterError, Layout

_HOST = """
hostname "$DEV_HOST"
mount --bind "$DEV_CLUSTER/etc/hosts.$DEV_HOST" /etc/hosts
mount -t proc proc /proc
for folder in $DEV_PRIVATE; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
"$@" &
while :; do sleep 3600 & wait $!; done
"""
"""The first process of one host: it outlives its daemon, so that a test can kill only the daemon."""

_POLL_S = 0.05


def main() -> None:
    """Start everything, report that it is ready, and wait for the end."""
    layout, deadline = read_layout(Path(sys.argv[1])), time.monotonic() + float(sys.argv[2])
    try:
        _start_all(layout)
    except ClusterError as error:
        (layout.folder / "failed").write_text(f"{error}\n{_tails(layout)}")
        sys.exit(1)
    (layout.folder / "ready").touch()
    while time.monotonic() < deadline:
        while _reap():
            pass
        time.sleep(0.5)
    shutil.rmtree(layout.folder, ignore_errors=True)


def read_layout(folder: Path) -> Layout:
    """The layout that :func:`slurm.dev_cluster.start` wrote."""
    content = json.loads((folder / "layout.json").read_text())
    return Layout(**{**content, "folder": Path(content["folder"]), "version": tuple(content["version"])})


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _start_all(layout: Layout) -> None:
    folder = layout.folder
    munged = ["munged", "--foreground", "--force", f"--socket={layout.socket}", f"--key-file={folder}/munge/key"]
    munged += [f"--pid-file={folder}/run/munged.pid", f"--seed-file={folder}/munge/seed"]
    _spawn(layout, "munged", [*munged, f"--log-file={folder}/log/munged.log"])
    _wait("munged", 10, lambda: _succeeds("munge", "-S", str(layout.socket), "-n"))
    if layout.accounting:
        _start_accounting(layout)
    _spawn(layout, "slurmctld", ["slurmctld", "-D", "-c"])
    _wait("slurmctld", 30, lambda: _succeeds("scontrol", "ping"))
    for name in layout.names:
        _spawn(layout, name, ["slurmd", "-D", "-N", name], private="/dev/shm")
    _wait("all nodes to be idle", 60, lambda: _idle_nodes() == set(layout.names))


def _start_accounting(layout: Layout) -> None:
    _spawn(layout, "mariadbd", ["sh", f"{layout.folder}/etc/mariadb.sh"], private=f"{layout.folder}/db")
    log = layout.folder / "log" / "mysql.log"
    _wait("mariadbd", 90, lambda: log.exists() and "ready for connections" in log.read_text(errors="replace"))
    _spawn(layout, "slurmdbd", ["slurmdbd", "-D"])
    _wait("slurmdbd", 60, lambda: _succeeds("sacctmgr", "-n", "show", "cluster"))
    for words in ("add cluster dev", "add account research cluster=dev", "add user root account=research cluster=dev"):
        subprocess.run(["sacctmgr", "-i", *words.split()], capture_output=True, timeout=30, check=False)


def _spawn(layout: Layout, host: str, command: Sequence[str], private: str = "") -> None:
    """Run a daemon as a separate host: its own name, processes, /etc/hosts and ``private`` folders."""
    spaces = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    with (layout.folder / "log" / f"{host}.out").open("ab") as out:
        subprocess.Popen(
            [*spaces, "sh", "-c", _HOST, "sh", *command],
            env={**os.environ, "DEV_HOST": host, "DEV_PRIVATE": private},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def _idle_nodes() -> set[str]:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"], capture_output=True, text=True, check=False
    )
    return set(done.stdout.split())


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _wait(what: str, seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"the development cluster gave up after waiting {seconds:.0f} s for {what}")
        time.sleep(_POLL_S)


def _tails(layout: Layout) -> str:
    """The last lines of every log, because the logs are removed with the folder."""
    logs = sorted((layout.folder / "log").glob("*"))
    return "\n".join(
        f"{path.name}: {line}" for path in logs for line in path.read_text(errors="replace").splitlines()[-4:]
    )


if __name__ == "__main__":
    main()
