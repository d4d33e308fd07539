"""The figures of one device that the speed model uses."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.spec import HardwareSpec
from launcher.spec.values import Dtype

MEMORY_SHARE = 0.80
"""Share of a card's peak memory bandwidth that memory-bound kernels reach (aiconfigurator ``h100_sxm.yaml``)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Card:
    """One GPU; equal figures are one object (:func:`card_of`), so that caches find it by identity."""

    name: str  # The option of the group ``hardware`` with these figures.
    capability: float  # Its compute capability; where torch gives none, derived from its formats.
    cores: int  # Streaming multiprocessors, or compute units.
    fp32: float  # Peak in fp32, in FLOP/s.
    fp16: float  # Dense peak of the matrix units in fp16, in FLOP/s.
    bf16: float  # Dense peak in bf16; fp32's for a GPU without that format.
    fp8: float | None  # Dense peak in fp8; None without that format.
    fp4: float | None = None  # Dense peak in fp4; None without that format.
    memory_bandwidth: float  # Bytes/s of its memory.
    pcie_bandwidth: float  # Bytes/s from the host, one way.
    generation: int | None = None  # NVIDIA's, the whole number of its compute capability; None for other cards.

    def peak(self, dtype: Dtype) -> float:
        """Dense peak in a format, in FLOP/s; where the card lacks fp4 or fp8, that of the next wider format."""
        if dtype in ("fp8", "fp4"):
            return (dtype == "fp4" and self.fp4) or self.fp8 or self.bf16
        return {"fp32": self.fp32, "fp16": self.fp16, "bf16": self.bf16}[dtype]

    def memory_seconds(self, moved: float) -> float:
        """Seconds of memory-bound kernels that read and write ``moved`` bytes."""
        return moved / (MEMORY_SHARE * self.memory_bandwidth)


_NEEDED = ("flops_fp32", "flops_fp16", "memory_bandwidth", "cores", "pcie_bandwidth")
"""Figures that a speed prediction needs in every format."""


def lacking(hardware: HardwareSpec) -> tuple[str, ...]:
    """The keys of unknown figures; no format of the card is assumed to be as fast as another one."""
    formats = (f"flops_{name}" for name in ("bf16", "fp8", "fp4") if name in hardware.dtypes)
    return tuple(f"hardware.{key}" for key in (*_NEEDED, *formats) if getattr(hardware, key) is None)


def is_amd(title: str) -> bool:
    """True for AMD's Instinct cards, whose capabilities torch reports as if they were NVIDIA's."""
    return "AMD" in title or "Instinct" in title


@lru_cache(maxsize=64)
def card_of(hardware: HardwareSpec) -> Card | None:
    """The card's figures; None where one of them is unknown, and for a CPU."""
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


_card = lru_cache(maxsize=64)(Card)  # One object for all cards with the same figures.


class CardTable(NamedTuple):
    """A file of constants of measured cards, each of which stands in for others of its generation."""

    path: Path
    # Least compute capability and measured card, the highest first.
    generations: tuple[tuple[float, str], ...]

    @property
    def cards(self) -> JsonObject:
        """The records of the measured cards; ``options`` of a record names the cards that it belongs to."""
        found: JsonObject = files.own_json(self.path)["cards"]
        return found

    def measured(self, card: Card) -> str:
        """The measured card with a card's own record, else that of its generation."""
        own = next((name for name, entry in self.cards.items() if card.name in entry["options"]), None)
        return own or next(name for least, name in self.generations if card.capability >= least)

    def stand_in(self, card: Card) -> str | None:
        """The card whose measured kernels stand in for this card's; None where its own were measured."""
        measured = self.measured(card)
        return None if card.name in self.cards[measured]["options"] else measured

    def source(self, card: Card) -> str:
        """The source of a term, with the card that stands in where there is one."""
        other = self.stand_in(card)
        found = f"launcher/estimate/speed/{self.path.name}"
        return found + (f" (kernels of {other} stand in)" if other else "")
