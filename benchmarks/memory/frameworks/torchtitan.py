"""torchtitan as a backend that is only checked: FSDP2 with tensor parallelism, eager or compiled block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from launcher.backends.fsdp import dtypes, overheads
from launcher.backends.fsdp import engine as fsdp_engine
from launcher.blocks import Engine, LogitsBytes
from launcher.dtypes import Dtypes
from launcher.held import Held
from launcher.spec import RunSpec
from launcher.terms import MemoryTerm

_COMPILED = LogitsBytes(output=2, loss=2, backward=4, source="torchtitan components/loss.py, compiled cross entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchtitan:
    """One way to run torchtitan.

    Attributes:
        compiled_loss: Whether the cross entropy is compiled: no fp32 copy of the logits is left of it.
        repeats_keys: Whether attention copies keys and values to every query head.
    """

    compiled_loss: bool
    repeats_keys: bool

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """As our own FSDP2: fp32 shards, bf16 compute, fp32 reduction."""
        return dtypes(spec)

    def engine(self, spec: RunSpec) -> Engine:
        """Modules much like those of ``transformers``; the loss outside of the model, on shards of the vocabulary."""
        return replace(
            fsdp_engine(spec),
            repeats_keys=self.repeats_keys,
            vocabulary_parallel=spec.parallel.tensor > 1,
            logits=_COMPILED if self.compiled_loss else None,
        )

    def overheads(self, held: Held) -> Iterator[MemoryTerm]:
        """FSDP2's buffers."""
        yield from overheads(held)
