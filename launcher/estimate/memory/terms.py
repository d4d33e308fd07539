"""One row of a memory estimate: bytes of one pile, alive at these moments, by this expression, from this source.

The printed formula is the formula: a term is made from one expression over named values, as ``z * (root + 2 * block)``,
and its bytes, its symbols and its numbers all come from that text (``launcher.base.formula``); ``SYMBOLS`` is the
names' legend.

Terms that name an instant exclude each other: of the instants of one moment only the fullest counts (``fullest``). So a
backend states what a block's backward pass holds at another instant, in place of what is counted at the fullest of its
MLP, and never has to know what to subtract.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Literal, NamedTuple, get_args

from launcher.base import formula
from launcher.base.formula import Value
from launcher.estimate.memory.moments import MOMENTS, Moment, Moments, Phase

type Pile = Literal[
    "parameters", "gradients", "optimizer_states", "master_weights", "activations", "logits", "gather_buffers",
    "reduce_buffers", "temporary", "workspace", "context", "communicators", "fragmentation",
]  # fmt: skip

PILES: tuple[Pile, ...] = get_args(Pile.__value__)

type HostPile = Literal["tensors", "offloaded", "loading", "saving", "processes", "readers"]
"""Piles of a node's host memory: on the CPU the ranks' tensors; then what is offloaded and saved, and processes."""

OUTSIDE_PILES: frozenset[Pile] = frozenset(("context", "communicators"))
"""Piles of the process on the device outside of the caching allocator."""


class MemoryTerm(NamedTuple):
    """Bytes of one pile on one rank; a tuple, since an estimate makes dozens of them."""

    pile: Pile | HostPile  # The pile of the report (docs/contract/documents.md) that it is added to.
    moments: Moments  # When it is alive.
    bytes: int  # The value of the expression, and 0 where that is negative.
    what: str  # Words for it.
    expression: str  # The formula, over names.
    values: Mapping[str, Value]  # The names' values on this rank.
    source: str  # Where the formula stands: a paper's equation, a file of the framework, a trace.
    # Of terms with an instant, those of one instant at a time are alive; without one it is alive at all.
    instant: str = ""

    @property
    def phases(self) -> frozenset[Phase]:
        """The phases in which it is alive at one moment at least."""
        return frozenset(MOMENTS[moment] for moment in self.moments)

    @property
    def formula(self) -> str:
        """Words for it, and its expression with numbers as people say them: ``parameters: 4 x 842.30 M``."""
        return f"{self.what}: {self.with_numbers(formula.said)}"

    @property
    def symbols(self) -> str:
        """The expression as it is printed: ``z x (root + 2 x block)``."""
        return formula.printed(self.expression, lambda name: name)

    @property
    def numbers(self) -> str:
        """The expression with its exact numbers: ``2 x (525,336,576 + 2 x 218,112,000)``."""
        return self.with_numbers(formula.exact)

    def at(self, instant: str) -> "MemoryTerm":
        """The same term, alive at one instant of its moments."""
        return _MADE(MemoryTerm, (*self[:-1], instant))

    def with_numbers(self, said: Callable[[Value], str]) -> str:
        """The expression with each name's value in its place."""
        return formula.printed(self.expression, lambda name: said(self.values[name]))


def term(
    pile: Pile | HostPile, moments: Iterable[Moment], what: str, expression: str, source: str, /, **values: Value
) -> MemoryTerm:
    """A term of a formula, never below zero: ``what`` in words, bytes by ``expression`` of the names of ``values``."""
    size = formula.evaluated(expression, values)
    size = size if type(size) is int else ceil(size)
    alive = moments if type(moments) is frozenset else frozenset(moments)
    return _MADE(MemoryTerm, (pile, alive, size if size > 0 else 0, what, expression, values, source, ""))


_MADE = tuple.__new__  # Makes a :class:`MemoryTerm` in a third of the time of its own call; an estimate makes dozens.


def by_instant(terms: Iterable[MemoryTerm]) -> Mapping[Moment, defaultdict[str, int]]:
    """Bytes of each instant of every moment, those of terms without an instant under none."""
    together: dict[tuple[str, Moments], int] = {}
    for one in terms:
        key = one.instant, one.moments
        together[key] = together.get(key, 0) + one.bytes
    sums: dict[Moment, defaultdict[str, int]] = {moment: defaultdict(int) for moment in MOMENTS}
    for (instant, moments), size in together.items():
        for moment in moments:
            sums[moment][instant] += size
    return sums


def fullest(terms: Iterable[MemoryTerm]) -> list[MemoryTerm]:
    """All terms; those with an instant come last, and only at the moments at which their instant is the fullest."""
    every = list(terms)
    found, competing = [one for one in every if not one.instant], [one for one in every if one.instant]
    first = {moment: max(here, key=here.__getitem__) for moment, here in by_instant(competing).items() if here}
    for one in competing:
        if moments := frozenset(moment for moment in one.moments if first[moment] == one.instant):
            found.append(one._replace(moments=moments))
    return found


