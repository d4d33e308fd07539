"""Probe the ranks before the first step: does each compute, and communicate with its neighbours, as fast as the others?

Each rank times matrix products, and then all-reduces with its two neighbours in a ring of nodes, or of the ranks of one
node; the better of the two counts, so that the neighbour of a slow one is not blamed. A rank that takes more than
``SLOWER`` times the (lower) median, twice in a row, is named, and the run ends. With only two parts an all-reduce
cannot tell which is slow, so only the products count. A rank that makes no progress for ``LIMIT_S`` ends the job and
names the ranks that are furthest behind.
"""

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from launcher.base import machine
from launcher.base.frozen import dataclass
from launcher.worker import NodeFault, process
from launcher.worker.engine import Context

LIMIT_S = 60.0  # Longest time without progress.
SLOWER = 1.3  # Times the median: a rank beyond it is slow.
_KEY = "launch_probe/{}"
_LOOK_S = 0.5  # Interval at which the thread checks the time.
_BATCHES = 3  # Timed batches of products or all-reduces; a rank's time is their median.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeWork:
    """The work of one batch: square matrices of ``width``, ``products`` multiplications and ``sums`` all-reduces."""

    width: int
    products: int
    sums: int
    dtype: torch.dtype


# On a GPU about 0.2 s (2 x 4096^3 x 1000 operations at 700 TFLOP/s), long enough for clocks to rise and settle.
_LOADS = {
    "cuda": ProbeWork(width=4096, products=1000, sums=20, dtype=torch.bfloat16),
    "cpu": ProbeWork(width=256, products=60, sums=4, dtype=torch.float32),
}


def probe(context: Context) -> None:
    """Compare the ranks, if the run asks for it, before anything else takes memory; NodeFault for a slow one."""
    cluster = context.spec.cluster
    # Cards of a workstation may differ by design, and there is no other node to move to.
    usual = context.device.type == "cuda" and cluster.kind == "slurm"
    if context.world == 1 or not (usual if cluster.probe is None else cluster.probe):
        return
    with _Watch(context) as watch:
        hosts = watch.hosts()
        found = _slow(context, hosts, watch.stage("the first measurement"))
        if found is not None:  # A single slow measurement may be chance.
            again = _slow(context, hosts, watch.stage("the second measurement"))
            found = again if again is not None and again.node == found.node else None
    if context.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if found is not None:
        raise found


class _Watch:
    """Publishes this rank's progress in the store; its thread ends the process if the ranks are not done in time."""

    def __init__(self, context: Context) -> None:
        self._context, self._done = context, threading.Event()
        # The store in which the ranks met; a separate client, since a thread uses it.
        self._store: Any = dist.distributed_c10d._get_default_store().clone()
        self._stage, self._since = 0, time.monotonic()

    def __enter__(self) -> "_Watch":
        self._tell("the start")
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()

    def hosts(self) -> list[str]:
        """Wait for all ranks and return each one's node; the thread reports ranks that never come."""
        keys = [_KEY.format(rank) for rank in range(self._context.world)]
        while not self._store.check(keys):
            time.sleep(0.01)
        return [self._progress_of(rank)[1] for rank in range(self._context.world)]

    def stage(self, name: str) -> Callable[[str], None]:
        """Return a function that tells the other ranks what this one is doing in this stage."""
        return lambda what: self._tell(f"{what} of {name}")

    def _tell(self, what: str) -> None:
        self._stage, self._since = self._stage + 1, time.monotonic()
        self._store.set(_KEY.format(self._context.rank), json.dumps([self._stage, machine.node(), what]))

    def _progress_of(self, rank: int) -> tuple[int, str, str]:
        stage, node, what = json.loads(self._store.get(_KEY.format(rank)))
        return stage, node, what

    def _look(self) -> None:
        while not self._done.wait(_LOOK_S):
            if time.monotonic() > self._since + LIMIT_S:
                process.fail(self._context.directory, self._late())

    def _late(self) -> NodeFault:
        ranks = range(self._context.world)
        absent = [rank for rank in ranks if not self._store.check([_KEY.format(rank)])]
        if absent:
            return NodeFault(f"{_ranks(absent)} did not reach the probe within {LIMIT_S:.0f} s (cluster.probe)", None)
        told = [self._progress_of(rank) for rank in ranks]
        least = min(stage for stage, _, _ in told)
        last = [rank for rank in ranks if told[rank][0] == least]
        nodes = sorted({told[rank][1] for rank in last})
        if len(last) == self._context.world:
            return NodeFault(f"no rank finished {told[0][2]} within {LIMIT_S:.0f} s (cluster.probe)", None)
        where = f"on {nodes[0]}" if len(nodes) == 1 else f"on {', '.join(nodes[:4])}"
        text = f"{_ranks(last)} {where} did not finish {told[last[0]][2]} within {LIMIT_S:.0f} s"
        return NodeFault(f"{text}, and the others waited (cluster.probe)", nodes[0] if len(nodes) == 1 else None)


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {names}"


