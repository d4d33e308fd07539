"""A free pipeline layout, read as Megatron-core reads ``--pipeline-model-parallel-layout``.

``E`` is the embedding, ``t`` a layer, ``m`` a layer of multi-token prediction, ``L`` the loss; ``|`` ends a model
chunk, ``t*3`` is ``ttt`` and ``(tt|)*2`` is ``tt|tt|`` (``core/transformer/pipeline_parallel_layer_layout.py``).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_MOST = 100_000  # Letters of a layout: more layers than any model has.


class Layout(NamedTuple):
    """What each model chunk holds, in the order of the model."""

    letters: str  # All of it, without ends of chunks.
    sizes: tuple[int, ...]  # Layers of each chunk.
    predicted: tuple[int, ...]  # Layers of multi-token prediction of each chunk.


@lru_cache(maxsize=256)
def read(text: str) -> Layout:
    """The layout of a text; raises ValueError with the rule that it breaks, as the end of a sentence."""
    text = text.replace(",", "").replace(" ", "")
    if any(len(number) > len(str(_MOST)) for number in re.findall(r"\d+", text)):
        raise ValueError(f"a layout has at most {_MOST} letters")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        if sum(len(part) * int(times) for part, times in re.findall(pattern, text)) > _MOST:
            raise ValueError(f"a layout has at most {_MOST} letters")
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    if wrong := sorted(set(text) - set("EtmL|")):
        raise ValueError(
            f"its letters are E (embedding), t (layer), m (multi-token prediction), L (loss), not {wrong[0]}"
        )
    chunks = text.split("|")
    return Layout(
        text.replace("|", ""), tuple(chunk.count("t") for chunk in chunks), tuple(chunk.count("m") for chunk in chunks)
    )


def fitting(parts: tuple[str, ...], chunks: int) -> Layout | None:
    """The layout where it has so many model chunks; None without one, or where a rule refuses it."""
    try:
        found = read("|".join(parts)) if parts else None
    except ValueError:
        return None
    return found if found is not None and len(found.sizes) == chunks else None


def even(layers: int, predicted: int, chunks: int) -> list[str]:
    """The chunks of a layout that shares layers out evenly, the earliest chunks first."""
    share, extra = divmod(layers, chunks)
    parts = ["t" * (share + (1 if place < extra else 0)) for place in range(chunks)]
    return [f"E{parts[0]}", *parts[1:-1], f"{parts[-1]}{'m' * predicted}L"]