SYMBOLS = {
    # Sizes of the model and of a step.
    "b": "sequences of a micro-batch",
    "s": "tokens of a sequence",
    "h": "hidden size, or this rank's part of it",
    "i": "inner size of the MLP",
    "part": "of the hidden size, where tensor parallel ranks split the sequence",
    "a": "attention heads",
    "kv": "key and value heads",
    "q": "elements of all queries of a token",
    "kv_size": "elements of all keys and values of a token",
    "L": "blocks on this rank",
    "V": "entries of the vocabulary whose logits are here, padding included",
    "r": "rank of the adapter",
    "m": "micro-batches of an optimizer step",
    "tok": "tokens of a micro-batch on this rank, or of a chunk of the loss",
    "f": "micro-batches in flight",
    # Parallel degrees.
    "t": "tensor parallel ranks",
    "p": "pipeline stages",
    "c": "context parallel ranks",
    "d": "ranks that share the model states",
    "e": "expert parallel ranks",
    # Bytes of an element.
    "z_in": "bytes of an element of a linear's input as ranks gather it",
    "z": "bytes of an element of the compute format",
    "z_res": "bytes of an element of the residual stream",
    "z_par": "bytes of an element of the parameters",
    "z_grad": "bytes of an element of the gradients that backward makes",
    "z_acc": "bytes of an element of the gradients that micro-batches are added to",
    "z_red": "bytes of an element of the reduction",
    "z_master": "bytes of an element of the master weights",
    "z_opt": "bytes of an element of the optimizer states",
    "bits": "bits of a quantised parameter, its constants included",
    # Parameters and shards, counted in elements.
    "P": "parameters of this rank before sharding",
    "shard": "elements of this rank's shard",
    "root": "parameters outside the blocks, before sharding",
    "root_trained": "those of them that receive gradients",
    "trained": "parameters of this rank that receive gradients, before sharding",
    "expert": "parameters of a block's routed experts on this rank",
    "dense": "parameters of a block without them",
    "shared": "those of its experts that every token meets",
    "there": "those of its routed experts that are gathered, and freed with their gradients",
    "touched": "elements of the weights that a shard touches, each whole",
    "queue": "elements whose reduction may wait",
    "group": "values that share a scale",
    "block": "parameters of the largest block, before sharding",
    "blocks": "parameters of all blocks, before sharding",
    "head": "parameters of the last norm and the output projection",
    "table": "parameters of the token embedding",
    "w": "elements of one weight",
    "joined": "elements of the weight that gate and up are, or of one weight",
    "linears": "elements of linears that multiply in fewer than 16 bits, or round to fewer",
    "both": "bytes of one of those by rows and by columns, with its scales",
    "rests": "bytes of segments that are too small to split off",
    "inputs": "inputs of a linear layer, 0 where these should be rounded and are not",
    "width": "inputs of the last linear of a block",
    "z_eye": "bytes of an element of an identity that a layer multiplies, its cast included",
    "z_made": "bytes of an element of the product of that, or of what is rounded meanwhile",
    "z_held": "bytes of an element of a rounded weight that a product reads, its cast included",
    "outputs": "outputs of a linear layer",
    "n_w": "matrices of a weight's shape that stay",
    "w_next": "elements of the weight whose gradient comes after it",
    "rows": "elements of a block of rows that is drawn at once",
    "lines": "rows of weights that have a constant each",
    "z_code": "bytes of an element of rounded values, or beside a weight while it is packed",
    "z_scale": "bytes of a group of inputs that round by one scale",
    "sums": "means of rows and of columns of the weights",
    "matrices": "of them those of the matrices inside the blocks",
    "z_state": "bytes of a state that is a code: 1, or 0.5 of 4 bits",
    "coded": "of them those with states of few bits, or of the largest such tensor",
    "paged": "of them those with states that the driver pages",
    "scales": "how many scales each 8-bit state has",
    "codes": "bytes of a table of codes",
    "tensors": "how many tensors have states of few bits",
    "bucket": "elements of a communication bucket",
    "window": "elements that are gathered at once",
    "kept": "elements of weights that are not released",
    "n": "how many there are",
    "n_root": "how many there are of parameters outside the blocks",
    # Activations, counted in bytes.
    "k": "bytes of a token, of what one block keeps or holds",
    "k_entry": "bytes of one entry of the vocabulary, of a token",
    "k_sum": "bytes of a token, of what several blocks keep",
    "k_all": "bytes of a token, of what all blocks keep",
    "k_kept": "bytes of a token, of what a checkpointed block keeps",
    "k_own": "bytes of a token that its experts save",
    "z_router": "of the router's weights",
    "copies": "1 where outputs of experts are not recomputed, else 0",
    "casts": "1 where gradients are cast to a wider format, else 0",
    "k_cast": "bytes of a token, of the cast of what a linear reads",
    "k_there": "bytes of a token that are counted elsewhere already",
    "inside": "bytes of a token, of the gradients inside the MLP",
    "size": "bytes of one of them",
    "reserved": "bytes of the allocator's segments",
    "n_pairs": "how many pairs there are",
    "size_pair": "bytes of one pair",
    "n_alone": "how many groups of one rank there are",
    "size_alone": "bytes of one of these",
    "counted": "bytes that the estimate counts elsewhere",
    "limit": "bytes at most",
    # Of a node.
    "ahead": "steps that a reader of the data has ready, and on GPUs their pinned copies",
}
"""The legend: each symbol of a formula, once for all of them.

Single letters are those of the field (arXiv:2205.05198, arXiv:1910.02054); where it has none a word is used. Sizes in
bytes are of one element and begin with ``z``; words such as ``shard`` count elements, and ``k`` counts bytes.
"""
