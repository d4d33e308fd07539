"""The development cluster: a real Slurm on loopback alone, which leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm import dev_cluster
from slurm.dev_cluster import cluster as cluster_module
from slurm.dev_cluster import packages
from slurm.dev_cluster.__main__ import main
from tests.support.helpers import ROOT

CLUSTER = "preemption"


def children_of(folder: Path) -> list[int]:
    """Processes whose environment names the cluster."""
    mark, found = f"DEV_CLUSTER={folder}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_it_is_a_slurm_of_several_nodes_with_gpus(slurm_cluster: dev_cluster.Cluster, tmp_path: Path) -> None:
    nodes = slurm_cluster.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N %G").split("\n")
    assert nodes == [f"node{number} gpu:h100:8" for number in (1, 2, 3, 4)]
    partitions = slurm_cluster.ask("sinfo", "-h", "-o", "%R %l").split("\n")
    assert {"main infinite", "low infinite", "short 2:00", "down infinite"} <= set(partitions)
    show = "srun sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES $(ls /dev/shm | wc -l)'; touch done"
    slurm_cluster.ask("sbatch", "-N2", "--gpus-per-node=2", f"-D{tmp_path}", f"-o{tmp_path}/out", "--wrap", show)
    deadline = time.monotonic() + 300
    while not (tmp_path / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    seen = sorted((tmp_path / "out").read_text().splitlines())
    assert seen == ["node1 0,1 0", "node2 0,1 0"], "each node has its own name, GPUs and memory"
    assert "research" in slurm_cluster.ask("sacctmgr", "-n", "show", "account", "format=account"), "accounting answers"


def test_it_listens_on_loopback_alone(slurm_cluster: dev_cluster.Cluster) -> None:
    layout = slurm_cluster.layout
    ports = range(layout.port, layout.port + 11 + layout.nodes)
    addresses = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, port = line.split()[1].split(":")
        if line.split()[3] == "0A" and int(port, 16) in ports:  # LISTEN
            addresses[int(port, 16)] = address
    assert len(addresses) >= 3 + layout.nodes, "slurmctld, slurmdbd, the database and every slurmd"
    assert set(addresses.values()) == {"0100007F"}


def test_a_second_start_finds_the_first(slurm_cluster: dev_cluster.Cluster) -> None:
    assert dev_cluster.start(slurm_cluster.layout.folder) == slurm_cluster


def test_start_prints_a_line_for_a_shell_and_says_what_it_is_for(
    slurm_cluster: dev_cluster.Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["slurm.dev_cluster", f"--folder={slurm_cluster.layout.folder}", "start"])
    assert main() == 0
    printed = capsys.readouterr()
    assert printed.out == f"export SLURM_CONF={slurm_cluster.layout.conf}\n"
    said = " ".join(printed.err.split())
    assert "The line above is for the shell that submits: it makes sbatch, squeue and launch use this cluster" in said
    assert "launch model=tiny cluster=slurm hardware.device=cpu" in said
    assert "The #SBATCH lines of that job, which `launch show` prints for the same arguments, request fake" in said


def test_it_ends_by_itself_and_by_stop_with_all_that_it_started(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    cluster = dev_cluster.start(folder, nodes=1, gpus=1, lifetime_s=2)
    cluster.ask("sbatch", "--output=/dev/null", "--wrap", "trap '' TERM; setsid sleep 600 & sleep 600")
    assert len(children_of(folder)) >= 5
    deadline = time.monotonic() + 300
    while cluster_module.is_running(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.2)
    assert children_of(folder) == []
    assert not folder.exists()
    assert not cluster_module.stop(folder), "what has ended is not stopped again"


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dev_cluster.ClusterError, match="is too long for the sockets in it"):
        dev_cluster.start(tmp_path / ("long" * 30))


def test_without_root_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        dev_cluster.ClusterError, match="needs Linux and root, for the namespaces of its nodes: try sudo"
    ):
        dev_cluster.start(tmp_path / "c")


def test_a_machine_without_apt_get_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "path", lambda: "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    expected = "slurmctld, slurmd, slurm-client, munge, util-linux are missing, and there is no apt-get"
    with pytest.raises(dev_cluster.ClusterError, match=expected):
        packages.install(accounting=False)


def test_options_after_the_verb_are_not_left_aside(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["slurm.dev_cluster", "stop", "--folder=/nowhere"])
    with pytest.raises(SystemExit):
        main()
    assert "options go before the verb: --folder=... stop" in capsys.readouterr().err


def test_the_command_line_runs_one_command_beside_a_cluster(tmp_path: Path) -> None:
    words = ["--folder", str(tmp_path / "c"), "--nodes=1", "run", "sinfo", "-h", "-N", "-p", "main", "-o", "%N"]
    done = subprocess.run(
        [sys.executable, "-m", "slurm.dev_cluster", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.returncode, re.sub(r"\s", "", done.stdout)) == (0, "node1"), done.stderr
    assert not (tmp_path / "c").exists()
