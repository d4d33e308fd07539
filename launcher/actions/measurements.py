"""The measured runs that correct predictions: the user's own, or those led by the run that ``--anchor`` names."""

from __future__ import annotations

from launcher.actions.requests import own_measurements
from launcher.preflight.measured.known import Measured
from launcher.spec import ClusterSpec


def measurements(*, wanted: bool, anchor: str | None, cluster: ClusterSpec | None = None) -> Measured | None:
    """The user's measured runs, and the cluster's where one is given; None unless they are wanted.

    With ``anchor`` it is what that run says of runs like it, and they of the others.
    """
    if anchor is None:
        return own_measurements(wanted=wanted, cluster=cluster)
    from launcher.actions.measured_runs import anchored  # Late, because few commands read a run.

    return anchored(anchor, others=wanted)
