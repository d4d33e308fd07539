"""Traffic of the model states."""

from __future__ import annotations

import pytest

from launcher.estimate.speed.estimate import estimate
from launcher.preflight.assess import parts
from tests.support.helpers import make_spec


def test_replicas_average_the_gradients_of_their_shard_alone() -> None:
    """Optimizer states sharded over the 8 ranks of a node: what two nodes exchange is an eighth, in fp32."""
    words = ("parallel=3d", "parallel.tensor=1", "parallel.pipeline=1", "zero=1", "parallel.replicate=2")
    spec = make_spec("model=llama3_8b", "hardware=h100_80g", "cluster=slurm", "cluster.nodes=2", *words)
    found = estimate(spec, **parts(spec))
    assert found is not None
    averaged = next(term for term in found.terms if term.group == "data parallel, replicas")
    assert averaged.values["k"] == pytest.approx(4 * 8.03e9 / 8, rel=0.01)
