"""Write ``launcher/estimate/speed/collectives.json`` from measured collectives, and print its errors.

``python -m benchmarks.speed.fits.collectives --data DIR``: DIR holds ``nccl_one_node.csv`` (nccl-tests in a node, from
ai-dynamo/aiconfigurator), ``nccl_multinode_h100.csv`` (NCCL's tuner, from meta-pytorch/autoparallel) and
``simai_efficiency.csv`` (shares of the wire's bandwidth, from aliyun/SimAI).

Measured times fall here and there with more bytes or more ranks, where NCCL changes its protocol or by noise. The table
is the nearest that never does, in squares of logarithms (pool adjacent violators, by turns along sizes and ranks). The
one exception is an all-reduce of 8 ranks against 4: NVLink SHARP makes large ones up to 12% faster, and they stay so.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.estimate.speed import collectives, tuner
from launcher.estimate.speed.collectives import Kind
from launcher.estimate.speed.network import Group, Network

TARGET = Path(collectives.__file__).with_name("collectives.json")

CARDS = {
    "nvlink3": ("A100-SXM-80GB", 300e9, "2.27.3"),
    "nvlink4": ("H100-SXM-80GB", 450e9, "2.29.2"),
    "nvlink5": ("B200-SXM", 900e9, "2.29.2"),
}
"""The card that stands for each generation of NVLink, bytes/s one way of one GPU, and the NCCL it was measured with."""

COUSINS = {"H200-SXM": "nvlink4", "B300-SXM": "nvlink5", "GB200": "nvlink5", "GB300": "nvlink5"}
"""Cards with the same links that were measured as well, and have no table of their own."""

KINDS: dict[str, Kind] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
}

type Curve = list[float]
type Measured = dict[tuple[str, Kind, int], dict[int, float]]


def main() -> None:
    """Fit, write, and print the residuals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.fits.collectives", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder with the three files")
    arguments = parser.parse_args()
    measured = one_node(arguments.data / "nccl_one_node.csv")
    content = fitted(measured)
    write(content)
    inside, between = list(_inside(measured)), _left_out(measured)
    write({"residuals": [line.strip() for line in (*inside, between)], **content})
    for line in (
        *inside,
        between,
        *_tuner(arguments.data / "nccl_multinode_h100.csv"),
        *_shares(arguments.data / "simai_efficiency.csv"),
    ):
        print(line)


def one_node(path: Path) -> Measured:
    """Microseconds by card, kind, ranks and bytes of the whole buffer."""
    found: Measured = defaultdict(dict)
    for row in _rows(path):
        found[row["gpu"], KINDS[row["op"]], int(row["gpus"])][int(row["bytes"])] = float(row["latency_us"])
    return found


def write(content: dict[str, Any]) -> None:
    """Write the file and clear the cache of the earlier one."""
    TARGET.write_text(_compact(content))
    files.own_json.cache_clear()
    collectives._tables.cache_clear()
    collectives.seconds.cache_clear()


def fitted(measured: Measured) -> dict[str, Any]:
    """The compact tables, with their source."""
    sizes = sorted(next(iter(measured.values())))
    tables = {}
    for links, (card, bandwidth, release) in CARDS.items():
        times = {kind: monotone(kind, _curves(measured, card, kind)) for kind in KINDS.values()}
        rounded = {
            kind: {str(ranks): [float(f"{time:.4g}") for time in curve] for ranks, curve in curves.items()}
            for kind, curves in times.items()
        }
        tables[links] = {"card": card, "nccl": release, "link_bandwidth": bandwidth, "microseconds": rounded}
    return {
        "what": "microseconds by kind, ranks and bytes of the whole buffer, powers of two from least_bytes on",
        "source": "ai-dynamo/aiconfigurator, systems/data/{a100_sxm,h100_sxm,b200_sxm}/nccl (nccl-tests)",
        "commit": "095f58a5",
        "licence": "Apache-2.0",
        "command": "python -m benchmarks.speed.fits.collectives --data DIR",
        "least_bytes": sizes[0],
        "tables": tables,
    }


def _compact(content: dict[str, Any]) -> str:
    """JSON with one list of times per line."""
    lines = json.dumps(content, indent=1).splitlines()
    text, inside = "", False
    for line in lines:
        text += line.strip() + (" " if line.endswith(",") else "") if inside else line
        inside = (inside or line.endswith("[")) and not line.strip().startswith("]")
        text += "" if inside else "\n"
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def monotone(kind: str, curves: dict[int, Curve]) -> dict[int, Curve]:
    """The nearest curves that never fall with size, nor with ranks except by NVLink SHARP."""
    found = {ranks: [log(time) for time in curve] for ranks, curve in curves.items()}
    ordered = sorted(found)[: 2 if kind == "all_reduce" else None]
    for _ in range(200):
        found = {ranks: rising(curve) for ranks, curve in found.items()}
        for index in range(len(found[ordered[0]])):
            for ranks, value in zip(ordered, rising([found[ranks][index] for ranks in ordered]), strict=True):
                found[ranks][index] = value
    return {ranks: [exp(value) for value in rising(curve)] for ranks, curve in found.items()}


