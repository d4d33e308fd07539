"""Real ranks that are compared before their first step: equal ones, a slow one, and one that never answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from launcher.rundir.failure import explain
from launcher.worker.watch import probe
from tests.support import probing, ranks, training


def probed(run: Path, count: int, disturbed: str, *, limit_s: float, slower: float) -> dict[str, Any]:
    """Errors of the ranks by their files' names, where they have not come through."""
    training.prepare(
        run,
        "parallel=ddp",
        "cluster.probe=true",
        "train.micro_batch_size=1",
        f"train.global_batch_size={count}",
        ranks=count,
    )
    (run / "job.json").write_text("{}")
    [port] = training.free_ports(1)
    arguments = (str(run), str(port), disturbed, str(limit_s), str(slower))
    try:
        ranks.run(
            probing.main,
            arguments,
            imports=probing.imports,
            count=count,
            environment={**training.environment(), "SLURMD_NODENAME": "n7"},
            log=run / "ranks.log",
        )
    except AssertionError:
        return {path.name: json.loads(path.read_text()) for path in (run / "logs").glob("error.rank*.json")}
    return {}


def test_equal_ranks_go_on(tmp_path: Path) -> None:
    assert probed(tmp_path / "run", 3, "", limit_s=60, slower=1e6) == {}, (tmp_path / "run" / "ranks.log").read_text()


def test_a_slow_rank_is_named_with_its_node_and_what_was_measured(tmp_path: Path) -> None:
    errors = probed(tmp_path / "run", 2, "slow", limit_s=60, slower=probe.SLOWER)
    assert errors
    for error in errors.values():
        expected = (
            r"rank 1 on n7 is slow: a matrix product takes \S+ ms, \d+\.\d\d times the median of all ranks, \S+ ms "
            r"\(the limit is 1\.3 times; cluster\.probe=false skips this test\)"
        )
        assert re.fullmatch(expected, error["message"]), error["message"]
    found = explain(tmp_path / "run", 1, ("n6", "n7"))
    assert (found.transient, found.node, found.broken) == (True, "n7", True)


def test_a_rank_that_never_answers_is_named_in_a_minute(tmp_path: Path) -> None:
    errors = probed(tmp_path / "run", 2, "stop", limit_s=2, slower=probe.SLOWER)
    assert errors["error.rank0.json"]["message"] == (
        "rank 1 on n7 did not finish the matrix products of the first measurement within 2 s, and the others waited "
        "(cluster.probe)"
    )
    assert explain(tmp_path / "run", 1, ("n6", "n7")).node == "n7"


@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_each_part_meets_both_its_neighbours(count: int) -> None:
    parts = [[2 * part, 2 * part + 1] for part in range(count)]
    rounds = list(probe._rounds(parts))
    met = [frozenset(rank // 2 for rank in pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(sorted({part, (part + 1) % count}) for part in range(count))
    for pairs in rounds:
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy)), "no rank is in two exchanges at once"


def test_the_ranks_of_several_nodes_are_compared_by_node() -> None:
    assert probe._parts(["a", "a", "b", "b"]) == [[0, 1], [2, 3]]
    assert probe._parts(["a", "a", "a"]) == [[0], [1], [2]]
