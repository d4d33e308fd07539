"""``checkpointing=auto`` against torch's ``sac_ilp``: the same memory, and each one's seconds of recomputation.

    pip install 'pulp<3'; python -m benchmarks.recomputation

torch's mixed-integer program (``torch.distributed._tools.sac_ilp.sac_milp``) gets the launcher's own figures: the bytes
that each module of each block keeps and its seconds of recomputation. It may recompute any share of any module of any
layer at a proportional cost, which no engine can run: its result is a lower bound for every choice of whole modules and
layers, including that of ``checkpointing=auto``. Its budget is what that choice keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import reporting
from launcher.config.request import request
from launcher.planner.recomputation import LeastRecomputation, least
from launcher.preflight import assess
from launcher.spec import RunSpec, edit

_NODE = ("precision=bf16", "cluster.gpus_per_node=8", "data=synthetic")
CASES = (
    ("model=7b", "parallel=fsdp", "hardware=h100_80g", "train.micro_batch_size=3"),
    ("model=7b", "parallel=fsdp", "hardware=h100_80g", "train.micro_batch_size=4"),
    ("model=7b", "parallel=zero2", "hardware=a100_80g", "train.micro_batch_size=2"),
    ("model=13b", "parallel=fsdp", "hardware=h100_80g", "train.micro_batch_size=2"),
    ("model=llama3_8b", "parallel=fsdp", "hardware=h100_80g", "train.sequence_length=8192", "train.micro_batch_size=2"),
    ("model=gpt2", "parallel=ddp", "hardware=rtx4090", "train.micro_batch_size=12"),
)


class Unit(NamedTuple):
    """A module of a block that may be recomputed: bytes saved, and seconds spent again."""

    name: str
    size: float
    seconds: float


def units(spec: RunSpec) -> list[Unit]:
    """The modules of a block and the whole block, by launch's formulas."""
    plain, layers = _kept(spec), spec.model.num_hidden_layers
    found = []
    for names in ("attention", "mlp", "norm"):
        found.append(Unit(names, *_of(spec, plain, {"checkpointing.modules": (names,)}, "selective", layers)))
    return [*found, Unit("block", *_of(spec, plain, {}, "full", layers))]


def _of(spec: RunSpec, plain: float, settings: dict[str, object], mode: str, layers: int) -> tuple[float, float]:
    run = edit.changed_at(spec, {"checkpointing.mode": mode, **settings})
    return (plain - _kept(run)) / layers, (_seconds(run) - _seconds(spec)) / layers


def _kept(spec: RunSpec) -> float:
    """Bytes that all blocks keep for one micro-batch."""
    [rank] = assess.terms_of(spec)
    kept = (one for one in rank.terms if one.what.startswith("saved by all blocks") and "loss" in one.moments)
    return float(sum(one.bytes for one in kept))


def _seconds(spec: RunSpec) -> float:
    speed = assess.assess(spec, search=None).speed
    assert speed is not None
    return speed.step_seconds


def bound(spec: RunSpec, found: list[Unit], budget: float) -> float:
    """Seconds of recomputation that torch's program needs at least to keep no more than a budget of bytes."""
    from torch.distributed._tools.ilp_utils import Graph
    from torch.distributed._tools.sac_ilp import sac_milp

    layers, whole = spec.model.num_hidden_layers, _kept(spec)
    nodes = list(_nodes(found, layers, whole))
    graph: Any = Graph(len(nodes))  # Its nodes are a typed dictionary with keys that the program does not read.
    graph.fw_post_order = [node["fqn"] for node in nodes]
    for index, node in enumerate(nodes):
        graph.add_node({**node, "index": index, "pos_fw_post_order": index})
    for index, node in enumerate(nodes):
        for inner, other in enumerate(nodes):
            graph.ad_matrix[index][inner] = float(f"{other['fqn']}.".startswith(f"{node['fqn']}."))
    decisions, milliseconds, _ = sac_milp(graph, (budget + whole / layers) / 2**30)
    assert decisions or not milliseconds
    return milliseconds / 1000


def _nodes(found: list[Unit], layers: int, whole: float) -> Iterator[dict[str, Any]]:
    """Blocks before their modules, as torch numbers them, and last what comes behind them, when all is kept.

    The program counts a block as kept while it runs, so that one block is added to the budget, and to what is there at
    the end, where it decides.
    """
    for layer in range(layers):
        *modules, block = found
        there = whole * (layer + 1) / layers
        yield _node(f"block{layer}", block, there)
        for unit in modules:
            yield _node(f"block{layer}.{unit.name}", unit, there)
    yield _node("head", None, whole + whole / layers)


def _node(name: str, unit: Unit | None, total: float) -> dict[str, Any]:
    size = 0.0 if unit is None else unit.size
    return {
        "fqn": name, "is_leaf": unit is None, "act_total": total, "act_fw_per_module": size, "sac_memory": size,
        "act_grad_per_module": 0, "grad_total": 0, "param_per_module": 0, "n_segments": 1, "slopes": [1.0],
        "intercepts": [0.0], "sac_runtime": 0.0 if unit is None else unit.seconds * 1000,
    }  # fmt: skip


def main() -> int:
    """Print a line a case and write ``benchmarks/results/recomputation.json``."""
    reporting.takes_no_option(__doc__)
    rows = []
    for words in CASES:
        spec = request([*words, *_NODE]).require()
        chosen = least(spec)
        rows.append(_row(words, spec, chosen))
    reporting.keep("recomputation", "python -m benchmarks.recomputation", {"cases": rows})
    return 0


def _row(words: tuple[str, ...], spec: RunSpec, chosen: LeastRecomputation) -> dict[str, object]:
    own, none = _seconds(chosen.spec) - _seconds(spec), _seconds(spec)
    least_possible = bound(spec, units(spec), _kept(chosen.spec))
    full = _seconds(edit.changed(spec, "checkpointing.mode", "full")) - none
    return {
        "run": " ".join(words),
        "chosen": " ".join(chosen.words),
        "step_seconds_without": round(none, 4),
        "recomputation_percent": round(100 * own / none, 2),
        "sac_ilp_bound_percent": round(100 * least_possible / none, 2),
        "checkpointing_full_percent": round(100 * full / none, 2),
    }


if __name__ == "__main__":
    raise SystemExit(main())
