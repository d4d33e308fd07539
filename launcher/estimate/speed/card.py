"""The figures of one device that the model of speed rests on."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.spec import HardwareSpec
from launcher.spec.values import Dtype

MEMORY_SHARE = 0.80
"""Share of its peak that memory-bound kernels reach of a card's memory (aiconfigurator ``h100_sxm.yaml``)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Card:
    """One GPU; two of the same figures are one object (:func:`card_of`), so that caches find it by its identity."""

    name: str  # The option of the group ``hardware`` whose figures these are.
    capability: float  # Its compute capability; a GPU that torch gives none counts by its formats.
    cores: int  # Streaming multiprocessors, or compute units.
    fp32: float  # Peak of fp32, in FLOP/s.
    fp16: float  # Dense peak of the matrix units in fp16, in FLOP/s.
    bf16: float  # That in bf16; of a GPU without that format fp32's.
    fp8: float | None  # That in fp8; None without that format.
    fp4: float | None = None  # That in fp4; None without that format.
    memory_bandwidth: float  # Bytes a second of its memory.
    pcie_bandwidth: float  # Bytes a second from the host, one way.
    generation: int | None = None  # NVIDIA's, the whole number of its compute capability; None of any other card.

    def peak(self, dtype: Dtype) -> float:
        """Dense peak of a format, in FLOP/s; fp4 and fp8 where the card has them, else the next wider format's."""
        if dtype in ("fp8", "fp4"):
            return (dtype == "fp4" and self.fp4) or self.fp8 or self.bf16
        return {"fp32": self.fp32, "fp16": self.fp16, "bf16": self.bf16}[dtype]

    def memory_seconds(self, moved: float) -> float:
        """Seconds of memory-bound kernels that read and write so many bytes."""
        return moved / (MEMORY_SHARE * self.memory_bandwidth)


_NEEDED = ("flops_fp32", "flops_fp16", "memory_bandwidth", "cores", "pcie_bandwidth")
"""Figures without which no speed can be said, whatever the format."""


def lacking(hardware: HardwareSpec) -> tuple[str, ...]:
    """The keys of figures that are unknown: a format that the card has is not taken to be as fast as another one."""
    formats = (f"flops_{name}" for name in ("bf16", "fp8", "fp4") if name in hardware.dtypes)
    return tuple(f"hardware.{key}" for key in (*_NEEDED, *formats) if getattr(hardware, key) is None)


def is_amd(title: str) -> bool:
    """True for AMD's Instinct cards, whose capabilities torch counts as if they were NVIDIA's."""
    return "AMD" in title or "Instinct" in title


@lru_cache(maxsize=64)
def card_of(hardware: HardwareSpec) -> Card | None:
    """The card's figures; None where one of them is unknown, or on the CPU."""
    if hardware.device != "cuda" or lacking(hardware):
        return None
    fp32, capability = float(hardware.flops_fp32 or 0), hardware.compute_capability
    return _card(
        name=hardware.card or hardware.name,
        capability=hardware.effective_capability,
        cores=hardware.cores or 0,
        fp32=fp32,
        fp16=float(hardware.flops_fp16 or 0),
        bf16=hardware.flops_bf16 or fp32,
        fp8=hardware.flops_fp8,
        fp4=hardware.flops_fp4,
        memory_bandwidth=float(hardware.memory_bandwidth or 0),
        pcie_bandwidth=float(hardware.pcie_bandwidth or 0),
        generation=None if capability is None or is_amd(hardware.title) else int(capability),
    )


_card = lru_cache(maxsize=64)(Card)  # Makes one object of cards with the same figures.


class CardTable(NamedTuple):
    """A file with what was measured of some cards, each of which stands in for others of its generation."""

    path: Path
    # The measured card of a compute capability and above, the highest first.
    generations: tuple[tuple[float, str], ...]

    @property
    def cards(self) -> JsonObject:
        """The records of the measured cards; ``options`` are the cards whose record one is."""
        found: JsonObject = files.own_json(self.path)["cards"]
        return found

    def measured(self, card: Card) -> str:
        """The measured card whose record is a card's own, else that of its generation."""
        own = next((name for name, entry in self.cards.items() if card.name in entry["options"]), None)
        return own or next(name for least, name in self.generations if card.capability >= least)

    def stand_in(self, card: Card) -> str | None:
        """The card whose measured kernels stand in for this one's; None where its own were measured."""
        measured = self.measured(card)
        return None if card.name in self.cards[measured]["options"] else measured

    def source(self, card: Card) -> str:
        """The source of a term, with the card that stands in where there is one."""
        other = self.stand_in(card)
        found = f"launcher/estimate/speed/{self.path.name}"
        return found + (f" (kernels of {other} stand in)" if other else "")