def _slow(context: Context, hosts: Sequence[str], tell: Callable[[str], None]) -> NodeFault | None:
    load = _LOADS[context.device.type]
    tell("the matrix products")
    mine = {"a matrix product": _product(context.device, load)}
    exchanged = _exchanges(context, hosts, load, tell)
    if exchanged is not None:
        mine["an all-reduce with its neighbours"] = exchanged
    tell("the comparison")
    found: list[dict[str, float]] = [mine] * context.world
    dist.all_gather_object(found, mine)
    for what in mine:
        seconds = [each[what] for each in found]
        median, worst = statistics.median_low(seconds), max(range(context.world), key=seconds.__getitem__)
        if seconds[worst] > SLOWER * median:
            times = f"{1000 * seconds[worst]:.3g} ms, {seconds[worst] / median:.2f} times the median of all ranks"
            text = f"rank {worst} on {hosts[worst]} is slow: {what} takes {times}, {1000 * median:.3g} ms"
            way_out = "cluster.probe=false skips this test"
            return NodeFault(f"{text} (the limit is {SLOWER:g} times; {way_out})", hosts[worst])
    return None


def _product(device: torch.device, load: ProbeWork) -> float:
    left, right = (torch.ones(load.width, load.width, dtype=load.dtype, device=device) for _ in range(2))
    out = torch.empty_like(left)
    return _timed(lambda: torch.mm(left, right, out=out), load.products, device)


def _timed(act: Callable[[], object], times: int, device: torch.device) -> float:
    seconds = []
    for batch in range(_BATCHES + 1):
        began = time.perf_counter()
        for _ in range(times if batch else max(1, times // 10)):
            act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append((time.perf_counter() - began) / times)
    return statistics.median(seconds[1:])


def _exchanges(context: Context, hosts: Sequence[str], load: ProbeWork, tell: Callable[[str], None]) -> float | None:
    """Seconds of this rank's best all-reduce with neighbours; None if there are too few to identify a slow one."""
    parts = _parts(hosts)
    if len(parts) < 3:
        return None
    summed = torch.ones(load.width, load.width, dtype=load.dtype, device=context.device)
    backend = "nccl" if context.device.type == "cuda" else "gloo"
    best = float("inf")
    for number, pairs in enumerate(_rounds(parts), start=1):
        tell(f"the connections of round {number}")
        groups = [dist.new_group(pair, backend=backend) for pair in pairs]  # All ranks must call each.
        tell(f"the all-reduces of round {number}")
        for pair, group in zip(pairs, groups, strict=True):
            if context.rank in pair:
                reduce = lambda group=group: dist.all_reduce(summed, op=dist.ReduceOp.MAX, group=group)  # noqa: E731
                best = min(best, _timed(reduce, load.sums, context.device))
                dist.destroy_process_group(group)
    return best


def _parts(hosts: Sequence[str]) -> list[list[int]]:
    nodes = list(dict.fromkeys(hosts))
    if len(nodes) == 1:
        return [[rank] for rank in range(len(hosts))]
    return [[rank for rank, host in enumerate(hosts) if host == node] for node in nodes]


def _rounds(parts: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Rounds of disjoint pairs in which each part is paired with both of its neighbours in a ring."""
    last = len(parts) - 1
    yield [parts[n] + parts[n + 1] for n in range(0, last, 2)]
    around = [[*parts[0], *parts[last]]]
    yield [parts[n] + parts[n + 1] for n in range(1, last, 2)] + (around if last % 2 else [])
    if last % 2 == 0:
        yield around
