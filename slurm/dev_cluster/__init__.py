"""A real Slurm on this one machine: loopback only, all state in one folder, gone without a trace when it stops.

``python -m slurm.dev_cluster start|stop|run`` for people, :func:`start` for tests. Every node has a host name, a table
of processes and an ``/etc/hosts`` of its own by Linux namespaces, which need root. GPUs are clones of ``/dev/null``.
"""

from slurm.dev_cluster.cluster import Cluster, start
from slurm.dev_cluster.texts import ClusterError, Layout

__all__ = ["Cluster", "ClusterError", "Layout", "start"]
