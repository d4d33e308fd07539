"""Nodes that a job has to do without: whether it can, and how Slurm is told.

Slurm 22.05 takes ``ExcNodeList`` of a job that waits and refuses it of one that runs ("Job is no longer pending
execution"), so a job is kept off a node between ``scontrol requeue`` and its next start, which Slurm delays by the life
of a credential (two minutes, ``cred_expire`` of slurm.conf(5)).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.base.errors import SubmitError
from launcher.slurm.client import SlurmRefused, ask

_NOT_UP = ("down", "drain", "drng", "fail", "unk", "futr", "maint", "no_respond")
"""Beginnings of the states of sinfo(1), "NODE STATE CODES", in which a node takes no job."""

_NONE = ("", "(null)")


def obstacle(job: str, bad: Sequence[str]) -> str | None:
    """Why a job cannot do without nodes; None where it can.

    Counted are the nodes of its partition that are up; whether each has what the job asks for is Slurm's to say.
    """
    try:
        facts = _facts(job)
        fixed = [node for node in bad if node in _names(facts.get("ReqNodeList", ""))]
        partition = facts.get("Partition", "")
        rows = [line.split() for line in ask("sinfo", "-h", "-N", "-p", partition, "-o", "%N %T").splitlines()]
        out = {*bad, *_names(facts.get("ExcNodeList", ""))}
    except (SlurmRefused, SubmitError) as error:
        return f"Slurm does not say which others there are: {error}"
    if fixed:
        return f"the job asks for {', '.join(fixed)} by name (cluster.nodelist)"
    left = {node for node, state in rows if not state.startswith(_NOT_UP)} - out
    needed = int(re.match(r"\d*", facts.get("NumNodes", ""))[0] or 1)  # type: ignore[index]
    if len(left) >= needed:
        return None
    others = f"{len(left)} other {'node' if len(left) == 1 else 'nodes'} that {'is' if len(left) == 1 else 'are'} up"
    return f"partition {partition} has {others}, and the run needs {needed}"


def exclude(job: str, bad: Sequence[str], *, patience_s: float = 0) -> None:
    """Keep a job that waits off nodes, beside those that it avoids already.

    Raises:
        SubmitError: Slurm does not answer.
        SlurmRefused: It refuses.
    """
    before = _facts(job, patience_s).get("ExcNodeList", "")
    every = ",".join([*([] if before in _NONE else [before]), *bad])
    ask("scontrol", "update", f"JobId={job}", f"ExcNodeList={every}", patience_s=patience_s)


def _facts(job: str, patience_s: float = 0) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", ask("scontrol", "-o", "show", "job", job, patience_s=patience_s)))


def _names(nodes: str) -> list[str]:
    """Slurm's short form, ``node[1-3]``, as names."""
    return ask("scontrol", "show", "hostnames", nodes).split() if nodes not in _NONE else []
