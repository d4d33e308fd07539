"""The cluster's configuration files as pure functions of its layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class ClusterError(Exception):
    """The development cluster cannot be started; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The simulated cluster.

    Attributes:
        folder: Holds all state, including Unix sockets, whose paths have at most 107 characters.
        port: The first of its ports, all on 127.0.0.1.
        nodes: Number of nodes, ``node1`` to ``node<nodes>``.
        gpus: GPUs of each node.
        cpus: CPUs of each node, whatever the machine has.
        memory_mib: Memory of each node, whatever the machine has.
        accounting: Whether slurmdbd and a database record ended jobs, and unknown accounts are refused.
        first_job_id: Job ids differ between clusters; otherwise submitit would find results of an earlier cluster's
            job, and concurrent jobs of two clusters would share a rendezvous port, which is derived from the id.
        version: Version of Slurm, as (year, month).
    """

    folder: Path
    port: int = 0
    nodes: int = 4
    gpus: int = 8
    cpus: int = 64
    memory_mib: int = 500_000
    accounting: bool = False
    first_job_id: int = 1
    version: tuple[int, int] = (22, 5)

    @property
    def names(self) -> list[str]:
        """Host names of the nodes."""
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def socket(self) -> Path:
        """Where munged listens."""
        return self.folder / "munge" / "socket"

    @property
    def conf(self) -> Path:
        """The file that ``SLURM_CONF`` names."""
        return self.folder / "etc" / "slurm.conf"


DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "login")


def slurm_conf(layout: Layout) -> str:
    """``slurm.conf``.

    ``cred_expire`` is also the delay before a requeued job may start again: 120 s by default. An
    attempt must have ended by then (``KillWait``), or the next one meets it on its node, and Slurm holds the job.
    ``NoInAddrAny`` binds to the address of the host's own name: every name is 127.0.0.1, and nodes differ by port.
    """
    user_signal = (
        "SlurmctldParameters=preempt_send_user_signal"
        if layout.version < (23, 2)
        else "PreemptParameters=send_user_signal"
    )
    return f"""\
ClusterName=dev
FirstJobId={layout.first_job_id}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={layout.port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={layout.socket},cred_expire=12
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MessageTimeout=5
StateSaveLocation={layout.folder}/ctld
SlurmdSpoolDir={layout.folder}/spool/%n
SlurmctldPidFile={layout.folder}/run/slurmctld.pid
SlurmdPidFile={layout.folder}/run/slurmd-%n.pid
SlurmctldLogFile={layout.folder}/log/slurmctld.log
SlurmdLogFile={layout.folder}/log/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
{_accounting(layout)}
MpiDefault=none
PropagateResourceLimits=NONE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
{user_signal}
GresTypes=gpu
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=15
MinJobAge=3600
KillWait=5
UnkillableStepTimeout=20
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
DefMemPerCPU=1000
NodeName=node[1-{layout.nodes}] NodeHostname=node[1-{layout.nodes}] NodeAddr=127.0.0.1 \
Port=[{layout.port + 11}-{layout.port + 10 + layout.nodes}] CPUs={layout.cpus} Boards=1 Sockets=2 \
CoresPerSocket={layout.cpus // 2} ThreadsPerCore=1 RealMemory={layout.memory_mib} Gres=gpu:h100:{layout.gpus}
PartitionName=main  Nodes=ALL Default=YES PriorityTier=5 PreemptMode=OFF MaxTime=INFINITE DefaultTime=10
PartitionName=low   Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=30 MaxTime=INFINITE DefaultTime=10
PartitionName=high  Nodes=ALL PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE DefaultTime=10
PartitionName=short Nodes=ALL PriorityTier=5 PreemptMode=OFF MaxTime=2
PartitionName=down  Nodes=node1 State=DOWN
"""


def _accounting(layout: Layout) -> str:
    if not layout.accounting:
        return "AccountingStorageType=accounting_storage/none"
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={layout.port + 1}
AccountingStoragePass={layout.socket}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations"""


def gres_conf(layout: Layout, files: str) -> str:
    """``gres.conf``: Slurm drops GPUs that are not device files."""
    return f"AutoDetect=off\nNodeName=node[1-{layout.nodes}] Name=gpu Type=h100 File={files}\n"


def cgroup_conf(layout: Layout) -> str:
    """``cgroup.conf``: nothing here uses cgroups, which must be declared from 23.11 on."""
    return "CgroupPlugin=disabled\n" if layout.version >= (23, 11) else ""


def slurmdbd_conf(layout: Layout) -> str:
    """The content of ``slurmdbd.conf``."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={layout.port + 1}
SlurmUser=root
LogFile={layout.folder}/log/slurmdbd.log
PidFile={layout.folder}/run/slurmdbd.pid
CommunicationParameters=NoInAddrAny
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={layout.port + 2}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""


def init_sql() -> str:
    """SQL that the database runs when it starts."""
    return """\
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
"""


def mariadb_sh(layout: Layout) -> str:
    """Script that creates a database in the tmpfs at ``db/`` and serves it; it does not need to survive.

    Its temporary tables are there too: named by process id, which two clusters share, they would collide in /tmp.
    """
    options = f"--no-defaults --user=root --datadir={layout.folder}/db/data --tmpdir={layout.folder}/db"
    quick = "--innodb-log-file-size=8M --innodb-flush-method=nosync"
    return f"""\
mariadb-install-db {options} --auth-root-authentication-method=normal --skip-test-db {quick}
exec mariadbd {options} --socket={layout.folder}/db/socket --pid-file={layout.folder}/db/pid \\
  --bind-address=127.0.0.1 --port={layout.port + 2} --skip-name-resolve --init-file={layout.folder}/etc/init.sql \\
  --skip-log-bin --innodb-buffer-pool-size=64M {quick} --innodb-flush-log-at-trx-commit=0 \\
  --innodb-lock-wait-timeout=900 --log-error={layout.folder}/log/mysql.log
"""


def hosts(layout: Layout, own: str, machine: str) -> str:
    """``/etc/hosts`` of host ``own``, which comes first so that ``getfqdn`` returns it and not localhost."""
    names = " ".join(["localhost", machine, *DAEMONS, *layout.names])
    return f"127.0.0.1 {own}\n127.0.0.1 {names}\n"
