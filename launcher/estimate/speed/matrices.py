"""The step of optimizers that need whole matrices: Muon's products, and the communication between ranks with shards.

On FSDP2's row shards torch computes every product of Muon's iteration on DTensors (counted by ``CommDebugMode``). For a
matrix with more rows than columns the first product's result is summed over the ranks for each of its two uses; for any
other, each rank computes its rows of every product, for which the factors are gathered.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from launcher.estimate.rank.model import RankModel
from launcher.estimate.speed import collectives, gemm
from launcher.estimate.speed.card import Card
from launcher.estimate.speed.collectives import Group, group_of
from launcher.estimate.speed.network import Network
from launcher.estimate.speed.products import products
from launcher.estimate.speed.terms import SpeedTerm, term

_ITERATIONS = 5  # ``ns_steps`` of ``torch.optim.Muon``.
_BF16 = 2  # Bytes of an element of its factors.
_MUON = "torch/optim/_muon.py, _zeropower_via_newtonschulz"
_ADAFACTOR = "launcher/worker/model/shards.py, _Gathering"


class _Exchange(NamedTuple):
    kind: collectives.Kind
    size: int


def step(rank: RankModel, network: Network, card: Card) -> Iterator[SpeedTerm]:
    """Products and communication of a step of Muon or Adafactor, beside its memory passes."""
    name, engine = rank.spec.optimizer.name, rank.engine
    if engine.library != "transformers" or name not in ("muon", "adafactor"):
        return
    shards = rank.spec.shard_degree if rank.view.states.parameters < 1 else 1
    group = group_of(shards, rank.spec.parallel.tensor, network)
    if name == "adafactor":
        each = rank.dtypes.size("parameters"), rank.dtypes.size("accumulate")
        gathered = Counter(_Exchange("all_gather", int(rank.elements.trained * size)) for size in each)
        yield from _exchanged("parameters and gradients gathered for Adafactor", gathered, group, network, _ADAFACTOR)
        return
    shapes = _matrices(rank)
    sizes = [(size, count) for shape, count in shapes.items() for size in _sizes(*shape, shards)]
    seconds = _ITERATIONS * sum(count * gemm.seconds(*size, "bf16", card) for size, count in sizes)
    work = _ITERATIONS * sum(2 * count * high * wide * deep for (high, wide, deep), count in sizes)
    if work:
        yield term("optimizer", "Muon's products", "work / rate", _MUON, work=work, rate=work / seconds)
    exchanges = Counter[_Exchange]()
    for shape, count in shapes.items():
        for exchange in _exchanges(*shape):
            exchanges[exchange] += _ITERATIONS * count
    yield from _exchanged("factors of Muon's products", exchanges, group, network, _MUON)


def _matrices(rank: RankModel) -> Counter[tuple[int, int]]:
    """Rows and columns of the trained matrices of this rank's blocks, with the count of each shape."""
    found = Counter[tuple[int, int]]()
    for alike in rank.counts.blocks:
        for one in products(rank.family, rank.spec.model, rank.spec.adapter, alike.layer, joined=False):
            if one.trained:
                found[one.outputs, one.inputs] += alike.count
    return found


def _sizes(rows: int, columns: int, shards: int) -> tuple[tuple[int, int, int], ...]:
    """Height, width and depth of a rank's part of an iteration's three products."""
    n, m = sorted((rows, columns))
    if rows > columns:
        part = -(-m // shards)
        return (n, n, part), (n, n, n), (n, part, n)
    part = -(-n // shards)
    return (part, n, m), (part, n, n), (part, m, n)


def _exchanges(rows: int, columns: int) -> Iterator[_Exchange]:
    """The collectives of one iteration on a matrix that is sharded by rows."""
    n, m = sorted((rows, columns))
    if rows > columns:
        yield from 2 * [_Exchange("all_reduce", _BF16 * n * n)]
    else:
        yield from (*2 * [_Exchange("all_gather", _BF16 * n * m)], _Exchange("all_gather", _BF16 * n * n))


def _exchanged(
    what: str, exchanges: Counter[_Exchange], group: Group, network: Network, source: str
) -> Iterator[SpeedTerm]:
    """Communication that nothing hides, so that the step waits for all of it."""
    moved = sum(count * one.size for one, count in exchanges.items())
    if group.ranks > 1 and moved:
        seconds = sum(count * collectives.seconds(*one, group, network) for one, count in exchanges.items())
        reached = moved / seconds
        yield term("data", what, "k / reached", source, moved=moved, group="data parallel", k=moved, reached=reached)
