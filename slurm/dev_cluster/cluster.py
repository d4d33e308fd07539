"""Start, find, disturb and stop a development cluster. Processes are only addressed by their ids."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from slurm.dev_cluster import packages, texts
from slurm.dev_cluster.keeper import read_layout
from slurm.dev_cluster.texts import ClusterError, Layout

LIFETIME_S = 3600.0
"""Seconds after which a cluster ends by itself."""

_START_S = 180
_STARTS = Path(tempfile.gettempdir()) / "slurm-dev-cluster-start"
_SUBFOLDERS = ("etc", "run", "log", "ctld", "spool", "munge", "dev", "db")
_NULL = os.makedev(1, 3)
_LONGEST_SOCKET = 107
"""Longest path of a Unix socket: ``sun_path`` in unix(7) without its terminating zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster."""

    layout: Layout

    @property
    def environment(self) -> dict[str, str]:
        """Environment for a process that uses the cluster."""
        return {"SLURM_CONF": str(self.layout.conf), "PATH": packages.path()}

    def ask(self, *command: str, timeout: float = 60) -> str:
        """Run a Slurm command and return its output.

        Raises:
            subprocess.CalledProcessError: The command failed.
        """
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=True)
        return done.stdout.strip()

    def processes(self, host: str, program: str) -> list[int]:
        """Process ids of a program on one host of the cluster, oldest first."""
        marks = {f"DEV_CLUSTER={self.layout.folder}".encode(), f"DEV_HOST={host}".encode()}
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if Path(words[0].decode()).name == program and marks <= set(
                    (entry / "environ").read_bytes().split(b"\0")
                ):
                    found.append(int(entry.name))
        return sorted(found)

    def kill(self, host: str, program: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill one daemon but not its children: ``kill("node2", "slurmd")``."""
        for pid in self.processes(host, program):
            os.kill(pid, how)
        deadline = time.monotonic() + 20
        while self.processes(host, program) and time.monotonic() < deadline:
            time.sleep(0.05)

    def revive(self, host: str, *command: str) -> None:
        """Restart a daemon inside its host: ``revive("slurmctld", "slurmctld", "-D")``."""
        first = self.processes(host, "sh")[0]
        spaces = ["nsenter", f"--target={first}", "--mount", "--root", "--uts", "--pid"]  # --root: for a chroot.
        environment = {**os.environ, **self.environment}
        environment |= {"DEV_CLUSTER": str(self.layout.folder), "DEV_HOST": host}
        with (self.layout.folder / "log" / f"{host}.out").open("ab") as out:
            process = subprocess.Popen(
                [*spaces, *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        process.returncode = 0  # It outlives us: Popen would warn of a child that still runs.

    def power_off(self, node: str) -> None:
        """Kill a node and all its processes."""
        os.kill(self.processes(node, "unshare")[0], signal.SIGKILL)

    def stop(self) -> None:
        """Stop the cluster and remove its folder."""
        stop(self.layout.folder)


def start(
    folder: Path, *, lifetime_s: float = LIFETIME_S, accounting: bool = False, nodes: int = 4, gpus: int = 8
) -> Cluster:
    """Start a cluster, or find the one that runs in this folder.

    Args:
        folder: Created, and removed when the cluster ends.
        lifetime_s: Seconds after which it ends by itself.
        accounting: Whether ``sacct`` works, and accounts are checked.
        nodes: Number of nodes.
        gpus: GPUs of each node.

    Raises:
        ClusterError: It cannot be started; the message has the reason and the last lines of the logs.
    """
    folder = folder.absolute()
    if len(str(folder / "munge" / "socket")) > _LONGEST_SOCKET - len(".lock"):
        raise ClusterError(f"the path {folder} is too long for the sockets in it; choose a shorter one")
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ClusterError("the development cluster needs Linux and root, for the namespaces of its nodes: try sudo")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if is_running(folder):
            return Cluster(layout=read_layout(folder))
        packages.install(accounting=accounting)
        shutil.rmtree(folder, ignore_errors=True)
        layout = Layout(folder=folder, accounting=accounting, nodes=nodes, gpus=gpus)
        layout = replace(layout, first_job_id=1000 + secrets.randbelow(60_000_000), version=_version())
        with _locked(_STARTS):  # Bind the free ports before another cluster looks for some.
            layout = replace(layout, port=_free_ports(11 + nodes))
            _write(layout)
            _start_keeper(layout, lifetime_s)
        return Cluster(layout=layout)


def stop(folder: Path) -> bool:
    """End the cluster of a folder, and remove the folder; False if none runs."""
    folder = folder.absolute()
    with _locked(folder):
        running = is_running(folder)
        if running:
            os.kill(
                _keeper(folder)["pid"], signal.SIGKILL
            )  # ``unshare --kill-child``: the kernel kills all its descendants.
            deadline = time.monotonic() + 20
            while is_running(folder) and time.monotonic() < deadline:
                time.sleep(0.02)
        shutil.rmtree(folder, ignore_errors=True)
    return running


def is_running(folder: Path) -> bool:
    """True if the cluster of a folder runs; a reused process id does not count."""
    keeper = _keeper(folder)
    return bool(keeper) and _started(keeper["pid"]) == keeper["started"]


def _keeper(folder: Path) -> dict[str, int]:
    try:
        content: dict[str, int] = json.loads((folder / "keeper.json").read_text())
    except (OSError, ValueError):
        return {}
    return content


def _started(pid: int) -> int | None:
    """A process's start time in clock ticks since boot (field 22 of proc_pid_stat(5)); None for a dead process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _start_keeper(layout: Layout, lifetime_s: float) -> None:
    folder = layout.folder
    spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    root = Path(__file__).parent.parent.parent
    environment = {**os.environ, **Cluster(layout=layout).environment}
    environment |= {"DEV_CLUSTER": str(folder), "DEV_HOST": "keeper", "PYTHONPATH": str(root)}
    with (folder / "log" / "keeper.out").open("ab") as out:
        process = subprocess.Popen(
            [*spaces, sys.executable, "-m", "slurm.dev_cluster.keeper", str(folder), str(lifetime_s)],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    (folder / "keeper.json").write_text(json.dumps({"pid": process.pid, "started": _started(process.pid)}))
    deadline = time.monotonic() + _START_S
    while not (folder / "ready").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise ClusterError(_why(folder))
        time.sleep(0.02)
    process.returncode = 0  # It outlives us: Popen would warn of a child that still runs.


def _why(folder: Path) -> str:
    for name in ("failed", "log/keeper.out"):
        with contextlib.suppress(OSError):
            if text := (folder / name).read_text().strip():
                return f"the development cluster did not start: {text}"
    return "the development cluster did not start, and left no message"


def _write(layout: Layout) -> None:
    for name in _SUBFOLDERS:
        (layout.folder / name).mkdir(parents=True)
    for name in layout.names:
        (layout.folder / "spool" / name).mkdir()
    (layout.folder / "layout.json").write_text(json.dumps(asdict(layout), default=str))
    key = layout.folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    contents = {
        "slurm.conf": texts.slurm_conf(layout),
        "gres.conf": texts.gres_conf(layout, _gpus(layout)),
        "cgroup.conf": texts.cgroup_conf(layout),
        "slurmdbd.conf": texts.slurmdbd_conf(layout),
        "init.sql": texts.init_sql(),
        "mariadb.sh": texts.mariadb_sh(layout),
    }
    machine = socket.gethostname()
    contents |= {f"hosts.{name}": texts.hosts(layout, name, machine) for name in (*texts.DAEMONS, *layout.names)}
    for name, text in contents.items():
        path = layout.folder / "etc" / name
        path.write_text(text)
        path.chmod(0o600 if name == "slurmdbd.conf" else 0o644)


def _gpus(layout: Layout) -> str:
    """Device files that represent GPUs: clones of /dev/null, or terminals if no device may be created."""
    try:
        for number in range(layout.gpus):
            device = layout.folder / "dev" / f"nvidia{number}"
            os.mknod(device, 0o020666, _NULL)
            device.chmod(0o666)
    except PermissionError:
        return f"/dev/tty[0-{layout.gpus - 1}]"
    return f"{layout.folder}/dev/nvidia[0-{layout.gpus - 1}]"


def _version() -> tuple[int, int]:
    done = subprocess.run(
        ["slurmctld", "-V"], env={**os.environ, "PATH": packages.path()}, capture_output=True, text=True, check=True
    )
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _free_ports(count: int) -> int:
    """The first of a number of consecutive free ports, below the rendezvous ports of jobs (from 20000 on)."""
    first_tried = secrets.randbelow(450) * 20
    for first in (11000 + (first_tried + step) % 9000 for step in range(0, 9000, 20)):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise ClusterError(f"no {count} consecutive free ports between 11000 and 20000")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Serialize starts and stops of a cluster that pytest's workers share, and starts on one machine."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