def rising(values: Sequence[float]) -> Curve:
    """The nearest sequence that never falls, in least squares: neighbours that do are pooled (Barlow 1972)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (first, many), (last, more) = pools[-2:]
            pools[-2:] = [((first * many + last * more) / (many + more), many + more)]
    return [value for value, many in pools for _ in range(many)]


def _inside(measured: Measured) -> Iterator[str]:
    """Errors at the measured sizes: of the cards in the table, and of those that take another's."""
    yield "in a domain: table against measured, median, p90 and largest error"
    for card, links in [*((row[0], links) for links, row in CARDS.items()), *COUSINS.items()]:
        errors = [
            collectives.seconds(kind, size, Group(ranks, ranks), _network(links)) / (time * 1e-6) - 1
            for (name, kind, ranks), times in measured.items()
            if name == card
            for size, time in times.items()
        ]
        yield f"  {card:<14} by {links}: {_spread(errors)}, {len(errors)} figures"


def _left_out(measured: Measured) -> str:
    """Errors of interpolation: every second measured size left out and read between its neighbours."""
    errors = []
    for (card, _, _), times in measured.items():
        if card in {row[0] for row in CARDS.values()}:
            curve = [log(times[size]) for size in sorted(times)]
            errors += [exp((curve[i - 1] + curve[i + 1]) / 2 - curve[i]) - 1 for i in range(1, len(curve) - 1)]
    return f"between sizes (each left out, read between half and double of it): {_spread(errors)}"


def _tuner(path: Path) -> Iterator[str]:
    """Errors of the closed forms against the tuner's own figures."""
    rows = list(_rows(path))
    latencies, bandwidths = [], []
    for row in rows:
        way = _way(row)
        latencies.append(way.latency * 1e6 / float(row["latency_us"]) - 1)
        bandwidths.append(way.bandwidth / 1e9 / float(row["algbw_GBs"]) - 1)
    yield f"across nodes, closed forms against NCCL's tuner, {len(rows)} rows:"
    yield f"  latency {_spread(latencies)}; bandwidth {_spread(bandwidths)}"


def _way(row: dict[str, str]) -> tuner.Algorithm:
    nodes, inside = int(row["nodes"]), int(row["ranks_per_node"])
    rate, protocols = 48e9 * inside, ["LL", "LL128", "SIMPLE"]
    if row["algo"] == "ring":
        passes = 2 if row["op"] == "all_reduce" else 1
        return list(tuner.rings(nodes, inside, rate, passes))[protocols.index(row["protocol"])]
    ways = list(tuner.trees(nodes, inside, rate, sharp=True))
    return ways[3 if row["algo"] == "nvls_tree" else protocols.index(row["protocol"])]


def _shares(path: Path) -> Iterator[str]:
    """Shares of the NICs' bandwidth, ours beside SimAI's: of whole nodes, and of one GPU a node."""
    yield "share of the wire (8 x 48.5e9 bytes/s a node), ours / SimAI's"
    kinds: tuple[tuple[str, Kind], ...] = (("nic", "all_gather"), ("ata", "all_to_all"))
    for table, kind in kinds:
        for row in _rows(path):
            nodes, inside = _lie(row["group"])
            size = int(row["bytes"])
            if row["table"] != table or nodes < 2 or size not in {2**24, 2**27, 2**30, 2**34}:
                continue
            group = Group(nodes * inside, inside)
            time = collectives.seconds(kind, size, group, _network("nvlink4"))
            leaves = size * (1 - 1 / nodes) if kind == "all_to_all" else size * (1 - 1 / group.ranks) / inside
            share = leaves / 48.5e9 / time
            yield f"  {kind:<11} {size >> 20:>6} MiB {nodes:>4} x {inside}: {share:.2f} / {row['fraction_of_wire']}"


def _lie(group: str) -> tuple[int, int]:
    """Nodes and ranks per node from SimAI's names: ``16Node-128GPU(NIC)``, ``Multi 16``; 0 if not given."""
    if group.startswith(("Multi ", "Muiti ")) and group.split()[1].isdigit():
        return int(group.split()[1]), 1
    nodes = group.partition("Node")[0].strip()
    return (int(nodes), 8) if nodes.isdigit() else (0, 0)


def _network(links: str) -> Network:
    return Network(links, CARDS[links][1], 8, 8, 50e9)


def _curves(measured: Measured, card: str, kind: str) -> dict[int, Curve]:
    return {
        ranks: [times[size] for size in sorted(times)]
        for (name, what, ranks), times in sorted(measured.items())
        if (name, what) == (card, kind)
    }


def _spread(errors: Iterable[float]) -> str:
    sizes = sorted(map(abs, errors))
    return f"{statistics.median(sizes):.1%}, {sizes[int(0.9 * len(sizes))]:.1%}, {sizes[-1]:.0%}"


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


if __name__ == "__main__":
    main()
