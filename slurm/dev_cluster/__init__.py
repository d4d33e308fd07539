"""A real Slurm on one machine: loopback only, all state in one folder, which is removed when it stops.

``python -m slurm.dev_cluster start|stop|run`` for people, :func:`start` for tests. Linux namespaces, which need root,
give every node its own host name, process table and ``/etc/hosts``. GPUs are clones of ``/dev/null``.
"""

from slurm.dev_cluster.cluster import Cluster, start
from slurm.dev_cluster.texts import ClusterError, Layout

__all__ = ["Cluster", "ClusterError", "Layout", "start"]
